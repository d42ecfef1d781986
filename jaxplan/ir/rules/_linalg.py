"""Decompositions, solves and transforms: a batch of leading dimensions, the rest whole.

Solves and transforms run on pieces: the compiler gathers their operands in any sharding.
"""

from __future__ import annotations

from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir.rules._builder import Factors, leading_dims_rule

# Dimensions of one matrix.
_MATRIX_RANK = 2


@register_rule(
    "cholesky", "eig", "eigh", "geqp3", "geqrf", "hessenberg", "lu", "qr", "schur", "svd", "tridiagonal"
)
@register_rule("householder_product", "ormqr", "symmetric_product")
def matrix_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Each matrix by itself: the dimensions before the last two are mapped."""
    num_leading = len(in_avals[0].shape) - _MATRIX_RANK
    return leading_dims_rule(in_avals, out_avals, num_leading=num_leading, family="linalg")


@register_rule("triangular_solve")
def triangular_solve_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b k k, b k n -> b k n`` with k whole: one solution per column, or per row if the matrix is on the right."""
    return _solve_rule(in_avals, out_avals, free=-1 if params["left_side"] else -2)


@register_rule("tridiagonal_solve")
def tridiagonal_solve_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b k, b k, b k, b k n -> b k n`` with k whole: three diagonals, then one solution per column."""
    return _solve_rule(in_avals, out_avals, free=-1)


def _solve_rule(in_avals: Avals, out_avals: Avals, free: int) -> OperatorRule:
    """The last operand holds the right-hand sides, the others the matrix; linear in the right-hand sides."""
    shape = out_avals[0].shape
    num_leading, free = len(shape) - _MATRIX_RANK, free % len(shape)
    factors = Factors()
    batch, sides = factors.add_all(shape[:num_leading]), factors.add(shape[free])
    solved = tuple(
        sides if axis == free else factors.whole(shape[axis]) for axis in range(num_leading, len(shape))
    )
    matrices = [(*batch, *map(factors.whole, aval.shape[num_leading:])) for aval in in_avals[:-1]]
    result = (*batch, *solved)
    linear = ((len(in_avals) - 1,),)
    return factors.rule([*matrices, result], [result], "linalg", linear, manual=True)


@register_rule("lu_pivots_to_permutation")
def vector_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Each vector by itself."""
    return leading_dims_rule(in_avals, out_avals, num_leading=len(in_avals[0].shape) - 1, family="linalg")


@register_rule("fft")
def fft_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """The transformed dimensions are the last ones; linear."""
    num_leading = len(in_avals[0].shape) - len(params["fft_lengths"])
    return leading_dims_rule(
        in_avals, out_avals, num_leading=num_leading, family="linalg", linear=((0,),), manual=True
    )
