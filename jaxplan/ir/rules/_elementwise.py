"""Elementwise operators: operands and results share every dimension; scalars may stand for any shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxplan.core._compat import is_key_dtype
from jaxplan.ir._registry import Aval, Avals, Params, register_rule
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir.rules._builder import Factors, broadcast_dims

_Linear = tuple[tuple[int, ...], ...]

_NONLINEAR = [
    "abs",
    "acos",
    "acosh",
    "and",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bessel_i0e",
    "bessel_i1e",
    "cbrt",
    "ceil",
    "clz",
    "cos",
    "cosh",
    "digamma",
    "eq",
    "eq_to",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "from_edtype",
    "ge",
    "gt",
    "is_finite",
    "le",
    "le_to",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "logistic",
    "lt",
    "lt_to",
    "max",
    "min",
    "mulhi",
    "ne",
    "nextafter",
    "not",
    "one_minus_square",
    "or",
    "polygamma",
    "polynomial",
    "population_count",
    "pow",
    "rem",
    "round",
    "rsqrt",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "to_edtype",
    "xor",
    "zeta",
]
# Loops until the last element has converged: split by the compiler, each trip would ask all devices.
_ITERATED = ["igamma", "igamma_grad_a", "igammac", "regularized_incomplete_beta"]
UNARY_LINEAR = [
    "neg",
    "copy",
    "copy_p",
    "real",
    "imag",
    "conj",
    "reduce_precision",
    "stop_gradient",
    "name",
    "layout_constraint",
    "mesh_cast",
    "reshard",
    "relayout",
    "with_memory_space_constraint",
    "xla_metadata_value",
]
JOINTLY_LINEAR = ("add", "add_any", "sub", "complex")


def _elementwise_rule(
    in_avals: Avals, out_avals: Avals, linear: _Linear = (), manual: bool = False
) -> OperatorRule:
    factors = Factors()
    dims = factors.add_all(out_avals[0].shape)
    return factors.rule(
        [broadcast_dims(aval.shape, dims) for aval in in_avals],
        [broadcast_dims(aval.shape, dims) for aval in out_avals],
        "elementwise",
        linear,
        manual=manual,
    )


@register_rule(*_NONLINEAR)
def nonlinear_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``exp``, ``max``, comparisons ...: ``i j, i j -> i j``."""
    return _elementwise_rule(in_avals, out_avals)


@register_rule(*_ITERATED)
def iterated_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Incomplete gamma and beta functions: every device stops when its own part has converged."""
    return _elementwise_rule(in_avals, out_avals, manual=True)


@register_rule(*UNARY_LINEAR)
def unary_linear_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``neg``, copies, annotations: a partial sum stays one."""
    return _elementwise_rule(in_avals, out_avals, ((0,),))


@register_rule(*JOINTLY_LINEAR)
def jointly_linear_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``add``, ``sub``: a partial sum only if both operands are one."""
    return _elementwise_rule(in_avals, out_avals, ((0, 1),))


@register_rule("mul")
def mul_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """A product is linear in each operand by itself."""
    return _elementwise_rule(in_avals, out_avals, ((0,), (1,)))


@register_rule("div")
def div_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """A quotient is linear in the numerator; of integers it rounds, so it is not."""
    is_exact = np.issubdtype(out_avals[0].dtype, np.inexact) or _is_extended_float(out_avals[0].dtype)
    return _elementwise_rule(in_avals, out_avals, ((0,),) if is_exact else ())


@register_rule("integer_pow")
def integer_pow_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``x ** y`` for a constant integer ``y``; linear for ``y == 1``."""
    return _elementwise_rule(in_avals, out_avals, ((0,),) if params["y"] == 1 else ())


@register_rule("convert_element_type")
def convert_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """A cast is linear, up to rounding, unless it truncates to integers or starts from truth values."""
    return _elementwise_rule(
        in_avals, out_avals, ((0,),) if _is_linear_cast(in_avals[0], out_avals[0]) else ()
    )


@register_rule("select_n")
def select_n_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Operand 0 chooses among the others, in which the choice is jointly linear; it may be a scalar."""
    return _elementwise_rule(in_avals, out_avals, (tuple(range(1, len(in_avals))),))


@register_rule("clamp")
def clamp_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Lower bound, value, upper bound; the bounds may be scalars."""
    return _elementwise_rule(in_avals, out_avals)


@register_rule("optimization_barrier", "device_put")
def barrier_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Result ``i`` is operand ``i``; operands share nothing."""
    factors = Factors()
    tensors = [factors.add_all(aval.shape) for aval in in_avals]
    linear = (tuple(range(len(in_avals))),) if in_avals else ()
    return factors.rule(tensors, tensors, "elementwise", linear)


@register_rule("tie")
def tie_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """The second operand, once the first is known, of which nothing else is known."""
    factors = Factors()
    first = factors.add_except(in_avals[0].shape, range(len(in_avals[0].shape)))
    dims = factors.add_all(out_avals[0].shape)
    return factors.rule([first, dims], [dims], "elementwise", ((1,),))


def _is_linear_cast(source: Aval, target: Aval) -> bool:
    if is_key_dtype(source.dtype) or is_key_dtype(target.dtype):
        return False
    if np.dtype(source.dtype).kind == "b":
        return False
    source_is_integer = np.issubdtype(source.dtype, np.integer)
    target_is_integer = np.issubdtype(target.dtype, np.integer)
    return np.dtype(target.dtype).kind != "b" and (source_is_integer or not target_is_integer)


def _is_extended_float(dtype: Any) -> bool:
    """bfloat16 and the 8-bit floats are not NumPy's `inexact`."""
    return (
        not is_key_dtype(dtype)
        and np.dtype(dtype).kind not in "biuc"
        and not np.issubdtype(dtype, np.integer)
    )
