"""Operators that move elements and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxplan.ir._registry import Avals, Params, register_local_params, register_rule
from jaxplan.ir._rule import OperatorRule, Shape
from jaxplan.ir.rules._builder import (
    Factors,
    axes_param,
    broadcast_dims,
    index_of,
    leading_dims_rule,
    resized_dims,
)
from jaxplan.ir.rules._reshape import reshape_dims

_LINEAR = ((0,),)


@register_rule("reshape")
def reshape_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``(i j) k -> i (j k)``: the dimensions are cut into common factors, see `reshape_dims`.

    With ``dimensions`` (a grouped convolution's gradient has it) the operand is transposed first.
    """
    factors, shape = Factors(), in_avals[0].shape
    order = params.get("dimensions") or range(len(shape))
    transposed, result = reshape_dims(factors, tuple(shape[axis] for axis in order), out_avals[0].shape)
    operand = [transposed[list(order).index(axis)] for axis in range(len(shape))]
    return factors.rule([tuple(operand)], [result], "shape", _LINEAR)


@register_local_params("reshape")
def reshape_params(params: Params, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]) -> dict[str, Any]:
    """The shape of a piece of the result."""
    return {**params, "new_sizes": tuple(out_shapes[0])}


@register_rule("squeeze")
def squeeze_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``1 i -> i``."""
    shape = in_avals[0].shape
    dropped = {index_of(axis, len(shape)) for axis in params["dimensions"]}
    factors = Factors()
    dims = factors.add_all(shape)
    kept = tuple(dim for axis, dim in enumerate(dims) if axis not in dropped)
    return factors.rule([dims], [kept], "shape", _LINEAR)


@register_rule("transpose")
def transpose_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``i j k -> k i j``."""
    factors = Factors()
    dims = factors.add_all(in_avals[0].shape)
    return factors.rule([dims], [tuple(dims[axis] for axis in params["permutation"])], "shape", _LINEAR)


@register_rule("broadcast_in_dim")
def broadcast_in_dim_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``j -> i j``: new dimensions of the result come for nothing in any split."""
    factors = Factors()
    dims = factors.add_all(out_avals[0].shape)
    operand = broadcast_dims(in_avals[0].shape, tuple(dims[axis] for axis in params["broadcast_dimensions"]))
    return factors.rule([operand, *((),) * (len(in_avals) - 1)], [dims], "shape", _LINEAR)


@register_local_params("broadcast_in_dim", "broadcast_to", "empty")
def shape_params(params: Params, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]) -> dict[str, Any]:
    """The shape of a piece of the result."""
    return {**params, "shape": tuple(out_shapes[0])}


@register_rule("broadcast_to")
def broadcast_to_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """NumPy's broadcasting: dimensions are aligned at the end."""
    factors = Factors()
    dims = factors.add_all(out_avals[0].shape)
    shape = in_avals[0].shape
    return factors.rule([broadcast_dims(shape, dims[len(dims) - len(shape) :])], [dims], "shape", _LINEAR)


@register_rule("slice", "dynamic_slice")
def slice_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Whole where it cuts; a dimension that is kept whole is mapped. Start indices are scalars."""
    factors = Factors()
    operand, result = resized_dims(factors, in_avals[0].shape, out_avals[0].shape)
    return factors.rule([operand, *((),) * (len(in_avals) - 1)], [result], "shape", _LINEAR)


@register_local_params("slice")
def slice_params(params: Params, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]) -> dict[str, Any]:
    """A dimension that is kept whole is kept whole of a piece."""
    starts, limits = params["start_indices"], params["limit_indices"]
    strides = params["strides"] or (1,) * len(starts)
    kept = [
        a == 0 and s == 1 and i == o for a, s, i, o in zip(starts, strides, in_shapes[0], out_shapes[0])
    ]
    return {
        **params,
        "limit_indices": tuple(n if k else b for k, n, b in zip(kept, in_shapes[0], limits)),
    }


@register_local_params("dynamic_slice")
def dynamic_slice_params(
    params: Params, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]
) -> dict[str, Any]:
    """The lengths of a piece of the result; a dimension that is split is taken in full, from its start."""
    return {**params, "slice_sizes": tuple(out_shapes[0])}


@register_rule("dynamic_update_slice")
def dynamic_update_slice_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Whole where the update is smaller than the operand; operands: tensor, update, scalar start indices."""
    shape, update_shape = in_avals[0].shape, in_avals[1].shape
    factors = Factors()
    dims = factors.add_except(shape, [axis for axis, size in enumerate(update_shape) if size != shape[axis]])
    update = tuple(
        dim if size == full else factors.whole(size) for dim, size, full in zip(dims, update_shape, shape)
    )
    return factors.rule([dims, update, *((),) * (len(in_avals) - 2)], [dims], "shape", ((0, 1),))


