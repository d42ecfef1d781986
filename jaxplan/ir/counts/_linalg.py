"""Factorisations, eigenvalue problems and solves: operation counts of LAPACK, for m x n matrices in a batch.

[LAWN41] S. Blackford, J. Dongarra, "Installation Guide for LAPACK", LAPACK Working Note 41, appendix C: multiplications
    and additions of each routine (https://www.netlib.org/lapack/lawnspdf/lawn41.pdf).
[LUG] LAPACK Users' Guide, 3rd ed., table 3.13 "Standard" floating-point operation counts for LAPACK drivers
    (https://www.netlib.org/lapack/lug/node71.html).
[GVL] G. Golub, C. Van Loan, "Matrix Computations", 4th ed., sections 7.5, 8.3 and 8.6 (figure 8.6.1).

A complex operation is four real ones ([LAWN41]: six per multiplication, two per addition). Blocked algorithms run a
panel after the other, `_PANEL` columns each (ILAENV's block size); reductions to a condensed form go column by column.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from jaxplan.ir._count import Count
from jaxplan.ir._count_registry import register_count
from jaxplan.ir._registry import Aval, Avals, Params

_PANEL = 64
_COMPLEX_OPERATIONS = 4
_MATRIX_RANK = 2


def _batched(matrix: Aval, flops: float, kernels: int = 1) -> Count:
    """A count for each matrix of a batch; the batch runs side by side."""
    number = math.prod(matrix.shape[:-_MATRIX_RANK]) * max(flops, 0.0)
    if str(matrix.dtype).startswith("complex"):
        number *= _COMPLEX_OPERATIONS
    return Count(exact=((str(matrix.dtype), number),), kernels=max(1, kernels))


def _panels(size: int) -> int:
    return -(-size // _PANEL)


def _register(
    name: str, flops: Callable[[float, float, Params], float], *, by_column: bool = False, operand: int = 0
) -> None:
    """``flops``: of (rows, columns, parameters) of one matrix."""

    @register_count(name, kind="LAPACK")
    def count(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
        m, n = in_avals[operand].shape[-_MATRIX_RANK:]
        steps = min(m, n)
        return _batched(in_avals[operand], flops(m, n, params), steps if by_column else _panels(steps))


def potrf_flops(n: float) -> float:
    """Cholesky ([LAWN41] xPOTRF)."""
    return n**3 / 3 + n**2 / 2 + n / 6


def getrf_flops(m: float, n: float) -> float:
    """LU with row exchanges ([LAWN41] xGETRF)."""
    if m >= n:
        return m * n**2 - n**3 / 3 - n**2 / 2 + 5 * n / 6
    return n * m**2 - m**3 / 3 + m**2 / 2 - n * m + 5 * m / 6


def geqrf_flops(m: float, n: float) -> float:
    """Householder QR ([LAWN41] xGEQRF)."""
    if m >= n:
        return 2 * m * n**2 - 2 * n**3 / 3 + m * n + n**2 + 14 * n / 3
    return 2 * n * m**2 - 2 * m**3 / 3 + 3 * n * m - m**2 + 14 * m / 3


def orgqr_flops(m: float, n: float, k: float) -> float:
    """The first n columns of a product of k reflectors of m elements ([LAWN41] xORGQR)."""
    return 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 / 3 + 3 * n * k - m * k - k**2 - 4 * k / 3


def ormqr_flops(m: float, n: float, k: float) -> float:
    """A product of k reflectors of m elements, applied to n columns ([LAWN41] xORMQR)."""
    return 4 * n * m * k - 2 * n * k**2 + 3 * n * k


def sytrd_flops(n: float) -> float:
    """Symmetric matrix to tridiagonal form ([LAWN41] xSYTRD)."""
    return 4 * n**3 / 3 + 7 * n**2 / 2 - 17 * n / 6


def gehrd_flops(n: float) -> float:
    """General matrix to Hessenberg form ([LAWN41] xGEHRD)."""
    return 10 * n**3 / 3 - n**2 / 2 - 11 * n / 6


_register("cholesky", lambda m, n, _: potrf_flops(n))
_register("lu", lambda m, n, _: getrf_flops(m, n))
_register("geqrf", lambda m, n, _: geqrf_flops(m, n))
_register("geqp3", lambda m, n, _: geqrf_flops(m, n), by_column=True)
_register("tridiagonal", lambda m, n, _: sytrd_flops(n), by_column=True)
_register("hessenberg", lambda m, n, _: gehrd_flops(n), by_column=True)
# [LUG] xSYEVD: 9 n^3 with vectors, as [GVL] 8.3.3; `jax.lax.linalg.eigh` has them always.
_register("eigh", lambda m, n, _: 9 * n**3, by_column=True)
# [GVL] 7.5.6: 25 n^3 with the Schur vectors, 10 n^3 for eigenvalues alone.
_register(
    "schur", lambda m, n, p: (25 if p.get("compute_schur_vectors", True) else 10) * n**3, by_column=True
)


@register_count("eig", kind="LAPACK")
def eig(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """[LUG] xGEEV: 10 n^3 for eigenvalues, 26.33 n^3 with one side's vectors: 25 of the Schur form, 4/3 a side."""
    n = in_avals[0].shape[-1]
    sides = params["compute_left_eigenvectors"] + params["compute_right_eigenvectors"]
    return _batched(in_avals[0], (25 + 4 / 3 * sides if sides else 10) * n**3, kernels=n)


