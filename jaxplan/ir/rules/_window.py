"""Operators over sliding windows: convolution, pooling and their transposes."""

from __future__ import annotations

from collections.abc import Sequence

from jaxplan.ir._halo import Window
from jaxplan.ir._registry import Avals, Params, register_local_params, register_rule
from jaxplan.ir._rule import Dimension, OperatorRule, Shape, TensorFactors
from jaxplan.ir.rules._builder import Factors


def _window_pair(
    factors: Factors, window: Window, operands: tuple[int, ...], *, scatters: bool = False
) -> tuple[Dimension, Dimension]:
    """The dimension of operand and result under a window; ``operands`` are those that a halo extends.

    Windows that lie side by side (patches; a window of one element) map it, ``(i k) -> i`` with k whole. Otherwise
    both sides can be cut into as many equal parts as have a halo; where none do, it is whole.
    """
    if window.maps:
        shared = factors.add(window.out_size)
        return shared + factors.whole(window.stride), shared
    shared = factors.add_window(window, operands, scatters=scatters)
    return (shared, shared) if shared else (factors.whole(window.in_size), factors.whole(window.out_size))


@register_rule("conv_general_dilated")
def convolution_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``n (g c) h w, (g o) c kh kw -> n (g o) h w``, in the order of the dimension numbers.

    n, o and the feature groups g are mapped, c is reduced, the kernel's dimensions are whole, the image's are
    windows (`_image_dims`). With batch groups (the weight gradient of a grouped convolution) it is
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
        lhs[lhs_axis], rhs[rhs_axis], out[out_axis] = _image_dims(
            factors, (lhs_shape[lhs_axis], rhs_shape[rhs_axis], out_shape[out_axis]), params, axis
        )
    tensors, is_grouped = [_ordered(lhs), _ordered(rhs)], feature_groups * batch_groups > 1
    return factors.rule(tensors, [_ordered(out)], "convolution", ((0,), (1,)), manual=is_grouped)


def _image_dims(
    factors: Factors, sizes: tuple[int, int, int], params: Params, axis: int
) -> tuple[Dimension, Dimension, Dimension]:
    """Dimensions of operand, kernel and result along one dimension of the image.

    Result ``o`` reads ``o stride + k kernel_dilation - before`` for all k. A kernel that is larger than the result is
    the cotangent of a weight gradient: it is cut as the image is, and the parts of the result are added up.
    """
    in_size, kernel, out_size = sizes
    stride, spacing = params["window_strides"][axis], params["rhs_dilation"][axis]

    def sliding(size: int, step: int, stride: int, num_windows: int) -> Window:
        """So many windows of elements that stand ``step`` apart."""
        return Window(
            extent=(size - 1) * step + 1,
            stride=stride,
            dilation=params["lhs_dilation"][axis],
            padding=tuple(params["padding"][axis]),
            in_size=in_size,
            out_size=num_windows,
        )

    window = sliding(kernel, spacing, stride, out_size)
    if kernel > out_size and not window.maps:
        cut = factors.add_window(sliding(out_size, stride, spacing, kernel), reducer="sum")
        return cut or factors.whole(in_size), cut or factors.whole(kernel), factors.whole(out_size)
    image, result = _window_pair(factors, window, (0,))
    if window.maps:  # the compiler was seen to split strided ones wrongly where features are split as well
        factors.on_pieces(result, window)
    return image, factors.whole(kernel), result


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
    operand, result = _window_dims(factors, in_avals[0].shape, out_avals[0].shape, params, (0,))
    return factors.rule([operand], [result], "window", ((0,),))


@register_rule("reduce_window_max", "reduce_window_min", "select_and_gather_add")
def pool_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Pooling: windows where more than one element is seen, mapped elsewhere; every operand has one shape."""
    factors = Factors()
    every = tuple(range(len(in_avals)))
    operand, result = _window_dims(factors, in_avals[0].shape, out_avals[0].shape, params, every)
    return factors.rule([operand] * len(in_avals), [result] * len(out_avals), "window")


@register_rule("reduce_window")
def generic_pool_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """`lax.reduce_window` with a function of the user: tensors, then as many scalar initial values."""
    factors = Factors()
    num_tensors = len(out_avals)
    every = tuple(range(num_tensors))
    operand, result = _window_dims(factors, in_avals[0].shape, out_avals[0].shape, params, every)
    scalars: list[TensorFactors] = [()] * (len(in_avals) - num_tensors)
    return factors.rule([*[operand] * num_tensors, *scalars], [result] * num_tensors, "window")


@register_rule("select_and_scatter_add")
def unpool_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Gradient of max pooling: source (as the pooled result) and operand to a result like the operand.

    Linear in the source.
    """
    source, operand = in_avals
    factors = Factors()
    big_dims, small_dims = _window_dims(factors, operand.shape, source.shape, params, (0, 1), scatters=True)
    return factors.rule([small_dims, big_dims], [big_dims], "window", ((0,),))


@register_rule("select_and_scatter")
def generic_unpool_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """`select_and_scatter` with functions of the user: operand, source, scalar initial value."""
    factors = Factors()
    operand, source = _window_dims(factors, in_avals[0].shape, in_avals[1].shape, params, ())
    return factors.rule([operand, source, ()], [operand], "window")


def _window_dims(
    factors: Factors,
    in_shape: Shape,
    out_shape: Shape,
    params: Params,
    operands: tuple[int, ...],
    *,
    scatters: bool = False,
) -> tuple[TensorFactors, TensorFactors]:
    """Dimensions of operand and result of a window over every dimension; without ``operands`` no window is split."""
    ones = (1,) * len(in_shape)
    operand, result = [], []
    for axis, (in_size, out_size) in enumerate(zip(in_shape, out_shape)):
        window = Window(
            extent=(params["window_dimensions"][axis] - 1) * params.get("window_dilation", ones)[axis] + 1,
            stride=params["window_strides"][axis],
            dilation=params.get("base_dilation", ones)[axis],
            padding=tuple(params["padding"][axis]),
            in_size=in_size,
            out_size=out_size,
        )
        if operands or window.maps:
            in_dim, out_dim = _window_pair(factors, window, operands, scatters=scatters)
        else:
            in_dim, out_dim = factors.whole(in_size), factors.whole(out_size)
        operand.append(in_dim)
        result.append(out_dim)
    return tuple(operand), tuple(result)


def _ordered(dims: dict[int, Dimension]) -> TensorFactors:
    return tuple(dims[axis] for axis in range(len(dims)))
