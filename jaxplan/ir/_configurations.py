"""Configurations of a group: which atomic axes split which factor class (design: compositions per level).

Axes of one level and size are interchangeable, so a configuration is a *composition*: how many of them go to each
class. Axes are dealt in a fixed order: the program's front dimension (the batch) takes a level's axes from the front,
ascending; every other class takes them from the back, descending. So moving one axis between the batch and another
dimension touches only minor-most axes, one all-to-all (``(a b), c -> a, (c b)``), and no permutation. On large
machines there are too many compositions, and `DEALINGS` says which are kept.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxplan.ir._space import FactorClass

Configuration = tuple[tuple[int, ...], ...]
"""For each class of a group the atomic axes that split it, major to minor."""

MAX_CONFIGURATIONS = 100
"""Cap on configurations of one group. Tables of prices have its square and solving takes its cube; at most 84 are all
that six classes have on 8 devices."""
COARSE_CONFIGURATIONS = 24
"""Cap where configurations are opened step by step (`jaxplan.search._open_configurations`), before the first step."""
SUPER_AXIS_DEVICES = 8
"""Axes of an outer level are dealt in blocks of up to so many devices where single axes would be too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """How freely the axes are dealt.

    Attributes:
      most_classes: how many classes may take axes of one level.
      block_devices: on levels other than the innermost, axes are dealt in blocks of at most so many devices.
      with_front: at most two classes take axes at all, and if two, the front dimension (the batch) is one of them.
      whole_levels: the innermost level too is dealt in blocks.
    """

    most_classes: int
    block_devices: int
    with_front: bool = False
    whole_levels: bool = False


DEALINGS = (
    Dealing(most_classes=sys.maxsize, block_devices=1),
    Dealing(most_classes=2, block_devices=1),
    Dealing(most_classes=sys.maxsize, block_devices=SUPER_AXIS_DEVICES),
    Dealing(most_classes=2, block_devices=SUPER_AXIS_DEVICES),
    Dealing(most_classes=2, block_devices=SUPER_AXIS_DEVICES, with_front=True),
    Dealing(most_classes=2, block_devices=sys.maxsize, with_front=True),
    Dealing(most_classes=1, block_devices=sys.maxsize, with_front=True),
    Dealing(most_classes=1, block_devices=sys.maxsize, with_front=True, whole_levels=True),
)
"""From free to strict. All of them let one class take everything, and the batch take whole levels beside one other
class: data parallelism, FSDP, and Megatron's tensor parallelism within a node are in every one."""


def enumerate_configurations(
    classes: Sequence[FactorClass],
    axis_sizes: Sequence[int],
    axis_levels: Sequence[int],
    front_dimension: int = 0,
    block_devices: int = 1,
    most: int = MAX_CONFIGURATIONS,
) -> tuple[Configuration, ...]:
    """All configurations with splits that divide every member of their class, the replicated one first.

    The cap rule: the first of `DEALINGS` under which there are at most ``most``; if there are more under the last one
    too, the replicated one and those that leave the fewest axes idle, then those that split the fewest classes.

    Args:
      classes: the splittable classes of a group, ``C`` of them.
      axis_sizes, axis_levels: size and topology level of each atomic axis, outermost first.
      front_dimension: index of the named dimension; its class takes axes from the front.
      block_devices: start at dealings with blocks of at least so many devices (see `common_block_devices`).

    Returns:
      Configurations, each a tuple of ``C`` axis tuples.
    """
    fixed = fixed_axes(classes, axis_sizes)
    if fixed:
        classes = _open_classes(classes)
    _, found = _first_fitting(classes, axis_sizes, axis_levels, front_dimension, block_devices, most)
    return ordered(_with_fixed(found, fixed) if fixed else found)


