"""Buffers of max pooling and its gradient beside their operands and results.

XLA makes the gradient of two operators. One slides over the operand once more and writes where each maximum was: one
32-bit index for each dimension, and beside them the maximum, in float32 where it has 16 bits, which nobody reads. The
other scatters the gradient to these places of a buffer of zeros, which is the result.
https://github.com/openxla/xla/blob/main/xla/service/select_and_scatter_expander.cc

The lowering lets the first wait for the gradient, and gives each result zeros of its own (docs/lowering.md).

Windows over 16 bits are computed in float32. Consumers that upcast (a norm) read the float32 result, so both stay
live.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxplan.ir import Equation
from jaxplan.xla._effects import Temporary
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import XLA, CompilerRule
from jaxplan.xla._target import Target

UNPOOLING = "select_and_scatter_add"
_POOLINGS = ("reduce_window_max", "reduce_window_min")
_INDEX_BYTES = 4
_VALUE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBuffer(Temporary):
    """A buffer that is split like the result of a pooling or of its gradient.

    Attributes:
      tensor: that result.
      num_bytes: global.
      first, last: equations between which it lives.
    """

    tensor: int
    num_bytes: int
    first: int
    last: int


def _indices(facts: Facts) -> Iterator[PoolBuffer]:
    """The places of the maxima, and their values where they take more than the result, which is made later."""
    for eqn in facts.equations:
        if eqn.name == UNPOOLING:
            source, result = (facts.tensors[t] for t in (eqn.operands[0], eqn.results[0]))
            places = _INDEX_BYTES * len(source.shape) * source.num_elements
            values = max(_VALUE_BYTES, source.itemsize) * source.num_elements
            num_bytes = places + max(0, values - result.num_bytes)
            if num_bytes:
                yield PoolBuffer(tensor=result.index, num_bytes=num_bytes, first=eqn.index, last=eqn.index)


def _in_float32(facts: Facts) -> Iterator[PoolBuffer]:
    """Results of 16 bits, in float32 until the last reader that casts them."""
    for eqn in (e for e in facts.equations if e.name in _POOLINGS):
        result = facts.tensors[eqn.results[0]]
        if result.itemsize < _VALUE_BYTES:
            readers = (e for e in facts.readers(result.index) if e.name == "convert_element_type")
            ends = [facts.read_end[e.index] for e in readers if e.params["new_dtype"] == "float32"]
            num_bytes = _VALUE_BYTES * result.num_elements
            if ends and num_bytes:
                yield PoolBuffer(tensor=result.index, num_bytes=num_bytes, first=eqn.index, last=max(ends))


def waits_for_gradient(eqn: Equation, t: int, target: Target) -> bool:
    """Whether an operand of an equation is the pooled one, behind a barrier until the gradient is computed."""
    return target.scatters_pooling_gradients and eqn.name == UNPOOLING and t == eqn.operands[1]


def is_disjoint(eqn: Equation) -> bool:
    """Whether the windows of a pooling do not overlap: their operands are computed once, so inside of them."""
    if eqn.name not in ("reduce_window_max", "reduce_window_min", "reduce_window_sum", UNPOOLING):
        return False
    sizes, strides = eqn.params["window_dimensions"], eqn.params["window_strides"]
    return all(size <= stride for size, stride in zip(sizes, strides, strict=True))


_POOLING = f"{XLA}service/select_and_scatter_expander.cc"
POOLING_INDICES = CompilerRule(
    name="pooling-gradients-write-indices",
    backends=("gpu",),
    stage="layouts",
    does="The gradient of max pooling writes an index for each dimension of each maximum, and the maxima again.",
    source=_POOLING,
    made_after=("vgg", "unet"),
    test="tests/xla/test_pooling.py::test_places_and_values_of_the_maxima",
    find=_indices,
)
POOLING_IN_FLOAT32 = CompilerRule(
    name="poolings-of-16-bits-are-float32",
    backends=("gpu",),
    stage="layouts",
    does="Max pooling over 16 bits is computed in float32, which is kept beside the result for readers that cast it.",
    source=_POOLING,
    made_after=("densenet",),
    test="tests/xla/test_pooling.py::test_results_are_there_in_float32_for_whom_casts_them",
    find=_in_float32,
)
