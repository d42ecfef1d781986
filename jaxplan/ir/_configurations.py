"""Configurations of a group: which atomic axes split which factor class (design: compositions per level).

Axes of one level are interchangeable, so a configuration is a *composition*: how many axes of each level go to each
class. Axes are dealt in a fixed order: the program's front dimension (the batch) takes a level's axes from the front,
ascending; every other class takes them from the back, descending. So moving one axis between the batch and another
dimension touches only minor-most axes, one all-to-all (``(a b), c -> a, (c b)``), and no permutation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from jaxplan.ir._space import FactorClass

Configuration = tuple[tuple[int, ...], ...]
"""For each class of a group the atomic axes that split it, major to minor."""

MAX_CONFIGURATIONS = 512
"""Cap on configurations of one group (design section 5); above it each level splits at most two classes."""


def enumerate_configurations(
    classes: Sequence[FactorClass], axis_sizes: Sequence[int], axis_levels: Sequence[int], front_dimension: int = 0
) -> tuple[Configuration, ...]:
    """All configurations whose splits divide every member of their class, the replicated one first.

    Args:
      classes: the splittable classes of a group, ``C`` of them.
      axis_sizes, axis_levels: size and topology level of each atomic axis, outermost first.
      front_dimension: index of the named dimension whose class takes axes from the front.

    Returns:
      Configurations, each a tuple of ``C`` axis tuples.
    """
    levels = [
        [a for a, level in enumerate(axis_levels) if level == wanted] for wanted in sorted(set(axis_levels))
    ]
    total = math.prod(math.comb(len(axes) + len(classes), len(classes)) for axes in levels)
    limit = len(classes) if total <= MAX_CONFIGURATIONS else 2
    front = next((c for c, cls in enumerate(classes) if cls.named_dimension == front_dimension), -1)
    found = []
    for dealt in itertools.product(*(_deal_level(axes, len(classes), limit, front) for axes in levels)):
        merged = tuple(tuple(itertools.chain(*(level[c] for level in dealt))) for c in range(len(classes)))
        if _divides(classes, merged, axis_sizes):
            found.append(merged)
    found.sort(key=lambda c: (sum(map(len, c)), tuple(-len(a) for a in c), c))
    return tuple(found[: max(MAX_CONFIGURATIONS, 1)])


def _deal_level(axes: Sequence[int], num_classes: int, max_classes: int, front: int) -> Iterator[Configuration]:
    """Every way to deal one level's axes to the classes, at most ``max_classes`` of them taking any."""
    for counts in _counts(len(axes), num_classes):
        if sum(1 for n in counts if n) > max_classes:
            continue
        dealt: list[tuple[int, ...]] = [()] * num_classes
        end = len(axes)
        for c in reversed(range(num_classes)):
            if c == front:
                dealt[c] = tuple(axes[: counts[c]])
            else:
                dealt[c] = tuple(reversed(axes[end - counts[c] : end]))
                end -= counts[c]
        yield tuple(dealt)


def _counts(num_axes: int, num_classes: int) -> Iterator[tuple[int, ...]]:
    if num_classes == 0:
        yield ()
        return
    for first in range(num_axes + 1):
        for rest in _counts(num_axes - first, num_classes - 1):
            yield (first, *rest)


def _divides(classes: Sequence[FactorClass], config: Configuration, axis_sizes: Sequence[int]) -> bool:
    return all(
        cls.divisible_by(math.prod(axis_sizes[a] for a in axes)) for cls, axes in zip(classes, config, strict=True)
    )
