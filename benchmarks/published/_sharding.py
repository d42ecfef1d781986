"""Data parallelism x sharded parameters x tensors, with degrees of their own, as a strategy of a step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from benchmarks.published._rows import UnknownRowError
from jaxplan.ir import Group, StepGraph
from jaxplan.mesh import Topology
from jaxplan.strategies._axes import Axes, levels_of
from jaxplan.strategies._rules import apply_rules, batch_wishes, largest_split
from jaxplan.strategies._step import Absent, Step, StrategyPlan, Wishes
from jaxplan.strategies._tensor import tensor_dims
from jaxplan.strategies._weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The atomic axes of each kind of parallelism, outermost first."""

    data: Axes
    fsdp: Axes
    tensor: Axes


def grid_of(topology: Topology, data: int, fsdp: int, tensor: int) -> Grid:
    """Deals the axes from the slowest link on: data, then sharded parameters, then tensors.

    Raises `UnknownRowError` where an axis would be cut.
    """
    left = list(range(len(topology.axes)))
    dealt: list[Axes] = []
    for parts in (data, fsdp, tensor):
        taken, found = [], 1
        while found < parts and left:
            found *= topology.axes[left[0]].size
            taken.append(left.pop(0))
        if found != parts:
            raise UnknownRowError(f"{parts} devices are no product of neighbouring axes of {topology.name}")
        dealt.append(tuple(taken))
    return Grid(data=dealt[0], fsdp=dealt[1], tensor=dealt[2])


def sharded_grid(graph: StepGraph, topology: Topology, grid: Grid) -> StrategyPlan | Absent:
    """The batch over data and sharded axes; stored arrays over sharded ones, gathered for each pass; heads, hidden
    widths and words over the tensor axes, and the residual stream by its width there, as MaxText has it."""
    step = Step(graph=graph, topology=topology, weights=Weights(graph))
    tensor: frozenset[int] = frozenset()
    if grid.tensor:
        found = tensor_dims(step)
        if isinstance(found, Absent):
            return found
        tensor = found.all
    stream = _stream(step, tensor) if grid.tensor else None
    fsdp, back = _from_the_back(topology, grid.fsdp), _from_the_back(topology, grid.tensor)

    def of_tensor(group: Group) -> Wishes:
        classes = [c for c, d in enumerate(step.named(group.index)) if d in tensor]
        return dict.fromkeys(classes[:1], back)

    def compute(group: Group) -> Wishes:
        wishes = {**batch_wishes(step, group.index, (*grid.data, *grid.fsdp)), **of_tensor(group)}
        if stream is not None and not of_tensor(group):
            classes = [c for c, d in enumerate(step.named(group.index)) if d == stream]
            wishes |= dict.fromkeys(classes[:1], back)
        return wishes

    def stored(group: Group) -> Wishes:
        own = of_tensor(group)
        if not fsdp:
            return own
        whole = largest_split(step, group, fsdp)
        if not any(c in own for c in whole):
            return {**own, **whole}
        others = [c for c, d in enumerate(step.named(group.index)) if c not in own and d not in tensor]
        named = [c for c in others if step.named(group.index)[c] == stream]
        return {**own, **dict.fromkeys(named[:1], fsdp)}

    return apply_rules(step, compute, stored, repeat_gathers=bool(fsdp))


def _stream(step: Step, tensor: frozenset[int]) -> int | None:
    """The width of the residual stream: of dimensions that are not tensor ones, that of most parameters."""
    counts = Counter(d for dims in step.weights.leaf_dims.values() for d in dims if d not in tensor)
    return max(counts, key=lambda d: (counts[d], step.size(d)), default=None)


def _from_the_back(topology: Topology, axes: Axes) -> Axes:
    """Per level descending, the order in which stored arrays are dealt their axes."""
    return tuple(a for level in levels_of(topology) for a in reversed(level) if a in axes)
