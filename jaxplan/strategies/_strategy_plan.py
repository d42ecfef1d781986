"""A strategy on a step: a configuration for every group, from rules over named dimensions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
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
    """The result of applying a strategy to a step.

    Attributes:
      configurations: one per group.
      repeat_gathers: gather parameters again for the backward pass instead of keeping the gathered copies.
    """

    configurations: tuple[Configuration, ...]
    repeat_gathers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """Why a strategy does not apply to a step, as the rest of a sentence."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """Input of every strategy: the analysed step, its topology, and the uses of parameters in it."""

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
        """Return ``make()``, computed at the first call with this key."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def named(self, v: int) -> tuple[int, ...]:
        """Named dimension of each class of a group."""
        return self._names[v]

    def fixed(self, v: int) -> Mapping[int, Axes]:
        """Classes of a group that the step's own sharding constraints fix -> their axes."""
        return self._fixed[v]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The places where loops take in stored arrays."""
        graph = self.graph
        return self.once(
            "entries", lambda: stored_entries(graph.program, graph.rules, graph.values, graph.grouping)
        )

    @property
    def tiny(self) -> frozenset[int]:
        """Groups of stored arrays that are too small to split: whole on every device."""
        return self.once("tiny", lambda: tiny_groups(self.graph))

    def held_together(self, v: int) -> frozenset[frozenset[int]]:
        """Sets of classes that occur in one operator or tensor of a group, so no axis may split two of a set."""
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
"""Class of a group -> the axes that should split it; only axes that divide the class are used."""
Rule = Callable[[Group], Wishes]


def apply_rules(
    step: Step, compute: Rule, state: Rule, *, repeat_gathers: bool = False, is_given: bool = False
) -> StrategyPlan:
    """Configure every group: stored arrays by the rule ``state``, all other groups by ``compute``.

    State that examples have each for themselves (a cache of keys and values, environments) is computed with like other
    values of the examples, unless the shardings of all arguments are given.

    The summands of a sum group stay partial sums over every axis over which all of them are partial: they are added
    first and reduced once.
    """
    configurations: list[Configuration] = []
    for group in step.graph.grouping.groups:
        is_stored = group.kind in STORED_KINDS and (is_given or not _is_of_examples(step, group))
        wishes = (state if is_stored else compute)(group)
        configurations.append(_configuration(step, group.index, wishes))
    _gather_in_trips(step, configurations, repeat_gathers)
    _scatter_in_trips(step, configurations)
    _measure_as_stored(step, configurations)
    _add_first(step, configurations)
    return StrategyPlan(configurations=tuple(configurations), repeat_gathers=repeat_gathers)


def _is_of_examples(step: Step, group: Group) -> bool:
    """Whether a group is state with the dimension of the examples."""
    return group.kind == "state" and any(d in step.graph.named.batch for d in step.named(group.index))


def _gather_in_trips(step: Step, configurations: list[Configuration], repeat_gathers: bool) -> None:
    """Keep stored arrays sharded at a loop's entrance, so that each trip gathers only its own layer.

    Without repeated gathers this applies to recomputed layers only: their gathered copies would be read just once.
    """
    equations, groups = step.graph.program.equations, step.graph.grouping.equation_group
    again = {groups[entry.equation] for entry in step.entries if entry.again or repeat_gathers}
    read = (
        (entry.stored, equations[entry.equation].results[0], int(entry.is_slice))
        for entry in step.entries
        if groups[entry.equation] in again
    )
    _shard_as_stored(step, configurations, read)


def _scatter_in_trips(step: Step, configurations: list[Configuration]) -> None:
    """Cast a gradient that a loop stacks as the stack is sharded, so that each trip scatters what it sums."""
    equations = step.graph.program.equations
    exits = (equations[e] for region in step.graph.program.regions for e in region.exits)
    written = ((e.results[0], e.operands[0], 1) for e in exits if e.params["role"] == "y")
    _shard_as_stored(step, configurations, written)


def _measure_as_stored(step: Step, configurations: list[Configuration]) -> None:
    """Compute norms of parameters and of their gradients from the shards that are stored and updated.

    Adafactor, LAMB and LARS scale an update by the norm of its parameter. A sum of squares needs no whole array.
    """
    graph = step.graph
    for group in graph.grouping.groups:
        equations = [graph.program.equations[e] for e in group.equations]
        is_in_loop = any(eqn.region >= 0 for eqn in equations)
        is_sum = any(graph.rules[eqn.index].family == "reduction" for eqn in equations)
        if is_in_loop or not is_sum or not _is_without_batch(step, group.index):
            continue
        arrays = (t for eqn in equations for t in eqn.operands if graph.program.tensors[t].shape)
        homes = {t: home for t in arrays if (home := _stored_group(step, t)) != UNGROUPED}
        sizes = [graph.program.tensors[t].num_elements for t in homes]
        if not homes or any(graph.program.tensors[t].num_elements >= min(sizes) for t in _leaving(step, group)):
            continue
        wishes: dict[int, Axes] = {}
        for t, home in homes.items():
            is_home = home == graph.grouping.tensor_group[t]
            stored = sharding_of(graph, configurations, home, t, produced=is_home).dims
            for classes, axes in zip(graph.spaces[group.index].tensor_dims[t], stored, strict=True):
                wishes.update(dict.fromkeys(classes, axes))
        configurations[group.index] = _configuration(step, group.index, wishes)


def _stored_group(step: Step, t: int) -> int:
    """The group of a stored array, or one that updates a stored array by this one."""
    grouping = step.graph.grouping
    readers = (grouping.equation_group[e] for e in step.graph.values.consumers[t])
    found = (g for g in (grouping.tensor_group[t], *readers) if g != UNGROUPED and g not in step.tiny)
    return next((g for g in found if grouping.groups[g].kind in STORED_KINDS), UNGROUPED)


def _leaving(step: Step, group: Group) -> Iterator[int]:
    """Results of a group that anything outside of it reads."""
    graph = step.graph
    for e in group.equations:
        for t in graph.program.equations[e].results:
            readers = {graph.grouping.equation_group[c] for c in graph.values.consumers[t]}
            if t in graph.program.returned or readers - {group.index}:
                yield t


def _shard_as_stored(
    step: Step, configurations: list[Configuration], pairs: Iterable[tuple[int, int, int]]
) -> None:
    """Shard groups inside of loops, without a batch, as the stored arrays that they read or write.

    Args:
      pairs: a stored array, its value in the loop, and how many dimensions in front that value lacks: 1 for a slice.
    """
    graph, groups = step.graph, step.graph.grouping.tensor_group
    wishes: dict[int, dict[int, Axes]] = defaultdict(dict)
    for array, value, missing in pairs:
        home, group = groups[array], groups[value]
        is_stored = home != UNGROUPED and graph.grouping.groups[home].kind in STORED_KINDS
        if not is_stored or home in step.tiny or not _is_without_batch(step, group):
            continue
        stored = sharding_of(graph, configurations, home, array, produced=True).dims[missing:]
        for classes, axes in zip(graph.spaces[group].tensor_dims[value], stored, strict=True):
            wishes[group].update(dict.fromkeys(classes, axes))
    for group, wished in wishes.items():
        configurations[group] = _configuration(step, group, wished)


def _is_without_batch(step: Step, group: int) -> bool:
    """Whether a group is element-wise and holds no value computed from the batch."""
    if group == UNGROUPED or step.graph.grouping.groups[group].kind != "elementwise":
        return False
    return not any(dimension in step.graph.named.batch for dimension in step.named(group))


def _add_first(step: Step, configurations: list[Configuration]) -> None:
    """Leave summands partial where all summands of a sum group are; a summand may be a sum group itself."""
    wished = list(configurations)
    sums = [group for group in step.graph.grouping.groups if step.graph.spaces[group.index].operand_partial]
    for _ in sums:
        before = list(configurations)
        for group in sums:
            configurations[group.index] = _summing(step, group, wished[group.index], configurations)
        if configurations == before:
            return


def _configuration(step: Step, v: int, wishes: Wishes) -> Configuration:
    """A valid configuration close to the wishes: an axis wished twice in one operator or tensor goes to the first."""
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
    """The configuration of a sum group: axes over which all its summands are partial stay partial."""
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
    """Wishes that put the batch of a group on ``axes``.

    A group may hold the batch in several classes, of tensors that no operator ties (around a flattening, for example);
    each of them is split. Where one tensor holds several batches, the most important one is split.
    """
    batch = step.graph.named.batch
    classes = [c for c, dimension in enumerate(step.named(v)) if dimension in batch]
    return dict.fromkeys(sorted(classes, key=lambda c: batch.index(step.named(v)[c])), axes)


def largest_split(step: Step, group: Group, axes: Axes) -> Wishes:
    """A wish for the one class of a group that ``axes`` split into most parts; ties to the larger dimension.

    The layers of a stack are excluded: a loop over a split stack would send each layer from device to device.
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
    """No wishes: whole on every device."""
    return {}