@register_count("svd", kind="LAPACK")
def svd(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """[GVL] figure 8.6.1, the cheaper of bidiagonalisation as it is and behind a QR factorisation."""
    m, n = sorted(in_avals[0].shape[-_MATRIX_RANK:], reverse=True)
    if not params["compute_uv"]:
        flops = min(4 * m * n**2 - 4 * n**3 / 3, 2 * m * n**2 + 2 * n**3)
    elif params["full_matrices"]:
        flops = min(4 * m**2 * n + 8 * m * n**2 + 9 * n**3, 4 * m**2 * n + 22 * n**3)
    else:
        flops = min(14 * m * n**2 + 8 * n**3, 6 * m * n**2 + 20 * n**3)
    return _batched(in_avals[0], flops, kernels=n)


@register_count("qr", kind="LAPACK")
def qr(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """xGEQRF, or xGEQP3 column by column, then xORGQR for as many columns of Q as are asked for."""
    m, n = in_avals[0].shape[-_MATRIX_RANK:]
    k, columns = min(m, n), out_avals[0].shape[-1]
    flops = geqrf_flops(m, n) + orgqr_flops(m, columns, k)
    return _batched(in_avals[0], flops, (k if params.get("pivoting") else _panels(k)) + _panels(k))


@register_count("householder_product", kind="LAPACK")
def householder_product(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """xORGQR."""
    (m, n), k = in_avals[0].shape[-_MATRIX_RANK:], in_avals[1].shape[-1]
    return _batched(in_avals[0], orgqr_flops(m, n, k), _panels(k))


@register_count("ormqr", kind="LAPACK")
def ormqr(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """xORMQR, from the left or from the right."""
    rows, columns = in_avals[2].shape[-_MATRIX_RANK:]
    m, n = (rows, columns) if params.get("left", True) else (columns, rows)
    k = in_avals[1].shape[-1]
    return _batched(in_avals[0], ormqr_flops(m, n, k), _panels(k))


@register_count("symmetric_product", kind="BLAS")
def symmetric_product(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """xSYRK: one triangle of an n x n product of k summands."""
    n, k = in_avals[0].shape[-_MATRIX_RANK:]
    return _batched(in_avals[0], n * (n + 1) * k)


@register_count("triangular_solve", kind="BLAS")
def triangular_solve(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """xTRSM: n^2 per right-hand side."""
    n, right_hand_sides = in_avals[0].shape[-1], math.prod(in_avals[1].shape[-_MATRIX_RANK:])
    return _batched(in_avals[0], n * right_hand_sides, _panels(n))


@register_count("tridiagonal_solve", kind="LAPACK")
def tridiagonal_solve(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Without exchanges: 3 (n - 1) to eliminate a diagonal, 5 n - 4 per right-hand side ([LAWN41] xGTTRF, xGTTRS)."""
    n, k = in_avals[3].shape[-_MATRIX_RANK:]
    return _batched(in_avals[3], 3 * (n - 1) + k * (5 * n - 4))


@register_count("cholesky_update", kind="LAPACK")
def cholesky_update(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """A rotation per row, six operations for each pair of elements to its right ([GVL] 6.5.4)."""
    n = in_avals[0].shape[-1]
    return _batched(in_avals[0], 3 * n * (n + 1), kernels=_panels(n))


@register_count("lu_pivots_to_permutation", kind="exchanges")
def lu_pivots_to_permutation(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Two reads and two writes per exchange, one after the other in one kernel."""
    return Count(vector=(("int32", 4.0 * math.prod(in_avals[0].shape)),))


@register_count("spsolve", kind="bound from below")
def spsolve(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """A sparse direct solver: at least a multiply-add per stored element, how many more depends on the fill-in."""
    dtype = str(in_avals[0].dtype)
    flops = 2.0 * math.prod(in_avals[0].shape)
    return Count(
        exact=((dtype, flops),), caveat="the fill-in of a sparse factorisation depends on its values"
    )
