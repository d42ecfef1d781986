"""Contractions: `dot_general`, plain and ragged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import Dimension, OperatorRule, Shape, TensorFactors
from jaxplan.ir.rules._builder import Factors

RAGGED_DOT = "ragged_dot_general"
_BILINEAR = ((0,), (1,))


@register_rule("dot_general")
def dot_general_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b i k, b k j -> b i j`` with k reduced; the result has batch, left and right dimensions.

    Bilinear: a partial sum may come in by one operand.
    """
    factors = Factors()
    lhs, rhs, result = _dot_dims(
        factors, in_avals[0].shape, in_avals[1].shape, params["dimension_numbers"], whole_lhs=(), groups={}
    )
    return factors.rule([lhs, rhs], [result], "contraction", _BILINEAR)


@register_rule(RAGGED_DOT)
def ragged_dot_general_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """A dot per group of rows (experts), which may be split over the groups; the ragged dimension is whole.

    ``m k, g k n, g -> m n`` with g summed: a device multiplies the rows of its own groups and leaves zeros for the
    others, so the results of all devices add up. Where the ragged dimension is contracted (weight gradients), the
    groups are in front of the result and mapped: ``m k, m n, g -> g k n``. Every device reads all counts of rows, which
    say where those of its groups begin. Blocks of rows, each with counts of its own, are mapped, or summed where they
    are contracted: ``b m k, g k n, b g -> b m n`` and ``b m k, b m n, b g -> g k n``. Groups of batches are whole.
    """
    numbers = params["ragged_dot_dimension_numbers"]
    dims, ragged = numbers.dot_dimension_numbers, numbers.lhs_ragged_dimensions[0]
    blocks = block_dimensions(in_avals, params)
    is_batch = ragged in dims[1][0] or not {*blocks}.isdisjoint(dims[1][0])
    may_split = len(blocks) <= 1 and params.get("group_offset") is None and not is_batch
    factors = Factors()
    kind: tuple[Any, ...] = ("reduce", "sum") if may_split else ("whole",)
    lhs, rhs, result = _dot_dims(
        factors,
        in_avals[0].shape,
        in_avals[1].shape,
        dims,
        whole_lhs=numbers.lhs_ragged_dimensions,
        groups={axis: factors.add(in_avals[1].shape[axis], *kind) for axis in numbers.rhs_group_dimensions},
    )
    makes_groups = len(result) < len(out_avals[0].shape)
    if makes_groups:
        result = (factors.add(out_avals[0].shape[0], "map" if may_split else "whole"), *result)
    counts = (*(lhs[d] for d in blocks), factors.whole(in_avals[2].shape[-1]))
    # The compiler does not split a dimension that no operand has; one block of rows is a plain ragged dot.
    is_manual = (makes_groups and may_split) or len(blocks) > 0
    return factors.rule([lhs, rhs, counts], [result], "contraction", _BILINEAR, manual=is_manual)


def block_dimensions(in_avals: Avals, params: Params) -> tuple[int, ...]:
    """The dimensions of the left operand of a ragged dot along which the counts of rows differ.

    ``group_sizes`` are ``[b..., x..., g]``, x the dimensions of the same kind as the ragged one that stand before it
    (https://docs.jax.dev/en/latest/_autosummary/jax.lax.ragged_dot_general.html).
    """
    if len(in_avals[2].shape) == 1:
        return ()
    numbers = params["ragged_dot_dimension_numbers"]
    ((contracted, _), (batch, _)), ragged = numbers.dot_dimension_numbers, numbers.lhs_ragged_dimensions[0]
    free = [d for d in range(len(in_avals[0].shape)) if d not in (*contracted, *batch)]
    alike = next(of for of in (list(batch), list(contracted), free) if ragged in of)
    before = alike[: alike.index(ragged)]
    return tuple(before if ragged in batch else (*batch, *before))


def _dot_dims(
    factors: Factors,
    lhs_shape: Shape,
    rhs_shape: Shape,
    dimension_numbers: Any,
    *,
    whole_lhs: Collection[int],
    groups: Mapping[int, Dimension],
) -> tuple[TensorFactors, TensorFactors, TensorFactors]:
    """Dimensions of both operands and the result; ``groups`` are in the right operand only."""
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = dimension_numbers
    lhs: dict[int, Dimension] = {axis: factors.whole(lhs_shape[axis]) for axis in whole_lhs}
    rhs: dict[int, Dimension] = dict(groups)
    for left, right in zip(lhs_batch, rhs_batch, strict=True):
        rhs[right] = lhs[left] if left in lhs else lhs.setdefault(left, factors.add(lhs_shape[left]))
    for left, right in zip(lhs_contracting, rhs_contracting, strict=True):
        rhs[right] = (
            lhs[left] if left in lhs else lhs.setdefault(left, factors.add(lhs_shape[left], "reduce", "sum"))
        )
    lhs_used, rhs_used = {*lhs_batch, *lhs_contracting}, {*rhs_batch, *rhs_contracting, *groups}
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
