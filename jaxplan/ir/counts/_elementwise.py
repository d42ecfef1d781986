"""Element-wise operators, and those that only move elements: the compiler fuses them, so memory decides their time.

Operations per element: one for a single instruction, a multiply-add too; eight for a function of the special
function unit, which gives 16 results per clock where the multiply-add units give 128 (CUDA C++ Programming Guide, table
of throughputs of native arithmetic instructions). Longer functions are polynomials: half of the FLOPs that XLA's cost
analysis counts of their lowering, and eight for each transcendental.
"""

from __future__ import annotations

import functools
import math

from jaxplan.core import _compat
from jaxplan.ir._count import Count
from jaxplan.ir._count_registry import register_count
from jaxplan.ir._registry import Avals, Params
from jaxplan.ir.rules._elementwise import JOINTLY_LINEAR, UNARY_LINEAR
from jaxplan.ir.rules._elsewhere import COLLECTIVE, ELSEWHERE

SPECIAL_OPERATIONS = 8
"""Operations that one result of the special function unit takes the time of."""

_ONE = (
    "abs and ceil clamp clz conj convert_element_type eq eq_to floor ge gt integer_pow is_finite le le_to lt lt_to "
    "max min mul mulhi ne not one_minus_square or population_count round select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign square xor"
)
_SPECIAL = "cbrt cos div exp exp2 expm1 log log1p log2 reciprocal rem rsqrt sin sqrt tan tanh"
_LONGER = {
    "acos": 18, "acosh": 36, "asin": 19, "asinh": 30, "atan": 20, "atan2": 24, "atanh": 19, "bessel_i0e": 50,
    "bessel_i1e": 50, "cosh": 18, "digamma": 61, "erf": 22, "erf_inv": 35, "erfc": 39, "lgamma": 59, "logistic": 10,
    "nextafter": 24, "polygamma": 282, "pow": 16, "sinh": 29, "zeta": 149,
}  # fmt: skip
# Loops that run until all elements have converged: (operations of a trip, trips) of each, as they are traced, for 1,000
# arguments between 0.1 and 10 in float32; a series and a continued fraction of the incomplete gamma function, and the
# continued fraction of the incomplete beta function, which runs to its limit.
_GAMMA, _GAMMA_GRADIENT = ((20, 21), (70, 16)), ((21, 23), (70, 19))
_ITERATED = {
    "igamma": _GAMMA, "igammac": _GAMMA, "igamma_grad_a": _GAMMA_GRADIENT, "random_gamma_grad": _GAMMA_GRADIENT,
    "regularized_incomplete_beta": ((71, 200),),
}  # fmt: skip
_MOVES = (
    "bitcast_convert_type broadcast_in_dim broadcast_to concatenate copy copy_p device_put empty empty2 from_edtype "
    "iota iota_2x32_shape optimization_barrier pad platform_index random_clone random_unwrap random_wrap reshape rev "
    "split squeeze stack tie tile to_edtype transpose unstack"
)
_BY_NOTHING = (
    "after_all check create_token debug_callback debug_print inspect_sharding pvary region_in region_out "
    "sharding_constraint"
)
_COLLECTIVES = [name for name, reason in ELSEWHERE.items() if reason == COLLECTIVE]
_REFERENCES = "accum_grad_in_ref addupdate create_linear empty_ref free_ref freeze get new_ref pin swap unpin"


def element_wise(per_element: float, in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """So many operations for each element of the largest result."""
    number = per_element * max((math.prod(aval.shape) for aval in out_avals), default=0)
    return Count(vector=((_dtype(out_avals), number),) if number else (), streams=True)


def _dtype(avals: Avals) -> str:
    dtype = avals[0].dtype if avals else None
    return "uint32" if dtype is None or _compat.is_key_dtype(dtype) else str(dtype)


def _register(names: str, per_element: float, kind: str) -> None:
    register_count(*names.split(), kind=kind)(functools.partial(element_wise, per_element))


_register(_ONE, 1, "element-wise")
_register(" ".join((*JOINTLY_LINEAR, "neg", "reduce_precision")), 1, "element-wise")
_register(_SPECIAL, SPECIAL_OPERATIONS, "element-wise")
for _name, _number in _LONGER.items():
    _register(_name, _number, f"element-wise, {_number} operations")
for _name, _loops in _ITERATED.items():
    _register(_name, sum(per_trip * trips for per_trip, trips in _loops), "element-wise, in loops")
_register(
    " ".join(n for n in UNARY_LINEAR if n not in ("neg", "reduce_precision", "copy", "copy_p")),
    0,
    "moves bytes",
)
_register(_MOVES, 0, "moves bytes")
_register(_REFERENCES, 0, "moves bytes")
_register(_BY_NOTHING, 0, "computes nothing itself")
_register(" ".join(_COLLECTIVES), 0, "communicates")


@register_count("polynomial", kind="two operations per coefficient")
def polynomial(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Horner's rule: a multiply-add per coefficient and element."""
    coefficients = params.get("coefficients", params.get("coeffs"))
    degree = len(coefficients) if coefficients is not None else len(in_avals) - 1
    return element_wise(2.0 * max(1, degree), in_avals, out_avals, params)
