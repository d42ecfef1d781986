"""The arithmetic of one equation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxplan.ir import Equation, OperatorRule, Tensor


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
    windows = zip(
        in_spec[2:], kernel_spec[2:], out_spec[2:], params["window_strides"], params["padding"],
        params["lhs_dilation"], params["rhs_dilation"], strict=True,
    )  # fmt: skip
    for i, k, o, stride, (before, _), input_dilation, kernel_dilation in windows:
        positions = np.arange(outputs[o])[:, None] * stride + np.arange(kernel[k]) * kernel_dilation - before
        exists = (
            (positions >= 0) & (positions < inputs[i] * input_dilation) & (positions % input_dilation == 0)
        )
        count *= int(np.count_nonzero(exists))
    return count
