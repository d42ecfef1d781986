"""What the gradient of max pooling holds beside its operands and its result.

XLA makes it of two operators. One slides over the operand once more and writes where each maximum was: one 32-bit index
for each dimension, and beside them the maximum, in float32 where it has 16 bits, which nobody reads. The other scatters
the gradient to these places of a buffer of zeros, whose edges are wider where windows begin before the operand does.
https://github.com/openxla/xla/blob/main/xla/service/select_and_scatter_expander.cc

Zeros are a constant, of which the compiler keeps one of each shape. A rectifier's are those of the pooling behind it,
and because a scatter writes to a buffer, they are one from the first that reads them on, which writes them beside its
result, to the last, the gradient of the rectifier; the scatter then writes to a copy. Zeros that only scatters read are
written for all of one shape where the first begins (`cleared_together`). Seen in compiled ResNets, VGGs and small
programs with and without rectifiers, norms and padding.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.cost._put_off import is_gradient
from jaxplan.ir import CONTRACTION_FAMILIES, Equation, StepGraph, Tensor
from jaxplan.mesh import ChipSpec

UNPOOLING = "select_and_scatter_add"
UPDATES_A_WAIT = 50
"""Fitted: while the compiler waits for a statistic that is summed it makes updates of parameters, and what is ready
early when there are no more of them. One input gradient for every so many arrays of state lies between the places of
the maxima and what is scattered there: one in a VGG of eight layers (42), up to five in ResNet-50 (267), seven and nine
in Inception-v3 (472)."""
_INDEX_BYTES = 4
_VALUE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBuffer:
    """Something that is split like the result of the gradient of a pooling.

    Attributes:
      tensor: that result.
      num_bytes: global.
      first, last: equations between which it lives.
    """

    tensor: int
    num_bytes: int
    first: int
    last: int


def pool_buffers(
    graph: StepGraph, chip: ChipSpec, read_end: Sequence[int], birth: list[int]
) -> tuple[PoolBuffer, ...]:
    """Places, values and shared zeros of all gradients of max pooling; changes ``birth`` of their results.

    What a gradient is scattered to was seen to be cleared right after the places are written.
    """
    if not chip.is_gpu:
        return ()
    found: list[PoolBuffer] = []
    shared: set[Hashable] = set()
    for eqn in graph.program.equations:
        if eqn.name != UNPOOLING:
            continue
        source, (result,) = graph.program.tensors[eqn.operands[0]], eqn.results
        first = _ahead(graph, eqn)
        birth[result] = min(first + 1, eqn.index)
        places = _INDEX_BYTES * len(source.shape) * source.num_elements
        values = max(_VALUE_BYTES, source.itemsize) * source.num_elements
        found.append(PoolBuffer(tensor=result, num_bytes=places, first=first, last=eqn.index))
        found.append(PoolBuffer(tensor=result, num_bytes=values, first=first, last=first))
        zeros, readers = zeros_of(graph, eqn), readers_of_zeros(graph, eqn)
        if readers and zeros not in shared:
            shared.add(zeros)
            size, last = math.prod(zeros[0]) * source.itemsize, max(read_end[e] for e in readers)
            found.append(PoolBuffer(tensor=result, num_bytes=size, first=min(*readers, eqn.index), last=last))
    return tuple(found)


def zeros_of(graph: StepGraph, eqn: Equation) -> tuple[tuple[int, ...], str, int]:
    """Shape, type and loop of the zeros that the gradient of a pooling is scattered to; equal ones are one constant."""
    result = graph.program.tensors[eqn.results[0]]
    before = any(low for low, _ in eqn.params["padding"])
    pads = [sum(pad) if before else 0 for pad in eqn.params["padding"]]  # elements behind the last are cut off at once
    return tuple(n + p for n, p in zip(result.shape, pads, strict=True)), str(result.dtype), eqn.region


def readers_of_zeros(graph: StepGraph, eqn: Equation) -> list[int]:
    """Equations that read zeros of the shape that the gradient of a pooling is scattered to."""
    shape, dtype, region = zeros_of(graph, eqn)
    tensors = graph.program.tensors
    return [
        other.index
        for other in graph.program.equations
        if graph.rules[other.index].family == "elementwise"
        and other.region == region
        and tensors[other.results[0]].shape == shape
        and any(str(tensors[t].dtype) == dtype and _is_zero(graph, t) for t in other.operands)
    ]


def is_disjoint(eqn: Equation) -> bool:
    """Whether the windows of a pooling do not overlap: what they read is computed once, so inside of them."""
    if eqn.name not in ("reduce_window_max", "reduce_window_min", "reduce_window_sum", UNPOOLING):
        return False
    sizes, strides = eqn.params["window_dimensions"], eqn.params["window_strides"]
    return all(size <= stride for size, stride in zip(sizes, strides, strict=True))


def _is_zero(graph: StepGraph, t: int) -> bool:
    """Whether a tensor is zero everywhere: a literal, or the broadcast of one."""
    tensor: Tensor = graph.program.tensors[t]
    if tensor.value is not None:
        return tensor.num_elements == 1 and not np.any(np.asarray(tensor.value))
    index = graph.values.producer[t]
    eqn = graph.program.equations[index] if index >= 0 else None
    return eqn is not None and eqn.name == "broadcast_in_dim" and _is_zero(graph, eqn.operands[0])


def _ahead(graph: StepGraph, eqn: Equation) -> int:
    """The equation at which the places of the maxima are written."""
    products = [
        e.index
        for e in graph.program.equations
        if e.phase == "backward"
        and e.region == eqn.region
        and graph.rules[e.index].family in CONTRACTION_FAMILIES
        and not is_gradient(graph, e.results[0])
    ]
    before = bisect.bisect(products, eqn.index)
    updates = sum(group.kind == "state" for group in graph.grouping.groups)
    return products[max(0, before - max(1, round(updates / UPDATES_A_WAIT)))] if before else eqn.index
