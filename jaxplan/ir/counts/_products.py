"""Matrix products and convolutions: two operations per multiply-add."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxplan.ir._count import Count
from jaxplan.ir._count_registry import register_count
from jaxplan.ir._registry import Avals, Params

Shape = Sequence[int]


class Border(NamedTuple):
    """Zeros that are written around an image.

    Attributes:
      widths: (before, after) in each of its dimensions.
      around_output: around a convolution's result, not its operand.
      fills_holes: the holes of a dilated image are written as well.
    """

    widths: tuple[tuple[int, int], ...]
    around_output: bool
    fills_holes: bool = False


def _matrix(in_avals: Avals, multiply_adds: float) -> Count:
    return Count(matrix=((str(in_avals[0].dtype), 2.0 * multiply_adds),))


@register_count("dot_general", kind="multiply-adds")
def dot_general(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """One multiply-add per element of the result and of the contracted dimensions."""
    (contracted, _), _ = params["dimension_numbers"]
    summands = math.prod(in_avals[0].shape[axis] for axis in contracted)
    return _matrix(in_avals, math.prod(out_avals[0].shape) * summands)


@register_count("ragged_dot_general", kind="multiply-adds")
def ragged_dot_general(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Each row of the ragged dimension is multiplied with the matrix of its own group alone."""
    numbers = params["ragged_dot_dimension_numbers"]
    (_, rhs_contracted), (_, rhs_batch) = numbers.dot_dimension_numbers
    used = {*rhs_contracted, *rhs_batch, *numbers.rhs_group_dimensions}
    free = (size for axis, size in enumerate(in_avals[1].shape) if axis not in used)
    return _matrix(in_avals, math.prod(in_avals[0].shape) * math.prod(free))


@register_count("scaled_dot", kind="multiply-adds")
def scaled_dot(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """As `dot_general`; scales are applied to blocks in passing."""
    return dot_general(in_avals, out_avals, params)


@register_count("scaled_matmul", "scaled_matmul_wrapper", kind="multiply-adds")
def scaled_matmul(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """The contracted dimension is the last of both operands."""
    return _matrix(in_avals, math.prod(out_avals[0].shape) * in_avals[0].shape[-1])


@register_count("conv_general_dilated", kind="multiply-adds")
def convolution(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """One multiply-add where there is input: neither the padding nor the holes of a dilated input count, as in XLA's
    ``HloCostAnalysis`` (`convolution_products`)."""
    shapes = [aval.shape for aval in (*in_avals[:2], out_avals[0])]
    return _matrix(in_avals, convolution_products(shapes, params, None))


def convolution_products(shapes: Sequence[Shape], params: Params, border: Border | None) -> int:
    """Multiply-adds of a convolution; ``shapes``: of the image, the kernel and the result.

    The zeros of ``border`` are multiplied, those of the padding otherwise not.
    """
    _, kernel_spec, out_spec = params["dimension_numbers"]
    _, kernel, outputs = shapes
    count = outputs[out_spec[0]] * kernel[kernel_spec[0]] * kernel[kernel_spec[1]]
    for axis, (before, _) in enumerate(params["padding"]):
        count *= pairs(params, axis, *window_sizes(shapes, params, axis), before, border)
    return count


def window_sizes(shapes: Sequence[Shape], params: Params, axis: int) -> tuple[int, int, int]:
    """Elements of the input, the kernel and the output along one dimension of the image."""
    inputs, kernel, outputs = (
        shape[spec[2 + axis]] for shape, spec in zip(shapes, params["dimension_numbers"], strict=True)
    )
    return inputs, kernel, outputs


def pairs(
    params: Mapping[str, Any],
    axis: int,
    num_inputs: int,
    num_kernel: int,
    num_outputs: int,
    before: int,
    border: Border | None = None,
) -> int:
    """Positions of outputs and of the kernel, along one dimension of the image, that meet an element of the input, or
    of its border; positions of the output's border count, too."""
    stride, kernel_dilation = params["window_strides"][axis], params["rhs_dilation"][axis]
    dilation = params["lhs_dilation"][axis]
    width = border.widths[axis] if border else (0, 0)
    of_output, of_input = (width, (0, 0)) if border and border.around_output else ((0, 0), width)
    outputs = np.arange(-of_output[0], num_outputs + of_output[1])
    taps = np.arange(num_kernel) * kernel_dilation
    if border and border.fills_holes:
        num_inputs, dilation = (num_inputs - 1) * dilation + 1, 1
    positions = outputs[:, None] * stride + taps - before
    exists = (positions >= -of_input[0]) & (positions < num_inputs * dilation + of_input[1])
    return int(np.count_nonzero(exists & (positions % dilation == 0)))