@register_rule("pad")
def pad_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Whole where it is padded or cut, even if the size stays; operand 1 is the scalar padding value."""
    factors = Factors()
    operand, result = [], []
    for in_size, out_size, config in zip(in_avals[0].shape, out_avals[0].shape, params["padding_config"]):
        is_padded = any(config)
        operand.append(factors.add(in_size, "whole" if is_padded else "map"))
        result.append(factors.whole(out_size) if is_padded else operand[-1])
    return factors.rule([tuple(operand), ()], [tuple(result)], "shape", ((0, 1),))


@register_rule("concatenate")
def concatenate_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Whole along the dimension, where every operand has its own size."""
    axis = index_of(params["dimension"], len(out_avals[0].shape))
    factors = Factors()
    result = factors.add_except(out_avals[0].shape, (axis,))
    operands = [(*result[:axis], factors.whole(aval.shape[axis]), *result[axis + 1 :]) for aval in in_avals]
    return factors.rule(operands, [result], "shape", (tuple(range(len(in_avals))),))


@register_rule("split")
def split_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Whole along the axis, where every result has its own size."""
    axis = index_of(params["axis"], len(in_avals[0].shape))
    factors = Factors()
    dims = factors.add_except(in_avals[0].shape, (axis,))
    results = [(*dims[:axis], factors.whole(aval.shape[axis]), *dims[axis + 1 :]) for aval in out_avals]
    return factors.rule([dims], results, "shape", _LINEAR)


@register_rule("stack")
def stack_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """A new dimension of the result, whole; everything else is shared."""
    axis = index_of(axes_param(params, "axis", "dimension")[0], len(out_avals[0].shape))
    factors = Factors()
    result = factors.add_except(out_avals[0].shape, (axis,))
    operand = (*result[:axis], *result[axis + 1 :])
    return factors.rule([operand] * len(in_avals), [result], "shape", (tuple(range(len(in_avals))),))


@register_rule("unstack")
def unstack_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """One dimension of the operand falls apart into results, whole."""
    axis = index_of(axes_param(params, "axis", "dimension")[0], len(in_avals[0].shape))
    factors = Factors()
    dims = factors.add_except(in_avals[0].shape, (axis,))
    return factors.rule([dims], [(*dims[:axis], *dims[axis + 1 :])] * len(out_avals), "shape", _LINEAR)


@register_rule("rev")
def rev_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Whole along the reversed dimensions: their parts would change places."""
    factors = Factors()
    dims = factors.add_except(in_avals[0].shape, params["dimensions"])
    return factors.rule([dims], [dims], "shape", _LINEAR)


@register_rule("tile")
def tile_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Whole where it repeats; dimensions are aligned at the end."""
    factors = Factors()
    out_shape = out_avals[0].shape
    num_new = len(out_shape) - len(in_avals[0].shape)
    operand, result = resized_dims(factors, in_avals[0].shape, out_shape[num_new:])
    return factors.rule([operand], [(*factors.add_all(out_shape[:num_new]), *result)], "shape", _LINEAR)


@register_rule("bitcast_convert_type")
def bitcast_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Bits read as another type; where the width changes there is one more, whole, dimension on one side."""
    num_leading = min(len(in_avals[0].shape), len(out_avals[0].shape))
    return leading_dims_rule(in_avals, out_avals, num_leading=num_leading, family="elementwise")


@register_rule("iota", "empty", "empty2", "platform_index")
def source_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """A value made from nothing, in any split."""
    factors = Factors()
    dims = [factors.add_all(aval.shape) for aval in out_avals]
    return factors.rule([((),) * len(aval.shape) for aval in in_avals], dims, "source")
