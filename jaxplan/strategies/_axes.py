"""The atomic axes that a strategy gives to each of its dimensions, in the order of the search space."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxplan.ir import FactorClass
from jaxplan.mesh import Topology

Axes = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisSplit:
    """The devices as a grid: some axes for the batch, the others for tensors, experts or sequences.

    Attributes:
      front: axes of the batch, per level from the front, ascending.
      back: the others, per level from the back, descending (`jaxplan.ir.enumerate_configurations` deals them so).
    """

    front: Axes
    back: Axes


def levels_of(topology: Topology) -> list[Axes]:
    """Atomic axes by level and size, outermost first, as the search space deals them."""
    kinds = [(axis.level, axis.size) for axis in topology.axes]
    return [tuple(a for a, kind in enumerate(kinds) if kind == wanted) for wanted in dict.fromkeys(kinds)]


def innermost(topology: Topology) -> Axes:
    """The axes of the fastest links: the devices of one node."""
    level = topology.axes[-1].level if topology.axes else 0
    return tuple(a for a, axis in enumerate(topology.axes) if axis.level == level)


def split_axes(topology: Topology, taken: Sequence[int]) -> AxisSplit:
    """Per level the last ``taken`` axes go to the back, the others to the front."""
    levels = levels_of(topology)
    front = [a for axes, n in zip(levels, taken, strict=True) for a in axes[: len(axes) - n]]
    back = [a for axes, n in zip(levels, taken, strict=True) for a in reversed(axes[len(axes) - n :])]
    return AxisSplit(front=tuple(front), back=tuple(back))


def all_front(topology: Topology) -> AxisSplit:
    """All axes for the batch."""
    return split_axes(topology, [0] * len(levels_of(topology)))


def all_back(topology: Topology) -> AxisSplit:
    """No axis for the batch."""
    return split_axes(topology, list(map(len, levels_of(topology))))


def node_back(topology: Topology) -> AxisSplit:
    """The batch across the nodes, another dimension inside each node."""
    inside = set(innermost(topology))
    return split_axes(topology, [len(axes) if inside.issuperset(axes) else 0 for axes in levels_of(topology)])


def grids(topology: Topology) -> Iterator[AxisSplit]:
    """Every way to give axes to batch and tensors, some to each; a level across nodes goes to one of them whole."""
    inside = set(innermost(topology))
    choices = [
        range(len(axes) + 1) if inside.issuperset(axes) else (0, len(axes)) for axes in levels_of(topology)
    ]
    for taken in itertools.product(*choices):
        split = split_axes(topology, taken)
        if split.front and split.back:
            yield split


def grid_name(topology: Topology, split: AxisSplit) -> str:
    """Name of a grid, for example ``data2_tensor4``, or ``data2x1_tensor1x8`` on several nodes."""
    numbers = sorted({axis.level for axis in topology.axes})

    def parts(axes: Axes) -> str:
        counts = [
            math.prod(topology.axes[a].size for a in axes if topology.axes[a].level == n) for n in numbers
        ]
        return "x".join(map(str, counts))

    return f"data{parts(split.front)}_tensor{parts(split.back)}"


def num_devices(topology: Topology, axes: Sequence[int]) -> int:
    return math.prod(topology.axes[a].size for a in axes)


@functools.lru_cache(maxsize=2**14)
def dividing(cls: FactorClass, axes: Axes, topology: Topology) -> Axes:
    """The subset of ``axes`` that splits a class into most parts, per level the first ones; ties: the faster links."""
    levels = [tuple(a for a in axes if a in level) for level in map(set, levels_of(topology))]
    best: tuple[tuple[int, Axes], Axes] = ((1, ()), ())
    for counts in itertools.product(*(range(len(level) + 1) for level in levels)):
        kept = tuple(a for level, n in zip(levels, counts, strict=True) for a in level[:n])
        parts = num_devices(topology, kept)
        if cls.divisible_by(parts):
            best = max(best, ((parts, tuple(sorted(kept))), kept))
    return best[1]
