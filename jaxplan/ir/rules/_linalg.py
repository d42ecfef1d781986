"""Decompositions, solves and transforms: a batch of leading dimensions, the rest whole."""

from __future__ import annotations

from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir.rules._builder import leading_dims_rule

# Dimensions of one matrix.
_MATRIX_RANK = 2


@register_rule("cholesky", "eig", "eigh", "geqrf", "hessenberg", "lu", "qr", "schur", "svd", "tridiagonal")
@register_rule("householder_product", "ormqr", "symmetric_product", "triangular_solve")
def matrix_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Each matrix by itself: the dimensions before the last two are mapped."""
    num_leading = len(in_avals[0].shape) - _MATRIX_RANK
    return leading_dims_rule(in_avals, out_avals, num_leading=num_leading, family="linalg")


@register_rule("lu_pivots_to_permutation")
def vector_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Each vector by itself."""
    return leading_dims_rule(in_avals, out_avals, num_leading=len(in_avals[0].shape) - 1, family="linalg")


@register_rule("fft")
def fft_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """The transformed dimensions are the last ones; linear."""
    num_leading = len(in_avals[0].shape) - len(params["fft_lengths"])
    return leading_dims_rule(in_avals, out_avals, num_leading=num_leading, family="linalg", linear=((0,),))
