"""Which configurations of a group are allowed, where a person has fixed a part of the plan."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxplan.ir._configurations import (
    DEALINGS,
    MAX_CONFIGURATIONS,
    Configuration,
    fixed_axes,
    ordered,
    ways_to_deal,
)
from jaxplan.ir._space import FactorClass

Axes = tuple[int, ...]

MOST_PARTIAL = 50_000
"""Where more combinations than these are left after some levels, a stricter way to deal axes is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLimit:
    """One condition on the classes of a group.

    Attributes:
      classes: the classes that it is about.
      axes: each of them is split by exactly these axes, major to minor.
      parts: one of them is split into so many parts and the others are whole.
      among: they are split by no axes but these.
      span: ``among`` is about the axes that divide between so many and so many parts alone: of 256 tokens that merge a
        batch of 8 and a sequence of 32, those between 8 and 256 split the sequence.
      is_split: at least one of them is split.
      source: the pin that asks for it, as an error names it.
    """

    classes: frozenset[int]
    axes: Axes | None = None
    parts: int | None = None
    among: frozenset[int] | None = None
    span: tuple[int, int] | None = None
    is_split: bool = False
    source: str = ""

    def allows(self, config: Configuration, axis_sizes: Sequence[int]) -> bool:
        """Whether a configuration meets the condition."""
        of = [config[c] for c in self.classes]
        if self.axes is not None and any(axes != self.axes for axes in of):
            return False
        if not self._is_among(of, axis_sizes):
            return False
        if self.parts is not None and sorted(_parts(axes, axis_sizes) for axes in of) != [
            *[1] * (len(of) - 1),
            self.parts,
        ]:
            return False
        return not self.is_split or any(of)

    def may_become(self, config: Configuration, axis_sizes: Sequence[int]) -> bool:
        """Whether a configuration can meet the condition once further axes are dealt."""
        of = [config[c] for c in self.classes]
        if not self._is_among(of, axis_sizes):
            return False
        return self.parts is None or all(self.parts % _parts(axes, axis_sizes) == 0 for axes in of)

    def _is_among(self, of: Sequence[Axes], axis_sizes: Sequence[int]) -> bool:
        if self.among is None:
            return True
        within = of if self.span is None else [_between(axes, axis_sizes, *self.span) for axes in of]
        return self.among.issuperset(itertools.chain(*within))


def allowed_by(limits: Sequence[ClassLimit], config: Configuration, axis_sizes: Sequence[int]) -> bool:
    """Whether a configuration meets every condition."""
    return all(limit.allows(config, axis_sizes) for limit in limits)


def enumerate_restricted(
    classes: Sequence[FactorClass],
    axis_sizes: Sequence[int],
    axis_levels: Sequence[int],
    limits: Sequence[ClassLimit],
    front_dimension: int = 0,
    most: int = MAX_CONFIGURATIONS,
) -> tuple[Configuration, ...]:
    """The configurations that meet every condition, as `enumerate_configurations` deals axes; none where none does.

    Classes with exact axes are set first. The others share the axes that are left, in two ways: as they are dealt
    without conditions, and as they would be dealt on a machine that has only those axes. Equal layers under equal
    conditions get one result, found once.
    """
    alike = tuple(
        replace(cls, named_dimension=front_dimension if cls.named_dimension == front_dimension else -1)
        for cls in classes
    )
    conditions = tuple(replace(limit, source="") for limit in limits)
    front = front_dimension if front_dimension >= 0 else -2  # of no class, as -1 is a class without a dimension
    return _enumerated(alike, tuple(axis_sizes), tuple(axis_levels), conditions, front, most)


