"""Reductions over dimensions, and scans along one."""

from __future__ import annotations

from collections.abc import Sequence

from jaxplan.ir._registry import Aval, Avals, Params, register_rule
from jaxplan.ir._rule import FactorKind, OperatorRule, Reducer
from jaxplan.ir.rules._builder import Factors, axes_param, index_of, one_to_one_rule

# Truth values: "and" is their minimum, "or" their maximum.
_REDUCERS: dict[str, Reducer] = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_prod": "prod",
    "reduce_and": "min",
    "reduce_or": "max",
}


def _reduction_rule(
    in_avals: Avals, out_avals: Avals, axes: Sequence[int], reducer: Reducer | None
) -> OperatorRule:
    """Operands have one shape, results that without ``axes``, which are whole where no reducer is known."""
    shape = in_avals[0].shape
    reduced = {index_of(axis, len(shape)) for axis in axes}
    kind: FactorKind = "reduce" if reducer else "whole"
    factors = Factors()
    dims = tuple(
        factors.add(size, kind, reducer) if axis in reduced else factors.add(size)
        for axis, size in enumerate(shape)
    )
    kept = tuple(dim for axis, dim in enumerate(dims) if axis not in reduced)
    linear = ((0,),) if reducer == "sum" else ()
    return factors.rule([dims] * len(in_avals), [kept] * len(out_avals), "reduction", linear)


def _is_bitwise(name: str, aval: Aval) -> bool:
    return name in ("reduce_and", "reduce_or") and aval.dtype != bool


def _register(name: str, reducer: Reducer) -> None:
    @register_rule(name)
    def rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
        known = None if _is_bitwise(name, in_avals[0]) else reducer
        return _reduction_rule(in_avals, out_avals, params["axes"], known)


for _name, _reducer in _REDUCERS.items():
    _register(_name, _reducer)


@register_rule("argmax", "argmin", "reduce_xor")
def whole_reduction_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``i j -> i`` where j may not be split: the parts could not be joined by sum, max, min or product."""
    return _reduction_rule(in_avals, out_avals, params["axes"], None)


@register_rule("reduce")
def generic_reduce_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """`lax.reduce` with a function of the user: half the operands are tensors, half scalar initial values."""
    num_tensors = len(in_avals) // 2
    rule = _reduction_rule(in_avals[:num_tensors], out_avals, params["dimensions"], None)
    return OperatorRule(
        factors=rule.factors,
        operands=rule.operands + ((),) * (len(in_avals) - num_tensors),
        results=rule.results,
        family=rule.family,
    )


@register_rule("cumsum")
def cumsum_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Whole along the axis, linear."""
    factors = Factors()
    dims = factors.add_except(in_avals[0].shape, axes_param(params, "axis"))
    return factors.rule([dims], [dims], "scan", ((0,),))


@register_rule("cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Whole along the axis."""
    return one_to_one_rule(in_avals, out_avals, whole_axes=axes_param(params, "axis"), family="scan")


@register_rule("sort")
def sort_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Any number of operands, sorted together along one dimension, which is whole."""
    return one_to_one_rule(in_avals, out_avals, whole_axes=axes_param(params, "dimension"), family="sort")


@register_rule("top_k", "approx_top_k")
def top_k_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Values and indices of the k largest along one dimension, whole on both sides; the compiler would gather."""
    shape = in_avals[0].shape
    names = [name for name in ("axis", "operand_axis", "reduction_dimension") if name in params]
    axis = index_of(axes_param(params, *names)[0] if names else -1, len(shape))
    factors = Factors()
    dims = factors.add_except(shape, (axis,))
    chosen = factors.whole(out_avals[0].shape[axis])
    result = (*dims[:axis], chosen, *dims[axis + 1 :])
    operands, results = [dims] * len(in_avals), [result] * len(out_avals)
    return factors.rule(operands, results, "sort", manual=True)
