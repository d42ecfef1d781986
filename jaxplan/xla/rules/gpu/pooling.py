"""Buffers of max pooling and its gradient beside their operands and results.

XLA makes the gradient of two operators. One slides over the operand once more and writes where each maximum was: one
32-bit index for each dimension, and beside them the maximum, in float32 where it has 16 bits, which nobody reads. The
other scatters the gradient to these places of a buffer of zeros, which is the result.
https://github.com/openxla/xla/blob/main/xla/service/select_and_scatter_expander.cc

The lowering lets the first wait for the gradient, and gives each result zeros of its own (docs/lowering.md).

Windows over 16 bits are computed in float32. Whoever casts the result to float32 (a norm) reads that, and it is kept
beside the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.ir import Equation, StepGraph
from jaxplan.xla._target import Target
from jaxplan.xla.rules.gpu.layouts import POOLING_IN_FLOAT32, POOLING_INDICES

UNPOOLING = "select_and_scatter_add"
_POOLINGS = ("reduce_window_max", "reduce_window_min")
_INDEX_BYTES = 4
_VALUE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBuffer:
    """Something that is split like the result of a pooling or of its gradient.

    Attributes:
      tensor: that result.
      num_bytes: global.
      first, last: equations between which it lives.
    """

    tensor: int
    num_bytes: int
    first: int
    last: int


def pool_buffers(graph: StepGraph, target: Target, read_end: Sequence[int]) -> tuple[PoolBuffer, ...]:
    """Results of max pooling in float32; of its gradients the places, and the values where they take more than the
    result, which is made later."""
    found: list[PoolBuffer] = []
    tensors = graph.program.tensors
    has_indices, is_wide = POOLING_INDICES.applies_to(target), POOLING_IN_FLOAT32.applies_to(target)
    for eqn in graph.program.equations:
        first = last = eqn.index
        if eqn.name == UNPOOLING and has_indices:
            source, result = (tensors[t] for t in (eqn.operands[0], eqn.results[0]))
            places = _INDEX_BYTES * len(source.shape) * source.num_elements
            values = max(_VALUE_BYTES, source.itemsize) * source.num_elements
            num_bytes = places + max(0, values - result.num_bytes)
        elif eqn.name in _POOLINGS and is_wide and tensors[eqn.results[0]].itemsize < _VALUE_BYTES:
            result = tensors[eqn.results[0]]
            readers = [graph.program.equations[c] for c in graph.values.consumers[result.index]]
            casts = [e for e in readers if e.name == "convert_element_type" and e.params["new_dtype"] == "float32"]
            num_bytes = _VALUE_BYTES * result.num_elements if casts else 0
            last = max((read_end[e.index] for e in casts), default=last)
        else:
            continue
        if num_bytes:
            found.append(PoolBuffer(tensor=result.index, num_bytes=num_bytes, first=first, last=last))
    return tuple(found)


def waits_for_gradient(eqn: Equation, t: int, target: Target) -> bool:
    """Whether an operand of an equation is the pooled one, held back until the gradient is computed."""
    return POOLING_INDICES.applies_to(target) and eqn.name == UNPOOLING and t == eqn.operands[1]


def is_disjoint(eqn: Equation) -> bool:
    """Whether the windows of a pooling do not overlap: their operands are computed once, so inside of them."""
    if eqn.name not in ("reduce_window_max", "reduce_window_min", "reduce_window_sum", UNPOOLING):
        return False
    sizes, strides = eqn.params["window_dimensions"], eqn.params["window_strides"]
    return all(size <= stride for size, stride in zip(sizes, strides, strict=True))
