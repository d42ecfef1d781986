"""Operators on stored arrays and on their gradients are computed on the shards that are stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from jaxplan.cost import sharding_of
from jaxplan.ir import REGION_IN, REGION_OUT, STORED_KINDS, UNGROUPED, Configuration, Group
from jaxplan.strategies._axes import Axes
from jaxplan.strategies._step import Step, configuration


def gather_in_trips(step: Step, configurations: list[Configuration], repeat_gathers: bool) -> None:
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


def scatter_in_trips(step: Step, configurations: list[Configuration]) -> None:
    """Cast a gradient that a loop stacks as the stack is sharded, so that each trip scatters its sum."""
    equations = step.graph.program.equations
    exits = (equations[e] for region in step.graph.program.regions for e in region.exits)
    written = ((e.results[0], e.operands[0], 1) for e in exits if e.params["role"] == "y")
    _shard_as_stored(step, configurations, written)


def measure_as_stored(step: Step, configurations: list[Configuration]) -> None:
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
        configurations[group.index] = configuration(step, group.index, wishes)


def compute_as_stored(step: Step, configurations: list[Configuration]) -> None:
    """Change a parameter, before a dot reads it, and its gradient on the stored shards.

    A kernel that is normalised, rounded or cut out of a stack is gathered behind that, and its gradient is scattered as
    the dot sums it.
    """
    changing = step.once("changing", lambda: list(_changing(step)))
    stored = list(_split_arrays(step, configurations)) if changing else []
    homes: dict[int, dict[int, Axes]] = {}
    for index, held, arrays in changing:
        of = next((dims for dims in stored if held <= dims.keys() and _is_whole_of(dims, arrays)), None)
        if of is not None:
            homes[index] = of
    groups, before = step.graph.grouping.groups, -1
    while before != len(homes):  # a group that is turned down is whole for its neighbours
        before = len(homes)
        homes = {index: home for index, home in homes.items() if _moves_less(step, groups[index], homes.keys())}
    for index, home in homes.items():
        wishes = {c: home[d] for c, d in enumerate(step.named(index)) if home.get(d)}
        configurations[index] = configuration(step, index, wishes)


def _changing(step: Step) -> Iterator[tuple[int, set[int], list[set[int]]]]:
    """Groups that may change parameters, with the dimensions of their results, and of each array of two or more."""
    for group in step.graph.grouping.groups:
        if not _is_without_batch(step, group.index) or _is_in_loop(step, group):
            continue
        equations = [step.graph.program.equations[e] for e in group.equations]
        written = {t: _dims(step, t) for eqn in equations for t in eqn.results}
        read = {t: _dims(step, t) for eqn in equations for t in eqn.operands}
        arrays = [dims for dims in (read | written).values() if len(dims) > 1]
        if arrays:
            yield group.index, set().union(*written.values()), arrays


def _split_arrays(step: Step, configurations: list[Configuration]) -> Iterator[dict[int, Axes]]:
    """Of each stored array that is split, its named dimensions and the axes of each."""
    graph = step.graph
    for group in graph.grouping.groups:
        if group.kind not in STORED_KINDS or group.index in step.tiny or not any(configurations[group.index]):
            continue
        for t in group.inputs:
            axes = sharding_of(graph, configurations, group.index, t, produced=True).dims
            dims = dict(zip(step.weights.dims(t), axes, strict=True))
            if len(dims) > 1 and -1 not in dims:
                yield dims


def _is_whole_of(dims: Mapping[int, Axes], arrays: Iterable[set[int]]) -> bool:
    """Whether one of some arrays has all dimensions that are split, and no other than those of ``dims``."""
    split = {d for d, axes in dims.items() if axes}
    return any(split <= array <= dims.keys() for array in arrays)


def _dims(step: Step, t: int) -> set[int]:
    """Named dimensions of a tensor, but for those of one element."""
    sizes = step.graph.program.tensors[t].shape
    return {d for d, size in zip(step.weights.dims(t), sizes, strict=True) if size > 1}


def _moves_less(step: Step, group: Group, changed: Collection[int]) -> bool:
    """Whether a group moves no more bytes on shards than on whole arrays: its results are gathered instead of its
    operands, unless others gather these as well, and gradients that enter are scattered instead of summed everywhere.

    ``changed``: groups that compute on shards.
    """
    graph = step.graph
    tensors, groups = graph.program.tensors, graph.grouping.groups

    def is_whole(g: int) -> bool:
        return g not in changed and groups[g].kind not in STORED_KINDS

    moved = sum(tensors[t].num_bytes for t in set(_leaving(step, group)) if any(map(is_whole, _readers(step, t))))
    for t in {t for e in group.equations for t in graph.program.equations[e].operands}:
        home = graph.grouping.tensor_group[t]
        if home == UNGROUPED or home == group.index:
            continue
        if groups[home].kind in STORED_KINDS:
            spared = not any(map(is_whole, _readers(step, t)))
        else:
            spared = is_whole(home)
        moved -= tensors[t].num_bytes if spared else 0
    return moved <= 0


def _readers(step: Step, t: int) -> set[int]:
    """Groups that read a tensor."""
    groups = (step.graph.grouping.equation_group[c] for c in step.graph.values.consumers[t])
    return {group for group in groups if group != UNGROUPED}


def _is_in_loop(step: Step, group: Group) -> bool:
    equations = [step.graph.program.equations[e] for e in group.equations]
    return any(eqn.region >= 0 or eqn.name in (REGION_IN, REGION_OUT) for eqn in equations)


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
        configurations[group] = configuration(step, group, wished)


def _is_without_batch(step: Step, group: int) -> bool:
    """Whether a group is element-wise and holds no value computed from the batch."""
    if group == UNGROUPED or step.graph.grouping.groups[group].kind != "elementwise":
        return False
    return not any(dimension in step.graph.named.batch for dimension in step.named(group))
