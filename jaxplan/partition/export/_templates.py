"""How equations are written: calls of public functions of JAX, by primitive.

In a template ``$0`` is the first operand, ``$*`` all of them, ``$1*`` those from the second on; ``$name`` is a
parameter, ``$@name`` one that names mesh axes. Names behind ``~`` are parameters that the call does not need. All other
parameters must be None, or the primitive is bound as it is.
"""

from __future__ import annotations

ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e", "bessel_i1e",
    "cbrt", "ceil", "clamp", "clz", "complex", "conj", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv",
    "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "igamma", "igammac", "imag", "is_finite", "le",
    "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter",
    "population_count", "pow", "real", "rem", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh",
})  # fmt: skip
"""Primitives that are functions of `jax.lax` of the same name and operands."""

TEMPLATES = {
    "add_any": "lax.add($0, $1)",
    "and": "lax.bitwise_and($0, $1)",
    "or": "lax.bitwise_or($0, $1)",
    "xor": "lax.bitwise_xor($0, $1)",
    "not": "lax.bitwise_not($0)",
    "copy": "jnp.copy($0)",
    "integer_pow": "lax.integer_pow($0, $y)",
    "broadcast_in_dim": "lax.broadcast_in_dim($0, $shape, $broadcast_dimensions)",
    "reshape": "lax.reshape($0, $new_sizes)",
    "transpose": "lax.transpose($0, $permutation)",
    "squeeze": "lax.squeeze($0, $dimensions)",
    "rev": "lax.rev($0, $dimensions)",
    "convert_element_type": "lax.convert_element_type($0, $new_dtype) ~weak_type",
    "bitcast_convert_type": "lax.bitcast_convert_type($0, $new_dtype)",
    "reduce_precision": "lax.reduce_precision($0, $exponent_bits, $mantissa_bits)",
    "round": "lax.round($0, $rounding_method)",
    "reduce_sum": "lax.reduce_sum($0, $axes)",
    "reduce_max": "lax.reduce_max($0, $axes)",
    "reduce_min": "lax.reduce_min($0, $axes)",
    "reduce_prod": "lax.reduce_prod($0, $axes)",
    "reduce_and": "lax.reduce_and($0, $axes)",
    "reduce_or": "lax.reduce_or($0, $axes)",
    "dot_general": "lax.dot_general($0, $1, $dimension_numbers, precision=$precision, "
    "preferred_element_type=$preferred_element_type)",
    "ragged_dot_general": "lax.ragged_dot_general($0, $1, $2, $ragged_dot_dimension_numbers, precision=$precision, "
    "preferred_element_type=$preferred_element_type, group_offset=$group_offset)",
    "conv_general_dilated": "lax.conv_general_dilated($0, $1, $window_strides, $padding, lhs_dilation=$lhs_dilation, "
    "rhs_dilation=$rhs_dilation, dimension_numbers=$dimension_numbers, feature_group_count=$feature_group_count, "
    "batch_group_count=$batch_group_count, precision=$precision, preferred_element_type=$preferred_element_type)",
    "iota": "lax.broadcasted_iota($dtype, $shape, $dimension)",
    "concatenate": "lax.concatenate([$*], $dimension)",
    "pad": "lax.pad($0, $1, $padding_config)",
    "slice": "lax.slice($0, $start_indices, $limit_indices, $strides)",
    "dynamic_slice": "lax.dynamic_slice($0, [$1*], $slice_sizes)",
    "dynamic_update_slice": "lax.dynamic_update_slice($0, $1, [$2*])",
    "gather": "lax.gather($0, $1, $dimension_numbers, $slice_sizes, unique_indices=$unique_indices, "
    "indices_are_sorted=$indices_are_sorted, mode=$mode, fill_value=$fill_value)",
    **{
        name: f"lax.{name.replace('-', '_')}($0, $1, $2, $dimension_numbers, indices_are_sorted=$indices_are_sorted, "
        "unique_indices=$unique_indices, mode=$mode) ~update_jaxpr ~update_consts"
        for name in ("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max")
    },
    "optimization_barrier": "lax.optimization_barrier(($*,))",
    "name": "checkpoint_name($0, $name)",
    "layout_constraint": "with_layout_constraint($0, $layout)",
    "psum": "lax.psum($0, $@axes)",
    "pmax": "lax.pmax($0, $@axes)",
    "pmin": "lax.pmin($0, $@axes)",
    "all_gather": "lax.all_gather($0, $@axis_name, axis=$all_gather_dimension, tiled=$tiled) ~axis_size",
    "reduce_scatter": "lax.psum_scatter($0, $@axis_name, scatter_dimension=$scatter_dimension, tiled=$tiled) "
    "~axis_size",
    "all_to_all": "lax.all_to_all($0, $@axis_name, $split_axis, $concat_axis, tiled=$tiled)",
    "ppermute": "lax.ppermute($0, $@axis_name, $perm)",
    "axis_index": "lax.axis_index($@axis_name)",
    "random_wrap": "jax.random.wrap_key_data($0, impl=$impl)",
    "random_unwrap": "jax.random.key_data($0)",
}

IMPORTS = {
    "name": ("jax.ad_checkpoint", "checkpoint_name"),
    "layout_constraint": ("jax.experimental.layout", "with_layout_constraint"),
}

TUPLES = frozenset({"optimization_barrier"})
"""Templates that give a tuple."""
ONE_OPERAND = ("psum", "pmax", "pmin", "all_gather", "reduce_scatter", "all_to_all", "ppermute")
"""Collectives of `jax.lax` that take one array, where their primitives take several."""