@functools.lru_cache(maxsize=1024)
def _enumerated(
    classes: tuple[FactorClass, ...],
    axis_sizes: tuple[int, ...],
    axis_levels: tuple[int, ...],
    limits: tuple[ClassLimit, ...],
    front_dimension: int,
    most: int,
) -> tuple[Configuration, ...]:
    fixed = _fixed(classes, axis_sizes, limits)
    if fixed is None:
        return ()
    taken = frozenset(itertools.chain.from_iterable(fixed.values()))
    every = tuple(range(len(axis_sizes)))
    free = tuple(a for a in every if a not in taken)
    found: set[Configuration] = set()
    for axes in dict.fromkeys((every, free)):
        sizes, levels = [axis_sizes[a] for a in axes], [axis_levels[a] for a in axes]
        for dealing in DEALINGS:
            dealt = _dealt_over(dealing, classes, fixed, axes, sizes, levels, front_dimension, limits, axis_sizes)
            if dealt is not None and len(dealt) <= most:
                found.update(dealt)
                break
        else:
            found.update(sorted(dealt or (), key=lambda c: (-sum(map(len, c)), c))[:most])
    return ordered(found)


def _fixed(
    classes: Sequence[FactorClass], axis_sizes: Sequence[int], limits: Sequence[ClassLimit]
) -> Mapping[int, Axes] | None:
    """The axes of the classes that are given exactly; None where two conditions differ or sizes do not divide."""
    fixed, user = dict(fixed_axes(classes, axis_sizes)), fixed_axes(classes, axis_sizes)
    for limit in limits:
        for c in limit.classes if limit.axes is not None else ():
            if fixed.setdefault(c, limit.axes or ()) != limit.axes:
                return None
            if not classes[c].divisible_by(_parts(limit.axes or (), axis_sizes)):
                return None
    pinned = [axes for c, axes in fixed.items() if c not in user]
    if len(set(itertools.chain(*pinned))) < sum(map(len, pinned)):
        return None
    return fixed


def _dealt_over(
    dealing, classes, fixed, axes, sizes, levels, front_dimension, limits, axis_sizes
) -> list[Configuration] | None:
    """Configurations that one way to deal gives; None where there are too many to look at.

    Args:
      axes: the atomic axes to deal, with their ``sizes`` and ``levels``; configurations name them by these numbers.
    """
    taken = frozenset(itertools.chain.from_iterable(fixed.values()))
    places = [c for c in range(len(classes)) if c not in fixed]
    open_classes = [classes[c] for c in places]
    found: list[Configuration] = [tuple(fixed.get(c, ()) for c in range(len(classes)))]
    for level in ways_to_deal(dealing, open_classes, sizes, levels, front_dimension):
        joined = set()
        for outer in found:
            for inner in level:
                config = list(outer)
                for c, dealt in zip(places, inner, strict=True):
                    config[c] = outer[c] + tuple(axes[a] for a in dealt)
                joined.add(tuple(config))
        found = [c for c in joined if _is_possible(c, classes, places, taken, limits, axis_sizes)]
        if len(found) > MOST_PARTIAL:
            return None
    return [config for config in found if allowed_by(limits, config, axis_sizes)]


def _is_possible(config, classes, places, taken, limits, axis_sizes) -> bool:
    """Whether a partly dealt configuration divides, leaves axes that are taken alone, and can meet the conditions."""
    return all(
        taken.isdisjoint(config[c]) and classes[c].divisible_by(_parts(config[c], axis_sizes)) for c in places
    ) and all(limit.may_become(config, axis_sizes) for limit in limits)


def _parts(axes: Axes, axis_sizes: Sequence[int]) -> int:
    return math.prod(axis_sizes[a] for a in axes)


def _between(axes: Axes, axis_sizes: Sequence[int], first: int, last: int) -> Axes:
    """The axes that divide a dimension of ``first`` parts further, up to ``last`` parts; major to minor."""
    before = itertools.accumulate((axis_sizes[a] for a in axes), initial=1, func=lambda n, size: n * size)
    return tuple(a for a, n in zip(axes, before) if n * axis_sizes[a] > first and n < last)


def each_alone(limits: Sequence[ClassLimit]) -> Iterator[tuple[str, tuple[ClassLimit, ...]]]:
    """The conditions of each pin by itself."""
    for source in dict.fromkeys(limit.source for limit in limits):
        yield source, tuple(limit for limit in limits if limit.source == source)
