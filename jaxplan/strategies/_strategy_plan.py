"""A strategy on a step: a configuration for every group, from rules over named dimensions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jaxplan.cost import sharding_of, tiny_groups
from jaxplan.ir import (
    STORED_KINDS,
    UNGROUPED,
    Configuration,
    Entry,
    Group,
    StepGraph,
    fixed_axes,
    is_stack,
    stored_entries,
)
from jaxplan.mesh import Topology
from jaxplan.strategies._axes import Axes, dividing, num_devices
from jaxplan.strategies._weights import Weights

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyPlan:
    """What a strategy makes of a step.

    Attributes:
      configurations: one per group.
      repeat_gathers: gather parameters again for the backward pass instead of keeping them.
    """

    configurations: tuple[Configuration, ...]
    repeat_gathers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """Why a strategy is not there for a step, as the rest of a sentence."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """What the strategies read: the analysed step, where it goes, and where it uses parameters."""

    graph: StepGraph
    topology: Topology
    weights: Weights
    _known: dict[Hashable, Any] = field(default_factory=dict)
    _names: tuple[tuple[int, ...], ...] = field(init=False)
    _fixed: tuple[Mapping[int, Axes], ...] = field(init=False)

    def __post_init__(self) -> None:
        sizes = [axis.size for axis in self.topology.axes]
        classes = [space.classes for space in self.graph.spaces]
        object.__setattr__(self, "_names", tuple(tuple([c.named_dimension for c in of]) for of in classes))
        object.__setattr__(self, "_fixed", tuple(fixed_axes(of, sizes) for of in classes))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What strategies ask for again and again, made at the first time."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def named(self, v: int) -> tuple[int, ...]:
        """Named dimension of each class of a group."""
        return self._names[v]

    def fixed(self, v: int) -> Mapping[int, Axes]:
        """Classes of a group that the step itself lays out, and how."""
        return self._fixed[v]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Where loops read what is stored."""
        graph = self.graph
        return self.once(
            "entries", lambda: stored_entries(graph.program, graph.rules, graph.values, graph.grouping)
        )

    @property
    def tiny(self) -> frozenset[int]:
        """Groups of what is stored that are whole on every device."""
        return self.once("tiny", lambda: tiny_groups(self.graph))

    def held_together(self, v: int) -> frozenset[frozenset[int]]:
        """Sets of classes of a group that one operator or tensor holds."""
        space = self.graph.spaces[v]

        def found() -> frozenset[frozenset[int]]:
            tensors = {tuple(c for dim in t for c in dim) for t in set(space.tensor_dims.values())}
            return frozenset(map(frozenset, tensors.union(space.factor_class.values())))

        return self.once(("held", v), found)

    def size(self, dimension: int) -> int:
        return self.graph.named.dimensions[dimension].size

    def name(self, dimension: int) -> str:
        return self.graph.named.dimensions[dimension].name


Wishes = Mapping[int, Axes]
"""Class of a group -> the axes that should split it; those that divide it do."""
Rule = Callable[[Group], Wishes]


def apply_rules(step: Step, compute: Rule, state: Rule, *, repeat_gathers: bool = False) -> StrategyPlan:
    """The configurations that two rules ask for, ``state`` for what is stored and ``compute`` for everything else.

    What a sum group adds stays a partial sum over the axes over which all of its summands are: added first, reduced
    once.
    """
    configurations: list[Configuration] = []
    for group in step.graph.grouping.groups:
        wishes = (state if group.kind in STORED_KINDS else compute)(group)
        configurations.append(_configuration(step, group.index, wishes))
    _gather_in_trips(step, configurations, repeat_gathers)
    _add_first(step, configurations)
    return StrategyPlan(configurations=tuple(configurations), repeat_gathers=repeat_gathers)


def _gather_in_trips(step: Step, configurations: list[Configuration], repeat_gathers: bool) -> None:
    """Loops take in what is stored as it is stored: each trip gathers its own layer, and nothing is there before.

    Where gathers are not repeated, that is for layers that are computed again: kept copies would be read once.
    """
    graph = step.graph
    wishes: dict[int, dict[int, Axes]] = defaultdict(dict)
    groups = graph.grouping.equation_group
    again = {groups[entry.equation] for entry in step.entries if entry.again or repeat_gathers}
    for entry in step.entries:
        home = graph.grouping.tensor_group[entry.stored]
        group = groups[entry.equation]
        if group not in again or home in step.tiny or not _is_of_entries(step, group):
            continue
        (slice_,) = graph.program.equations[entry.equation].results
        stored = sharding_of(graph, configurations, home, entry.stored, produced=True).dims[entry.is_slice :]
        for classes, axes in zip(graph.spaces[group].tensor_dims[slice_], stored, strict=True):
            wishes[group].update(dict.fromkeys(classes, axes))
    for group, wished in wishes.items():
        configurations[group] = _configuration(step, group, wished)


