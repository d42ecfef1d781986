"""Stored arrays so small that every device holds all of them."""

from __future__ import annotations

from jaxplan.ir import STORED_KINDS, StepGraph, layer_elements

TINY_STATE_ELEMENTS = 1 << 14
"""State leaves of at most this many elements (biases, scales), of a stack those of one layer, are replicated and leave
the problem."""
TINY_STATE_FRACTION = 1 / 16
"""... provided that they are at most this fraction of the largest leaf: a tiny model keeps its choices."""


def tiny_groups(graph: StepGraph) -> frozenset[int]:
    """Groups of stored arrays that leave the problem."""
    elements = {t: layer_elements(graph.program, graph.values, t) for t in graph.stored}
    tiny = min(TINY_STATE_ELEMENTS, max(elements.values(), default=0) * TINY_STATE_FRACTION)
    return frozenset(
        group.index
        for group in graph.grouping.groups
        if group.kind in STORED_KINDS and max((elements.get(t, 0) for t in group.inputs), default=0) <= tiny
    )
