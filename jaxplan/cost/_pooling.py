"""What the gradient of max pooling holds beside its operands and its result.

XLA makes it of two operators. One slides over the operand once more and writes where each maximum was: one 32-bit index
for each dimension, and beside them the maximum, in float32 where it has 16 bits, which nobody reads. The other scatters
the gradient to these places of a buffer of zeros, which is the result.
https://github.com/openxla/xla/blob/main/xla/service/select_and_scatter_expander.cc

The lowering lets the first wait for the gradient, and gives each result zeros of its own (docs/lowering.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.ir import Equation, StepGraph
from jaxplan.mesh import ChipSpec

UNPOOLING = "select_and_scatter_add"
_INDEX_BYTES = 4
_VALUE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBuffer:
    """What lives while the gradient of a pooling is computed, split like its result.

    Attributes:
      tensor: that result.
      num_bytes: global.
      equation: that gradient's.
    """

    tensor: int
    num_bytes: int
    equation: int


def pool_buffers(graph: StepGraph, chip: ChipSpec) -> tuple[PoolBuffer, ...]:
    """Places of all gradients of max pooling, and values where they take more than the result, which is made later."""
    found: list[PoolBuffer] = []
    for eqn in graph.program.equations if chip.is_gpu else ():
        if eqn.name == UNPOOLING:
            source, result = (graph.program.tensors[t] for t in (eqn.operands[0], eqn.results[0]))
            places = _INDEX_BYTES * len(source.shape) * source.num_elements
            values = max(_VALUE_BYTES, source.itemsize) * source.num_elements
            num_bytes = places + max(0, values - result.num_bytes)
            found.append(PoolBuffer(tensor=result.index, num_bytes=num_bytes, equation=eqn.index))
    return tuple(found)


def waits_for_gradient(eqn: Equation, t: int, chip: ChipSpec) -> bool:
    """Whether an operand of an equation is what was pooled, held back until the gradient is there."""
    return chip.is_gpu and eqn.name == UNPOOLING and t == eqn.operands[1]


def is_disjoint(eqn: Equation) -> bool:
    """Whether the windows of a pooling do not overlap: what they read is computed once, so inside of them."""
    if eqn.name not in ("reduce_window_max", "reduce_window_min", "reduce_window_sum", UNPOOLING):
        return False
    sizes, strides = eqn.params["window_dimensions"], eqn.params["window_strides"]
    return all(size <= stride for size, stride in zip(sizes, strides, strict=True))