def fixed_axes(classes: Sequence[FactorClass], axis_sizes: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Class -> the atomic axes that split it because the step itself says so.

    An axis that two classes name belongs to the operator's tensors apart, and each of them has it.
    """
    found = {}
    for c, cls in enumerate(classes):
        if cls.user_axes is not None:
            axes = cls.user_axes.atomic_axes(axis_sizes)
            assert axes is not None, "checked by jaxplan.cost.check_user_meshes"
            found[c] = axes
    return found


def _open_classes(classes: Sequence[FactorClass]) -> list[FactorClass]:
    return [cls for cls in classes if cls.user_axes is None]


def _with_fixed(found: Iterable[Configuration], fixed: dict[int, tuple[int, ...]]) -> Iterator[Configuration]:
    """Configurations of the open classes, those of the fixed ones put in; without those that want a taken axis."""
    taken = frozenset(itertools.chain.from_iterable(fixed.values()))
    for config in found:
        if taken.isdisjoint(itertools.chain.from_iterable(config)):
            rest = iter(config)
            yield tuple(fixed[c] if c in fixed else next(rest) for c in range(len(config) + len(fixed)))


def ordered(configurations: Iterable[Configuration]) -> tuple[Configuration, ...]:
    """Each once, the replicated one first, those that use few axes before others."""
    return tuple(sorted(set(configurations), key=lambda c: (sum(map(len, c)), tuple(-len(a) for a in c), c)))


def are_all(
    classes: Sequence[FactorClass],
    axis_sizes: Sequence[int],
    axis_levels: Sequence[int],
    front_dimension: int = 0,
) -> bool:
    """Whether `enumerate_configurations` leaves nothing out."""
    classes = _open_classes(classes)
    dealing, _ = _first_fitting(classes, axis_sizes, axis_levels, front_dimension, 1, MAX_CONFIGURATIONS)
    return dealing is DEALINGS[0]


def neighbours(
    config: Configuration,
    classes: Sequence[FactorClass],
    axis_sizes: Sequence[int],
    axis_levels: Sequence[int],
    front_dimension: int = 0,
) -> tuple[Configuration, ...]:
    """Configurations that divide and in which one axis is dealt to another class, to one more, or to none.

    A strategy may split two classes by the same axes where no tensor holds both (the batch of a bias's addition, and
    that of its gradient); which other classes could share them is not known here, so there axes are only given back.
    """
    fixed = fixed_axes(classes, axis_sizes)
    if fixed:
        open_config = tuple(axes for c, axes in enumerate(config) if c not in fixed)
        found = neighbours(open_config, _open_classes(classes), axis_sizes, axis_levels, front_dimension)
        return tuple(_with_fixed(found, fixed))
    if len(set(itertools.chain(*config))) < sum(map(len, config)):
        return tuple((*config[:c], axes[:-1], *config[c + 1 :]) for c, axes in enumerate(config) if axes)
    front = _front(classes, front_dimension)
    levels = _levels(axis_sizes, axis_levels)
    counts = [[sum(1 for a in taken if a in level) for taken in config] for level in levels]
    found = []
    for place, level in enumerate(levels):
        free = len(level) - sum(counts[place])
        places = range(-1, len(classes))  # -1: axes that nobody takes
        for source, target in itertools.permutations(places, 2):
            if (counts[place][source] if source >= 0 else free) == 0:
                continue
            changed = [list(row) for row in counts]
            if source >= 0:
                changed[place][source] -= 1
            if target >= 0:
                changed[place][target] += 1
            dealt = [
                _dealt([(a,) for a in axes], row, front) for axes, row in zip(levels, changed, strict=True)
            ]
            joined = tuple(tuple(itertools.chain(*parts)) for parts in zip(*dealt, strict=True))
            if _divides(classes, joined, axis_sizes):
                found.append(joined)
    return tuple(dict.fromkeys(found))


def common_block_devices(
    groups: Sequence[Sequence[FactorClass]],
    axis_sizes: Sequence[int],
    axis_levels: Sequence[int],
    front_dimension: int = 0,
    most: int = MAX_CONFIGURATIONS,
) -> int:
    """Blocks for all groups of a program: super-axes if any group needs blocks, else single axes.

    Groups that hand tensors to each other should cut a level at the same places; a cut that only one of them can
    make is a resharding across the slow links.
    """
    for classes in dict.fromkeys(tuple(_open_classes(classes)) for classes in groups):
        dealing, _ = _first_fitting(classes, axis_sizes, axis_levels, front_dimension, 1, most)
        if dealing.block_devices > 1:
            return SUPER_AXIS_DEVICES
    return 1


def _levels(axis_sizes: Sequence[int], axis_levels: Sequence[int]) -> list[list[int]]:
    """Axes that are interchangeable, because level and size are equal, by level."""
    kinds = list(zip(axis_levels, axis_sizes))
    return [[a for a, kind in enumerate(kinds) if kind == wanted] for wanted in dict.fromkeys(kinds)]


def _front(classes: Sequence[FactorClass], front_dimension: int) -> int:
    return next((c for c, cls in enumerate(classes) if cls.named_dimension == front_dimension), -1)


def _first_fitting(
    classes: Sequence[FactorClass],
    axis_sizes: Sequence[int],
    axis_levels: Sequence[int],
    front_dimension: int,
    block_devices: int,
    most: int,
) -> tuple[Dealing, tuple[Configuration, ...]]:
    """The first of `DEALINGS`, with such blocks, that gives at most so many configurations, and these."""
    nameless = tuple([cls if cls.named_dimension < 0 else _nameless(cls) for cls in classes])
    front = _front(classes, front_dimension)
    return _first_of_nameless(nameless, tuple(axis_sizes), tuple(axis_levels), front, block_devices, most)


@functools.lru_cache(maxsize=2**12)
def _nameless(cls: FactorClass) -> FactorClass:
    return dataclasses.replace(cls, named_dimension=-1)


@functools.lru_cache(maxsize=2**12)
def _first_of_nameless(
    classes: tuple[FactorClass, ...],
    axis_sizes: tuple[int, ...],
    axis_levels: tuple[int, ...],
    front: int,
    block_devices: int,
    most: int,
) -> tuple[Dealing, tuple[Configuration, ...]]:
    """`_first_fitting` of classes by their sizes alone: those of equal layers have other named dimensions."""
    levels = _levels(axis_sizes, axis_levels)
    for dealing in DEALINGS[:-1]:
        if dealing.block_devices >= block_devices:
            dealt = _deal(dealing, levels, len(classes), front, axis_sizes)
            found = _dividing(classes, dealt, axis_sizes, dealing, front, most + 1)
            if len(found) <= most:
                return dealing, tuple(found)
    strictest = DEALINGS[-1]
    dealt = _deal(strictest, levels, len(classes), front, axis_sizes)
    found = _dividing(classes, dealt, axis_sizes, strictest, front, None)
    found.sort(key=lambda c: (any(c), -sum(map(len, c)), sum(1 for axes in c if axes)))
    return strictest, tuple(found[:most])


def ways_to_deal(
    dealing: Dealing,
    classes: Sequence[FactorClass],
    axis_sizes: Sequence[int],
    axis_levels: Sequence[int],
    front_dimension: int,
) -> list[list[Configuration]]:
    """Per level of the machine, every way to give its axes to the classes that ``dealing`` allows.

    Example:
      Two axes of one level and two classes, the first of them the batch: nothing; the last axis, or both, to the
      second class; the first to the batch, with the last to the second class or not; both to the batch.
    """
    levels, front = _levels(axis_sizes, axis_levels), _front(classes, front_dimension)
    dealt = _deal(dealing, levels, len(classes), front, axis_sizes) if levels else []
    if dealing.with_front:
        return [[config for config in level if not _is_mixed(config, front)] for level in dealt]
    return dealt


def _deal(
    dealing: Dealing, levels: Sequence[Sequence[int]], num_classes: int, front: int, axis_sizes: Sequence[int]
) -> list[list[Configuration]]:
    """The possible splits of each level; only levels other than the innermost have blocks, unless ``whole_levels``."""
    outer = levels if dealing.whole_levels else levels[:-1]
    blocks = [_blocks(axes, axis_sizes, dealing.block_devices) for axes in outer]
    blocks.extend([(axis,) for axis in axes] for axes in levels[len(outer) :])
    return [_deal_level(level, num_classes, dealing, front) for level in blocks]


def _blocks(axes: Sequence[int], axis_sizes: Sequence[int], most_devices: int) -> list[tuple[int, ...]]:
    """Neighbouring axes joined while a block has at most ``most_devices``."""
    blocks: list[tuple[int, ...]] = []
    for axis in axes:
        if blocks and math.prod(axis_sizes[a] for a in (*blocks[-1], axis)) <= most_devices:
            blocks[-1] += (axis,)
        else:
            blocks.append((axis,))
    return blocks


def _dividing(
    classes: Sequence[FactorClass],
    dealt: Sequence[list[Configuration]],
    axis_sizes: Sequence[int],
    dealing: Dealing,
    front: int,
    limit: int | None,
) -> list[Configuration]:
    """Combinations of the levels' dealings that divide and that ``dealing`` allows, at most ``limit``.

    One that fails is dropped at once; every other one is itself a configuration, so that stopping early never hides
    that there are too many.
    """
    found: list[Configuration] = [((),) * len(classes)]
    for level in dealt:
        joined = (tuple(map(operator.add, outer, inner)) for inner in level for outer in found)
        allowed = (
            config
            for config in joined
            if _divides(classes, config, axis_sizes) and not (dealing.with_front and _is_mixed(config, front))
        )
        found = list(itertools.islice(allowed, limit))
    return found


def _is_mixed(config: Configuration, front: int) -> bool:
    """Whether classes other than the front dimension share the axes."""
    return sum(1 for c, axes in enumerate(config) if axes and c != front) > 1


def _deal_level(
    blocks: Sequence[tuple[int, ...]], num_classes: int, dealing: Dealing, front: int
) -> list[Configuration]:
    """Every way that ``dealing`` allows to deal one level's blocks to the classes."""
    found: list[Configuration] = []
    for counts in _counts(len(blocks), num_classes):
        if sum(1 for n in counts if n) > dealing.most_classes:
            continue
        found.append(_dealt(blocks, counts, front))
    return found


def _dealt(blocks: Sequence[tuple[int, ...]], counts: Sequence[int], front: int) -> Configuration:
    """So many blocks of one level for each class: the front dimension's from the front, the others' from the back."""
    dealt: list[tuple[int, ...]] = [()] * len(counts)
    end = len(blocks)
    for c in reversed(range(len(counts))):
        if c == front:
            dealt[c] = tuple(itertools.chain(*blocks[: counts[c]]))
        else:
            dealt[c] = tuple(itertools.chain(*reversed(blocks[end - counts[c] : end])))
            end -= counts[c]
    return tuple(dealt)


def _counts(num_axes: int, num_classes: int) -> Iterator[tuple[int, ...]]:
    if num_classes == 0:
        yield ()
        return
    for first in range(num_axes + 1):
        for rest in _counts(num_axes - first, num_classes - 1):
            yield (first, *rest)


def _divides(classes: Sequence[FactorClass], config: Configuration, axis_sizes: Sequence[int]) -> bool:
    return all(
        cls.divisible_by(math.prod(axis_sizes[a] for a in axes))
        for cls, axes in zip(classes, config, strict=True)
    )
