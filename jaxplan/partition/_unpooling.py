"""Gradients of max pooling, for GPUs: the positions of the maxima wait for the cotangent.

XLA writes a 32-bit index for each dimension of each maximum, for which it needs nothing of the backward pass, and
scatters to zeros (`jaxplan.xla`). Left alone it was seen to write the indices of a VGG's first stages while
it waited for collectives of later ones; and to make one constant of the zeros and those of the rectifier before the
pooling, which the forward pass wrote, and a copy of it for the scatter, beside it.
"""

from __future__ import annotations

from jaxplan.ir import UNGROUPED, Equation, StepGraph
from jaxplan.partition._lowering import Unpooling
from jaxplan.partition._resident import Resident
from jaxplan.xla import UNPOOLING

POOLED_OPERAND = 1
"""Position of the pooled array; the cotangent is before it."""


def find_unpoolings(resident: Resident) -> tuple[Unpooling, ...]:
    """Gradients of max pooling, and how each recomputes the pooled array; none for compilers other than XLA's for GPUs.

    An array computed from a copy that is gathered again in the backward pass does not wait.
    """
    shardings = resident.shardings
    if not shardings.target.scatters_pooling_gradients:
        return ()
    poolings = [e for e in shardings.graph.program.equations if e.name == UNPOOLING]
    found = [_unpooling(resident, eqn) for eqn in poolings]
    return tuple(how for how in found if not any(t in shardings.repeated for _, t in how.arrays))


def _unpooling(resident: Resident, eqn: Equation) -> Unpooling:
    graph, written = resident.shardings.graph, resident.buffers.materialised
    arrays: dict[tuple[int, int], None] = {}
    free: set[int] = set()
    recomputed: set[int] = set()
    stack = [(eqn, eqn.operands[POOLED_OPERAND])]
    while stack:
        reader, t = stack.pop()
        made_by = graph.values.producer[t]
        if graph.values.free[t]:
            free.add(t)
        elif resident.shardings.copy_of(reader, t) or written[t] or not _is_fused(graph, t):
            arrays[reader.index, t] = None
        elif made_by not in recomputed:
            recomputed.add(made_by)
            other = graph.program.equations[made_by]
            stack.extend((other, u) for u in other.operands)
    return Unpooling(
        equation=eqn.index,
        arrays=tuple(arrays),
        free=tuple(sorted(free)),
        recomputed=tuple(sorted(recomputed)),
    )


def _is_fused(graph: StepGraph, t: int) -> bool:
    """Whether a tensor is computed element by element, or moved, in a sharding of the plan."""
    made_by = graph.values.producer[t]
    is_planned = made_by >= 0 and graph.grouping.equation_group[made_by] != UNGROUPED
    return is_planned and graph.rules[made_by].family in ("elementwise", "shape")
