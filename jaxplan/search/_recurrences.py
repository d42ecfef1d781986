"""Tofu's coarsening: which groups are one operation at several time steps, and which are one layer's in both passes.

Source: Tofu, section 4.2.1 (grouping forward and backward operations; merging unrolled time steps: the same computation
on the same weights). Frameworks tell Tofu what they unroll; here groups of one structure belong together that compute
with the same parameters, by themselves or, where they read none, through their operands. Equal layers have parameters
of their own and stay apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from jaxplan.cost import Read
from jaxplan.ir import STORED_KINDS, UNGROUPED, StepGraph
from jaxplan.ir._union import UnionFind


def layer_groups(
    graph: StepGraph, reads: Sequence[Read], classes: Sequence[int], is_fixed: Sequence[bool]
) -> tuple[int, ...]:
    """Per class of groups the first class of its layer, layers in the order of the forward pass.

    A layer is a stored array, all its readers, and all producers of its update; of a recurrence all groups that feed
    back into itself, which is where the classes' graph of the forward pass has cycles; and the sums of gradients that
    it reads.

    Args:
      classes: class of each group.
      is_fixed: per group whether there is nothing to decide; it then joins no others.
    """
    direct, _ = _direct_anchors(graph, reads)
    num_classes = max(classes, default=-1) + 1
    union = UnionFind(num_classes)
    for v, anchors in enumerate(direct):
        for u in anchors:
            if not (is_fixed[u] or is_fixed[v]):
                union.join(classes[u], classes[v])
    firsts: dict[int, int] = {}
    for number, unit in enumerate(_recurrent_units(reads, classes, num_classes)):
        union.join(firsts.setdefault(unit, number), number)
    for number, reader in _readers_of_gradients(reads, classes, direct).items():
        union.join(number, reader)
    lowest: dict[int, int] = {}
    return tuple(lowest.setdefault(union.find(number), number) for number in range(num_classes))


def _recurrent_units(reads: Sequence[Read], classes: Sequence[int], num_classes: int) -> list[int]:
    """Per class the number of its strongly connected component in the forward pass."""
    from scipy.sparse import coo_array  # heavy, and needed by few
    from scipy.sparse.csgraph import connected_components

    ends = [
        (classes[read.producer], classes[read.consumer])
        for read in reads
        if read.forward and UNGROUPED not in (read.producer, read.consumer)
    ]
    source, target = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    edges = coo_array((np.ones(len(ends)), (source, target)), shape=(num_classes, num_classes))
    return connected_components(edges, connection="strong")[1].tolist()


def _readers_of_gradients(
    reads: Sequence[Read], classes: Sequence[int], direct: Sequence[set[int]]
) -> dict[int, int]:
    """Classes of the backward pass alone that make no update -> the class that reads them first."""
    both_passes = {classes[v] for read in reads if read.forward for v in (read.producer, read.consumer) if v >= 0}
    both_passes |= {classes[v] for v, anchors in enumerate(direct) if anchors}
    readers: dict[int, tuple[int, int]] = {}
    for read in reads:
        if UNGROUPED in (read.producer, read.consumer) or classes[read.producer] in both_passes:
            continue
        found = read.equations[0], classes[read.consumer]
        readers[classes[read.producer]] = min(found, readers.get(classes[read.producer], found))
    return {number: reader for number, (_, reader) in readers.items()}


def time_step_classes(graph: StepGraph, reads: Sequence[Read]) -> tuple[int, ...]:
    """Per group the number of its class, from 0 up by first member; a stored array is in a class of its own."""
    anchors = _anchors(graph, reads)
    numbers: dict[Hashable, int] = {}
    classes = []
    for group, space in zip(graph.grouping.groups, graph.spaces, strict=True):
        key: Hashable = group.index
        if group.kind not in STORED_KINDS and anchors[group.index]:
            key = (group.kind, space.classes, anchors[group.index])  # the first and last steps lack some operators
        classes.append(numbers.setdefault(key, len(numbers)))
    return tuple(classes)


def _anchors(graph: StepGraph, reads: Sequence[Read]) -> list[frozenset[int]]:
    """Per group the stored groups that it reads or makes, or else those of the groups that it reads, however far."""
    direct, producers = _direct_anchors(graph, reads)
    return [frozenset(direct[v] or _upstream(v, direct, producers)) for v in range(len(direct))]


def _direct_anchors(graph: StepGraph, reads: Sequence[Read]) -> tuple[list[set[int]], list[set[int]]]:
    """Per group the stored groups that it reads or makes, and the other groups that it reads."""
    groups = graph.grouping.groups
    direct: list[set[int]] = [set() for _ in groups]
    producers: list[set[int]] = [set() for _ in groups]
    for read in reads:
        if UNGROUPED in (read.producer, read.consumer) or read.producer == read.consumer:
            continue
        is_stored = [groups[v].kind in STORED_KINDS for v in (read.producer, read.consumer)]
        if is_stored[0]:
            direct[read.consumer].add(read.producer)
        elif is_stored[1]:
            direct[read.producer].add(read.consumer)
        else:
            producers[read.consumer].add(read.producer)
    for u, v in _through_views(graph, reads):
        direct[v] |= direct[u]
    for v in reversed(range(len(groups))):  # summands of a gradient count as that gradient
        if groups[v].kind == "sum" and direct[v]:
            for u in producers[v]:
                direct[u] |= direct[v]
    return direct, producers


def _through_views(graph: StepGraph, reads: Sequence[Read]) -> list[tuple[int, int]]:
    """(producer, consumer) of the forward pass where the producer computes with stored values alone.

    Such are casts, views, and reads of a loop's constants: their consumers read the stored array.
    """
    groups = graph.grouping.groups
    ends = [
        (read.producer, read.consumer)
        for read in reads
        if read.forward and UNGROUPED not in (read.producer, read.consumer)
    ]
    readers = {v for _, v in ends}
    others = {v for u, v in ends if groups[u].kind not in STORED_KINDS}
    views = {v for v in readers - others if groups[v].kind == "elementwise"}
    return [(u, v) for u, v in ends if u in views and u != v]


def _upstream(v: int, direct: Sequence[set[int]], producers: Sequence[set[int]]) -> set[int]:
    """The stored groups that the nearest groups upstream read or update."""
    anchors: set[int] = set()
    pending, seen = [v], {v}
    while pending:
        new = producers[pending.pop()] - seen
        seen |= new
        anchors.update(*(direct[u] for u in new))
        pending += [u for u in new if not direct[u]]
    return anchors