def _is_of_entries(step: Step, group: int) -> bool:
    """Whether a group holds what a loop takes in and nothing that is computed of the batch."""
    if group == UNGROUPED or step.graph.grouping.groups[group].kind != "elementwise":
        return False
    return not any(dimension in step.graph.named.batch for dimension in step.named(group))


def _add_first(step: Step, configurations: list[Configuration]) -> None:
    """Make partial sums of what sum groups add, wherever all summands are; a summand may be such a group itself."""
    wished = list(configurations)
    sums = [group for group in step.graph.grouping.groups if step.graph.spaces[group.index].operand_partial]
    for _ in sums:
        before = list(configurations)
        for group in sums:
            configurations[group.index] = _summing(step, group, wished[group.index], configurations)
        if configurations == before:
            return


def _configuration(step: Step, v: int, wishes: Wishes) -> Configuration:
    """No axis is used twice in one operator or tensor; the first wish has it."""
    space = step.graph.spaces[v]
    chosen: list[Axes] = [()] * len(space.classes)
    fixed = step.fixed(v)
    for c, axes in fixed.items():
        chosen[c] = axes
    for c, axes in wishes.items():
        if c in fixed:
            continue
        taken = [other for other, of in enumerate(chosen) if of]
        if taken:
            held = [classes for classes in step.held_together(v) if c in classes]
            used = {a for other in taken if any(other in classes for classes in held) for a in chosen[other]}
            axes = tuple(a for a in axes if a not in used)
        chosen[c] = dividing(space.classes[c], axes, step.topology)
    return tuple(chosen)


def _summing(
    step: Step, group: Group, wished: Configuration, configurations: list[Configuration]
) -> Configuration:
    """The configuration of a sum group, what is partial in all of its summands first."""
    partial: set[int] | None = None
    for e in group.equations:
        for t in step.graph.program.equations[e].operands:
            home = step.graph.grouping.tensor_group[t]
            if home in (group.index, UNGROUPED) or step.graph.values.free[t]:
                continue
            found = set(sharding_of(step.graph, configurations, home, t, produced=True).partial)
            partial = found if partial is None else partial & found
    kept = partial or set()
    (last,) = step.graph.spaces[group.index].operand_partial
    config = [tuple(a for a in axes if a not in kept) for axes in wished]
    config[last] = tuple(sorted(kept, key=lambda a: (step.topology.axes[a].level, -a)))
    return tuple(config)


def batch_wishes(step: Step, v: int, axes: Axes) -> dict[int, Axes]:
    """The batch of a group on ``axes``.

    A group may hold it in several classes, of tensors that no operator ties (around a flattening, say): each is split.
    Where one tensor holds several batches, the most important of them is.
    """
    batch = step.graph.named.batch
    classes = [c for c, dimension in enumerate(step.named(v)) if dimension in batch]
    return dict.fromkeys(sorted(classes, key=lambda c: batch.index(step.named(v)[c])), axes)


def largest_split(step: Step, group: Group, axes: Axes) -> Wishes:
    """The one class of a group that ``axes`` split into most parts; ties to the larger dimension.

    Never the layers of a stack: the loop that reads one at a time would send it from device to device.
    """
    best, wish = (1, 0), {}
    space, graph = step.graph.spaces[group.index], step.graph
    stacks = [t for t in group.inputs if is_stack(graph.program, graph.values, t)]
    layers = {c for t in stacks for c in space.tensor_dims[t][0]}
    for c, cls in enumerate(space.classes):
        if c in layers:
            continue
        parts = num_devices(step.topology, dividing(cls, axes, step.topology))
        key = (parts, min(cls.sizes, default=0))
        if parts > 1 and key > best:
            best, wish = key, {c: axes}
    return wish


def nothing(group: Group) -> Wishes:
    """Whole on every device."""
    return {}
