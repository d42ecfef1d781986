"""Factorisations and solves: operations of textbook algorithms on numbers that count, and published counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import linalg as jsl

from jaxplan.ir import Count
from tests.ir.counts._counted import Number, Tally, count_of, matrix

N, M = 20, 28
_RNG = np.random.default_rng(0)


def _cholesky(a: list[list[Number]]) -> None:
    for j in range(len(a)):
        a[j][j] = a[j][j].sqrt()
        for i in range(j + 1, len(a)):
            a[i][j] = a[i][j] / a[j][j]
        for k in range(j + 1, len(a)):
            for i in range(k, len(a)):
                a[i][k] = a[i][k] - a[i][j] * a[k][j]


def _lu(a: list[list[Number]]) -> None:
    rows, columns = len(a), len(a[0])
    for j in range(min(rows, columns)):
        for i in range(j + 1, rows):
            a[i][j] = a[i][j] / a[j][j]
            for k in range(j + 1, columns):
                a[i][k] = a[i][k] - a[i][j] * a[j][k]


def _reflect(v: list[Number], columns: list[list[Number]]) -> None:
    """Apply a Householder reflection to some columns: a dot product, a scale, an update."""
    for column in columns:
        dot = v[0] * column[0]
        for x, y in zip(v[1:], column[1:]):
            dot = dot + x * y
        for i, x in enumerate(v):
            column[i] = column[i] - dot * x


def _qr(a: list[list[Number]]) -> None:
    rows, columns = len(a), len(a[0])
    for j in range(min(rows, columns)):
        v = [a[i][j] for i in range(j, rows)]
        _reflect(v, [[a[i][k] for i in range(j, rows)] for k in range(j + 1, columns)])


def _hessenberg(a: list[list[Number]]) -> None:
    n = len(a)
    for j in range(n - 2):
        v = [a[i][j] for i in range(j + 1, n)]
        _reflect(v, [[a[i][k] for i in range(j + 1, n)] for k in range(j + 1, n)])
        _reflect(v, [[a[k][i] for i in range(j + 1, n)] for k in range(n)])


def _triangular_solve(a: list[list[Number]], b: list[list[Number]]) -> None:
    for c in range(len(b[0])):
        for i in range(len(a)):
            for k in range(i):
                b[i][c] = b[i][c] - a[i][k] * b[k][c]
            b[i][c] = b[i][c] / a[i][i]


def _thomas(d: list[list[Number]], b: list[list[Number]]) -> None:
    """Elimination of the lower diagonal, then substitution from below; rows of ``d`` are the three diagonals."""
    lower, main, upper = d
    n = len(main)
    for i in range(1, n):
        w = lower[i] / main[i - 1]
        main[i] = main[i] - w * upper[i - 1]
        for c in range(len(b[0])):
            b[i][c] = b[i][c] - w * b[i - 1][c]
    for c in range(len(b[0])):
        b[n - 1][c] = b[n - 1][c] / main[n - 1]
        for i in reversed(range(n - 1)):
            b[i][c] = (b[i][c] - upper[i] * b[i + 1][c]) / main[i]


def _f32(*shape: int) -> jax.Array:
    return jnp.asarray(_RNG.uniform(1, 2, shape), jnp.float32)


def _exact(count: Count) -> float:
    ((dtype, flops),) = count.exact
    assert dtype == "float32" and not count.matrix
    return flops


_SQUARE, _TALL, _WIDE = (N, N), (M, N), (N, M)
_COUNTED: list[tuple[str, Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...], float]] = [
    ("cholesky", lambda a: lax.linalg.cholesky(a, symmetrize_input=False), _cholesky, (_SQUARE,), 0.001),
    ("lu", jsl.lu_factor, _lu, (_SQUARE,), 0.02),
    ("lu", lambda a: lax.linalg.lu(a), _lu, (_TALL,), 0.02),
    ("lu", lambda a: lax.linalg.lu(a), _lu, (_WIDE,), 0.02),
    ("geqrf", lambda a: jnp.linalg.qr(a, mode="raw"), _qr, (_TALL,), 0.15),
    ("geqrf", lambda a: jnp.linalg.qr(a, mode="raw"), _qr, (_WIDE,), 0.15),
    ("hessenberg", lax.linalg.hessenberg, _hessenberg, (_SQUARE,), 0.15),
    (
        "triangular_solve",
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        _triangular_solve,
        (_SQUARE, (N, 7)),
        0.001,
    ),
]


@pytest.mark.parametrize(("primitive", "fn", "algorithm", "shapes", "tolerance"), _COUNTED)
def test_textbook_algorithms_do_as_many_operations(
    primitive: str, fn: Any, algorithm: Any, shapes: Any, tolerance: float
) -> None:
    tally = Tally()
    algorithm(*(matrix(_RNG.uniform(1, 2, shape) + 9 * np.eye(*shape), tally) for shape in shapes))
    found = _exact(count_of(fn, primitive, *(_f32(*shape) for shape in shapes)))
    assert found == pytest.approx(tally.operations, rel=tolerance)


def test_tridiagonal_systems_are_eliminated_once_and_substituted_per_column() -> None:
    tally, diagonal = Tally(), _f32(N)
    d, b = _RNG.uniform(1, 2, (3, N)), _RNG.uniform(1, 2, (N, 5))
    _thomas(matrix(d, tally), matrix(b, tally))
    found = _exact(
        count_of(lax.linalg.tridiagonal_solve, "tridiagonal_solve", diagonal, diagonal, diagonal, _f32(N, 5))
    )
    assert found == tally.operations


def test_reflectors_are_applied_to_every_column() -> None:
    """`ormqr` and `householder_product`: k reflections of m, m - 1, ... elements, four operations each."""
    m, n, k = 30, 12, 8
    reflections = sum(4 * (m - j) for j in range(k))
    a, taus, c = _f32(m, k), _f32(k), _f32(m, n)
    assert _exact(count_of(lax.linalg.ormqr, "ormqr", a, taus, c)) == pytest.approx(reflections * n, rel=0.03)
    q = _exact(count_of(lax.linalg.householder_product, "householder_product", a, taus))
    # Reflection j makes column j, and changes those behind it, which begin as columns of the identity.
    backward = sum(4 * (m - j) * (k - j - 1) + (m - j) for j in range(k))
    assert q == pytest.approx(backward, rel=0.02)


# Table 3.13 of the LAPACK Users' Guide, square matrices: multiples of n cubed.
_DRIVERS: list[tuple[str, Callable[..., Any], float]] = [
    ("eigh", jnp.linalg.eigh, 9.00),  # xSYEVD with vectors
    ("eig", jnp.linalg.eigvals, 10.00),  # xGEEV
    ("eig", jnp.linalg.eig, 26.33),  # xGEEV with right vectors
    ("svd", lambda a: jnp.linalg.svd(a, compute_uv=False), 2.67),  # xGESVD
    ("tridiagonal", lambda a: lax.linalg.tridiagonal(a), 4 / 3),
    ("hessenberg", lax.linalg.hessenberg, 10 / 3),
    ("schur", jsl.schur, 25.0),  # Golub, Van Loan, section 7.5.6
    ("lu", jsl.lu_factor, 2 / 3),
    ("cholesky", lambda a: lax.linalg.cholesky(a, symmetrize_input=False), 1 / 3),
    ("geqrf", lambda a: jnp.linalg.qr(a, mode="raw"), 4 / 3),
]


@pytest.mark.parametrize(("primitive", "fn", "multiple"), _DRIVERS)
def test_published_multiples_of_n_cubed(primitive: str, fn: Any, multiple: float) -> None:
    n = 1000
    found = _exact(count_of(fn, primitive, jax.ShapeDtypeStruct((n, n), jnp.float32)))
    assert found / n**3 == pytest.approx(multiple, rel=0.01)


def test_complex_operations_are_four_real_ones_and_a_batch_is_a_multiple() -> None:
    fn = lambda a: lax.linalg.cholesky(a, symmetrize_input=False)  # noqa: E731
    one = count_of(fn, "cholesky", jax.ShapeDtypeStruct((64, 64), jnp.float32))
    many = count_of(fn, "cholesky", jax.ShapeDtypeStruct((3, 5, 64, 64), jnp.complex64))
    assert many.flops == 4 * 15 * one.flops
    assert many.exact[0][0] == "complex64"


def test_thin_factors_cost_less_than_full_ones() -> None:
    a = jax.ShapeDtypeStruct((4000, 100), jnp.float32)
    full = _exact(count_of(lambda a: jnp.linalg.svd(a), "svd", a))
    thin = _exact(count_of(lambda a: jnp.linalg.svd(a, full_matrices=False), "svd", a))
    assert full > 4 * 4000**2 * 100 > thin > 6 * 4000 * 100**2
    reduced = _exact(count_of(lambda a: jnp.linalg.qr(a), "qr", a))
    assert reduced == pytest.approx(2 * 2 * 4000 * 100**2, rel=0.02)


@pytest.mark.parametrize("size", [100, 300])
def test_the_compiler_counts_a_cholesky_alike(size: int) -> None:
    """XLA's cost analysis of the operator as it is lowered for TPUs, where it is one."""
    fn = jax.jit(lambda a: lax.linalg.cholesky(a, symmetrize_input=False))
    a = jax.ShapeDtypeStruct((size, size), jnp.float32)
    analysis = fn.trace(a).lower(lowering_platforms=("tpu",)).cost_analysis()
    assert analysis["flops"] == pytest.approx(_exact(count_of(fn, "cholesky", a)), rel=0.06)
