"""Contractions: `dot_general`, plain and ragged."""

from __future__ import annotations

from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import Dimension, OperatorRule
from jaxplan.ir.rules._builder import Factors


@register_rule("dot_general")
def dot_general_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b i k, b k j -> b i j`` with k reduced; the result has batch, left and right dimensions.

    Bilinear: a partial sum may come in by one operand.
    """
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = params["dimension_numbers"]
    lhs_shape, rhs_shape = in_avals[0].shape, in_avals[1].shape
    factors = Factors()
    lhs: dict[int, Dimension] = {}
    rhs: dict[int, Dimension] = {}
    for left, right in zip(lhs_batch, rhs_batch, strict=True):
        lhs[left] = rhs[right] = factors.add(lhs_shape[left])
    batch = [lhs[axis] for axis in lhs_batch]
    for left, right in zip(lhs_contracting, rhs_contracting, strict=True):
        lhs[left] = rhs[right] = factors.add(lhs_shape[left], "reduce", "sum")
    lhs_free = [
        lhs.setdefault(axis, factors.add(size)) for axis, size in enumerate(lhs_shape) if axis not in lhs
    ]
    rhs_free = [
        rhs.setdefault(axis, factors.add(size)) for axis, size in enumerate(rhs_shape) if axis not in rhs
    ]
    return factors.rule(
        [
            tuple(lhs[axis] for axis in range(len(lhs_shape))),
            tuple(rhs[axis] for axis in range(len(rhs_shape))),
        ],
        [(*batch, *lhs_free, *rhs_free)],
        "contraction",
        ((0,), (1,)),
    )
