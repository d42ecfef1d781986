"""Contractions: `dot_general`, plain and ragged."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import Dimension, OperatorRule, Shape, TensorFactors
from jaxplan.ir.rules._builder import Factors

_BILINEAR = ((0,), (1,))


@register_rule("dot_general")
def dot_general_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b i k, b k j -> b i j`` with k reduced; the result has batch, left and right dimensions.

    Bilinear: a partial sum may come in by one operand.
    """
    factors = Factors()
    lhs, rhs, result = _dot_dims(
        factors, in_avals[0].shape, in_avals[1].shape, params["dimension_numbers"], whole_lhs=(), whole_rhs=()
    )
    return factors.rule([lhs, rhs], [result], "contraction", _BILINEAR)


@register_rule("ragged_dot_general")
def ragged_dot_general_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """A product per group of rows (experts): the ragged dimension and the groups are whole.

    The right operand has a dimension of groups, or the result one in front if the ragged one is contracted.
    """
    numbers = params["ragged_dot_dimension_numbers"]
    groups = tuple(numbers.rhs_group_dimensions)
    factors = Factors()
    lhs, rhs, result = _dot_dims(
        factors,
        in_avals[0].shape,
        in_avals[1].shape,
        numbers.dot_dimension_numbers,
        whole_lhs=numbers.lhs_ragged_dimensions,
        whole_rhs=groups,
    )
    if len(result) < len(out_avals[0].shape):
        result = (factors.whole(out_avals[0].shape[0]), *result)
    counts = tuple(factors.whole(size) for size in in_avals[2].shape)
    return factors.rule([lhs, rhs, counts], [result], "contraction", _BILINEAR)


def _dot_dims(
    factors: Factors,
    lhs_shape: Shape,
    rhs_shape: Shape,
    dimension_numbers: Any,
    *,
    whole_lhs: Collection[int],
    whole_rhs: Collection[int],
) -> tuple[TensorFactors, TensorFactors, TensorFactors]:
    """Dimensions of both operands and the result; ``whole_rhs`` are in the right operand only."""
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = dimension_numbers
    lhs: dict[int, Dimension] = {axis: factors.whole(lhs_shape[axis]) for axis in whole_lhs}
    rhs: dict[int, Dimension] = {axis: factors.whole(rhs_shape[axis]) for axis in whole_rhs}
    for left, right in zip(lhs_batch, rhs_batch, strict=True):
        rhs[right] = lhs[left] if left in lhs else lhs.setdefault(left, factors.add(lhs_shape[left]))
    for left, right in zip(lhs_contracting, rhs_contracting, strict=True):
        rhs[right] = (
            lhs[left] if left in lhs else lhs.setdefault(left, factors.add(lhs_shape[left], "reduce", "sum"))
        )
    lhs_used, rhs_used = {*lhs_batch, *lhs_contracting}, {*rhs_batch, *rhs_contracting, *whole_rhs}
    lhs_free = [axis for axis in range(len(lhs_shape)) if axis not in lhs_used]
    rhs_free = [axis for axis in range(len(rhs_shape)) if axis not in rhs_used]
    lhs.update({axis: factors.add(lhs_shape[axis]) for axis in lhs_free if axis not in lhs})
    rhs.update({axis: factors.add(rhs_shape[axis]) for axis in rhs_free})
    result = [lhs[axis] for axis in (*lhs_batch, *lhs_free)] + [rhs[axis] for axis in rhs_free]
    return (
        tuple(lhs[axis] for axis in range(len(lhs))),
        tuple(rhs[axis] for axis in range(len(rhs))),
        tuple(result),
    )
