"""The arithmetic of one equation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxplan.ir import Equation, OperatorRule, SplitWindow, Tensor


def flops_of_equation(eqn: Equation, rule: OperatorRule, tensors: Sequence[Tensor]) -> float:
    """Floating-point operations of a contraction or convolution, two per multiply-add; 0 for everything else.

    A convolution multiplies where there is input: neither the padding nor the holes of a dilated input count, as in
    XLA's ``HloCostAnalysis``.
    """
    if rule.family == "contraction":
        return 2.0 * math.prod(f.size for f in rule.factors)
    if rule.family == "convolution":
        shapes = [tensors[t].shape for t in (*eqn.operands[:2], eqn.results[0])]
        return 2.0 * _convolution_products(eqn.params, *shapes)
    return 0.0


def _convolution_products(
    params: Mapping[str, Any], inputs: tuple[int, ...], kernel: tuple[int, ...], outputs: tuple[int, ...]
) -> int:
    in_spec, kernel_spec, out_spec = params["dimension_numbers"]
    count = outputs[out_spec[0]] * kernel[kernel_spec[0]] * kernel[kernel_spec[1]]
    for axis, (i, k, o) in enumerate(zip(in_spec[2:], kernel_spec[2:], out_spec[2:], strict=True)):
        count *= _pairs(params, axis, inputs[i], kernel[k], outputs[o], params["padding"][axis][0])
    return count


def _pairs(
    params: Mapping[str, Any], axis: int, num_inputs: int, num_kernel: int, num_outputs: int, before: int
) -> int:
    """Positions of outputs and of the kernel, along one dimension of the image, that meet an element of the input."""
    stride, kernel_dilation = params["window_strides"][axis], params["rhs_dilation"][axis]
    dilation = params["lhs_dilation"][axis]
    positions = np.arange(num_outputs)[:, None] * stride + np.arange(num_kernel) * kernel_dilation - before
    exists = (positions >= 0) & (positions < num_inputs * dilation) & (positions % dilation == 0)
    return int(np.count_nonzero(exists))


def work_beside_halos(
    eqn: Equation, rule: OperatorRule, tensors: Sequence[Tensor], split: SplitWindow, parts: int
) -> float:
    """What a device does of a convolution whose image is cut into parts, over an equal share of the whole.

    Where blocks meet there is no padding: windows multiply there with what came from the neighbour, and those of the
    outer blocks with the zeros that stand for it, so that every device runs the same program.
    """
    halo = split.window.halo(parts)
    if parts == 1 or rule.family != "convolution" or halo is None:
        return 1.0
    lhs, rhs, out = (tensors[t].shape for t in (*eqn.operands[:2], eqn.results[0]))
    numbers = eqn.params["dimension_numbers"]
    axis = next(a for a, d in enumerate(numbers[0][2:]) if split.factor in rule.operands[0][d])
    num_inputs, num_kernel, num_outputs = (
        shape[spec[2 + axis]] for shape, spec in zip((lhs, rhs, out), numbers, strict=True)
    )
    whole = _pairs(eqn.params, axis, num_inputs, num_kernel, num_outputs, eqn.params["padding"][axis][0])
    block = num_inputs // parts + halo.before + halo.after
    if halo.starts:  # what the windows read is cut out
        block = split.window.reach(split.window.out_size // parts)
    if split.factor in rule.operands[1][numbers[1][2 + axis]]:  # a weight gradient: what is cut is its kernel
        num_kernel //= parts
    else:
        num_outputs //= parts
    own = _pairs(eqn.params, axis, block, num_kernel, num_outputs, halo.padding[0])
    return parts * own / whole
