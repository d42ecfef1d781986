"""Operators over sliding windows: convolution, pooling and their transposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.ir._registry import Avals, Params, register_local_params, register_rule
from jaxplan.ir._rule import Dimension, OperatorRule, Shape, TensorFactors
from jaxplan.ir.rules._builder import Factors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """A window along one dimension: all in elements, ``extent`` with the holes of its dilation."""

    extent: int
    stride: int
    base_dilation: int
    padding: tuple[int, int]

    def dims(self, factors: Factors, in_size: int, out_size: int) -> tuple[Dimension, Dimension]:
        """The dimension of operand and result under this window.

        Windows that lie side by side (patches; a window of one element) map it, ``(i k) -> i`` with k whole.
        Otherwise both sides can be cut into as many equal parts as their greatest common divisor; with
        none, or a window larger than the image (a weight gradient), it is whole.
        """
        if self._is_disjoint and in_size == out_size * self.stride:
            shared = factors.add(out_size)
            return shared + factors.whole(self.stride), shared
        parts = math.gcd(in_size, out_size)
        if parts <= 1 or self.extent > min(in_size, out_size):
            return factors.whole(in_size), factors.whole(out_size)
        shared = factors.add(parts, "window")
        return shared, shared

    @property
    def _is_disjoint(self) -> bool:
        return self.extent <= self.stride and self.base_dilation == 1 and not any(self.padding)


@register_rule("conv_general_dilated")
def convolution_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``n (g c) h w, (g o) c kh kw -> n (g o) h w``, in the order of the dimension numbers.

    n, o and the feature groups g are mapped, c is reduced, the kernel's dimensions are whole, the image's are
    windows (`_Window.dims`). With batch groups (the weight gradient of a grouped convolution) it is
    ``(g n) c h w, (g o) c kh kw -> n (g o) h w``. Groups run on pieces, because the compiler would gather them.
    """
    numbers = params["dimension_numbers"]
    lhs_spec, rhs_spec, out_spec = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    lhs_shape, rhs_shape, out_shape = in_avals[0].shape, in_avals[1].shape, out_avals[0].shape
    feature_groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    factors = Factors()
    feature_group, batch_group = factors.add(feature_groups), factors.add(batch_groups)
    batch = factors.add(lhs_shape[lhs_spec[0]] // batch_groups)
    reduced = factors.add(rhs_shape[rhs_spec[1]], "reduce", "sum")
    out_feature = factors.add(rhs_shape[rhs_spec[0]] // (feature_groups * batch_groups))
    group = feature_group + batch_group
    lhs = {lhs_spec[0]: batch_group + batch, lhs_spec[1]: feature_group + reduced}
    rhs = {rhs_spec[0]: group + out_feature, rhs_spec[1]: reduced}
    out = {out_spec[0]: batch, out_spec[1]: group + out_feature}
    for axis, (lhs_axis, rhs_axis, out_axis) in enumerate(zip(lhs_spec[2:], rhs_spec[2:], out_spec[2:])):
        window = _Window(
            extent=(rhs_shape[rhs_axis] - 1) * params["rhs_dilation"][axis] + 1,
            stride=params["window_strides"][axis],
            base_dilation=params["lhs_dilation"][axis],
            padding=params["padding"][axis],
        )
        lhs[lhs_axis], out[out_axis] = window.dims(factors, lhs_shape[lhs_axis], out_shape[out_axis])
        rhs[rhs_axis] = factors.whole(rhs_shape[rhs_axis])
    tensors, is_grouped = [_ordered(lhs), _ordered(rhs)], feature_groups * batch_groups > 1
    return factors.rule(tensors, [_ordered(out)], "convolution", ((0,), (1,)), manual=is_grouped)


@register_local_params("conv_general_dilated")
def convolution_params(params: Params, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]) -> Params:
    """Where groups are split, a piece has fewer of them."""
    numbers = params["dimension_numbers"]
    channels = in_shapes[0][numbers.lhs_spec[1]]
    batch, out_batch = in_shapes[0][numbers.lhs_spec[0]], out_shapes[0][numbers.out_spec[0]]
    return {
        **params,
        "feature_group_count": channels // in_shapes[1][numbers.rhs_spec[1]],
        "batch_group_count": batch // out_batch,
    }


@register_rule("reduce_window_sum")
def sum_pool_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Average pooling and its kin: linear."""
    factors = Factors()
    operand, result = _window_dims(factors, in_avals[0].shape, out_avals[0].shape, params)
    return factors.rule([operand], [result], "window", ((0,),))


@register_rule("reduce_window_max", "reduce_window_min", "select_and_gather_add")
def pool_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Pooling: windows where more than one element is seen, mapped elsewhere; every operand has one shape."""
    factors = Factors()
    operand, result = _window_dims(factors, in_avals[0].shape, out_avals[0].shape, params)
    return factors.rule([operand] * len(in_avals), [result] * len(out_avals), "window")


@register_rule("reduce_window")
def generic_pool_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """`lax.reduce_window` with a function of the user: tensors, then as many scalar initial values."""
    factors = Factors()
    operand, result = _window_dims(factors, in_avals[0].shape, out_avals[0].shape, params)
    num_tensors = len(out_avals)
    scalars: list[TensorFactors] = [()] * (len(in_avals) - num_tensors)
    return factors.rule([*[operand] * num_tensors, *scalars], [result] * num_tensors, "window")


@register_rule("select_and_scatter_add")
def unpool_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Gradient of max pooling: source (as the pooled result) and operand to a result like the operand.

    Linear in the source.
    """
    source, operand = in_avals
    factors = Factors()
    big_dims, small_dims = _window_dims(factors, operand.shape, source.shape, params)
    return factors.rule([small_dims, big_dims], [big_dims], "window", ((0,),))


@register_rule("select_and_scatter")
def generic_unpool_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """`select_and_scatter` with functions of the user: operand, source, scalar initial value."""
    factors = Factors()
    operand, source = _window_dims(factors, in_avals[0].shape, in_avals[1].shape, params)
    return factors.rule([operand, source, ()], [operand], "window")


def _window_dims(
    factors: Factors, in_shape: Shape, out_shape: Shape, params: Params
) -> tuple[TensorFactors, TensorFactors]:
    """Dimensions of operand and result of a window over every dimension."""
    ones = (1,) * len(in_shape)
    operand, result = [], []
    for axis, (in_size, out_size) in enumerate(zip(in_shape, out_shape)):
        dilation = params.get("window_dilation", ones)[axis]
        window = _Window(
            extent=(params["window_dimensions"][axis] - 1) * dilation + 1,
            stride=params["window_strides"][axis],
            base_dilation=params.get("base_dilation", ones)[axis],
            padding=params["padding"][axis],
        )
        in_dim, out_dim = window.dims(factors, in_size, out_size)
        operand.append(in_dim)
        result.append(out_dim)
    return tuple(operand), tuple(result)


def _ordered(dims: dict[int, Dimension]) -> TensorFactors:
    return tuple(dims[axis] for axis in range(len(dims)))
