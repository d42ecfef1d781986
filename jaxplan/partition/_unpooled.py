"""Gradients of max pooling, for GPUs: the places of the maxima wait for the gradient, and the zeros are their own.

XLA writes a 32-bit index for each dimension of each maximum, for which it needs nothing of the backward pass, and
scatters to zeros (`jaxplan.xla`). Left alone it was seen to write the indices of a VGG's first stages while
it waited for collectives of later ones; and to make one constant of the zeros and those of the rectifier before the
pooling, which the forward pass wrote, and a copy of it for the scatter, beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxplan.core import _compat
from jaxplan.cost import Transfer
from jaxplan.ir import UNGROUPED, Equation, StepGraph
from jaxplan.mesh import ChipSpec
from jaxplan.partition._evaluation import Evaluation
from jaxplan.xla import UNPOOLING, Target, analyse_buffers

_OPERAND = 1
"""Position of what was pooled; the gradient is before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpooled:
    """How what was pooled is made again of what is in memory.

    Attributes:
      arrays: (equation, tensor that it reads) for what is in memory, to wait for the gradient.
      kept: tensors that are computed for nothing and read as they are.
      again: equations to evaluate once more, in order; none where what was pooled is in memory itself.
    """

    arrays: tuple[tuple[int, int], ...]
    kept: tuple[int, ...]
    again: tuple[int, ...]


def find_unpooled(
    graph: StepGraph,
    chip: ChipSpec,
    copy_of: Callable[[Equation, int], Transfer | None],
    late: Container[int],
) -> dict[int, Unpooled]:
    """Gradients of max pooling, and what each is to wait with.

    Args:
      copy_of: equation, operand -> what brings the operand to the layout in which the equation reads it, if anything.
      late: tensors whose copy is made again in the backward pass; what is computed of one does not wait.

    Returns:
      Equation -> what is made again. Empty for other compilers than XLA's for GPUs.
    """
    poolings = [e for e in graph.program.equations if e.name == UNPOOLING] if chip.is_gpu else []
    if not poolings:
        return {}
    written = analyse_buffers(graph, Target.of(chip)).materialised
    found = {eqn.index: _made_again(graph, eqn, written, copy_of) for eqn in poolings}
    return {e: how for e, how in found.items() if not any(t in late for _, t in how.arrays)}


def _made_again(
    graph: StepGraph,
    eqn: Equation,
    written: Sequence[bool],
    copy_of: Callable[[Equation, int], Transfer | None],
) -> Unpooled:
    arrays: dict[tuple[int, int], None] = {}
    kept: set[int] = set()
    again: set[int] = set()
    stack = [(eqn, eqn.operands[_OPERAND])]
    while stack:
        reader, t = stack.pop()
        made_by = graph.values.producer[t]
        if graph.values.free[t]:
            kept.add(t)
        elif copy_of(reader, t) or written[t] or not _is_fused(graph, t):
            arrays[reader.index, t] = None
        elif made_by not in again:
            again.add(made_by)
            other = graph.program.equations[made_by]
            stack.extend((other, u) for u in other.operands)
    return Unpooled(arrays=tuple(arrays), kept=tuple(sorted(kept)), again=tuple(sorted(again)))


def _is_fused(graph: StepGraph, t: int) -> bool:
    """Whether a tensor is computed element by element, or moved, in a layout of the plan."""
    made_by = graph.values.producer[t]
    is_planned = made_by >= 0 and graph.grouping.equation_group[made_by] != UNGROUPED
    return is_planned and graph.rules[made_by].family in ("elementwise", "shape")


def wait_for_gradient(run: Evaluation, eqn: Equation, how: Unpooled, operands: Sequence[Any]) -> list[Any]:
    """The operands of the gradient of a pooling; what was pooled is there when the gradient is, and not before."""
    inner = run.child()
    places = [run.place_of(run.program.equations[e], t) for e, t in how.arrays]
    held, gradient = lax.optimization_barrier(([values[key] for values, key in places], operands[0]))
    for (values, key), value in zip(places, held, strict=True):
        (inner.env if values is run.env else inner.copies)[key] = value
    inner.evaluate_again(how.again)
    return [gradient, inner.read_operand(eqn, _OPERAND)]


def scatter_to_own_zeros(eqn: Equation, params: Mapping[str, Any], operands: Sequence[Any]) -> list[Any]:
    """The gradient of a pooling, added to zeros of which the compiler does not know that they are others' too."""
    source, operand = operands
    source, start = lax.optimization_barrier((source, jnp.zeros((), source.dtype)))
    return [_compat.select_and_scatter_add(eqn.origin, params, (source, operand, start), eqn.name_stack)]
