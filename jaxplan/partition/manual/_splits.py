"""The factors of an operator that the shardings of its operands and results split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxplan.ir import OperatorRule
from jaxplan.mesh import Sharding

Split = Mapping[int, tuple[int, ...]]
"""Factor -> the atomic axes that split it, major to minor."""


def factor_split(
    rule: OperatorRule, reads: Sequence[Sharding | None], homes: Sequence[Sharding]
) -> dict[int, tuple[int, ...]]:
    """Factors split by the shardings in which operands are read (None: a literal) and results are made.

    Of a dimension with several factors the major one is split: only that gives contiguous pieces.
    """
    split: dict[int, tuple[int, ...]] = {}
    for dims, sharding in (*zip(rule.operands, reads, strict=True), *zip(rule.results, homes, strict=True)):
        if sharding is None:
            continue
        for factors, axes in zip(dims, sharding.dims, strict=bool(dims)):
            if axes:
                known = split.setdefault(factors[0], axes)
                assert known == axes, (
                    f"{rule}: factor {rule.factor_name(factors[0])} is split by {known} and {axes}"
                )
    return split


def minor_factors(rule: OperatorRule) -> frozenset[int]:
    """Factors that stand behind another in a dimension of an operand: the operand is whole in them."""
    return frozenset(f for dims in rule.operands for factors in dims for f in factors[1:])


def sharding_of(dims: Sequence[Sequence[int]], split: Split) -> Sharding:
    """The sharding of a tensor with these factors in each dimension."""
    return Sharding(tuple(split.get(factors[0], ()) if factors else () for factors in dims))
