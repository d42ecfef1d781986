"""Operators of `jax.experimental.sparse` to try rules on: a function of the buffers of sparse arrays, and operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

_RNG = np.random.default_rng(0)
_BATCHED = (((2,), (1,)), ((0,), (0,)))
_MATRIX, _BATCH, _WIDE = (8, 12), (4, 8, 12), (8, 12, 4)


def _dense(*shape: int, share: float = 1.0) -> np.ndarray:
    return (_RNG.normal(size=shape) * (_RNG.uniform(size=shape) < share)).astype(np.float32)


def _stored(shape: tuple[int, ...], nse: int, n_batch: int = 0, n_dense: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Buffers of a BCOO with 40 % of its elements, places without one behind them, as `BCOO.fromdense` makes them."""
    batch, rest = shape[:n_batch], shape[n_batch:]
    places, inner = rest[: len(rest) - n_dense], rest[len(rest) - n_dense :]
    number = min(nse, int(0.4 * math.prod(places)))
    data = np.zeros((*batch, nse, *inner), np.float32)
    indices = np.broadcast_to(np.asarray(places, np.int32), (*batch, nse, len(places))).copy()
    for at in np.ndindex(batch):
        chosen = np.sort(_RNG.choice(math.prod(places), number, replace=False))
        indices[at][:number] = np.stack(np.unravel_index(chosen, places), axis=-1)
        data[at][:number] = _dense(number, *inner)
    return data, indices


def _product(shape: tuple[int, ...], numbers: Any) -> Callable[..., Any]:
    return lambda d, i, x: sparse.bcoo_dot_general(_bcoo(d, i, shape), x, dimension_numbers=numbers)


def _sparse_product(d: Any, i: Any, e: Any, j: Any) -> Any:
    left, right = _bcoo(d, i, _BATCH), _bcoo(e, j, (4, 12, 8))
    return sparse.bcoo_dot_general(left, right, dimension_numbers=_BATCHED)._bufs


def _bcoo(data: Any, indices: Any, shape: tuple[int, ...]) -> sparse.BCOO:
    return sparse.BCOO((data, indices), shape=shape)


def _bcsr(*buffers: Any, shape: tuple[int, ...] = _MATRIX) -> sparse.BCSR:
    return sparse.BCSR(buffers, shape=shape)  # type: ignore[arg-type]


def _compressed(matrix: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first ``size`` values of a matrix that are not zero, their columns, and where each row begins among them;
    filled up with zeros behind the last column."""
    rows, columns = (of[:size] for of in np.nonzero(matrix))
    filled = (0, size - len(rows))
    begins = np.searchsorted(rows, np.arange(len(matrix) + 1))
    padded = np.pad(columns, filled, constant_values=matrix.shape[1])
    return np.pad(matrix[rows, columns], filled), padded.astype(np.int32), begins.astype(np.int32)


def _rows(matrix: np.ndarray, size: int) -> np.ndarray:
    rows = np.nonzero(matrix)[0][:size]
    return np.pad(rows, (0, size - len(rows)), constant_values=len(matrix)).astype(np.int32)


def _cases() -> list[tuple[str, Callable[..., Any], tuple[Any, ...], int]]:
    plain, batch, wide = _stored(_MATRIX, 40), _stored(_BATCH, 16, n_batch=1), _stored(_WIDE, 40, n_dense=1)
    several = _stored((4, 6, 8, 12, 2, 3), 16, n_batch=2, n_dense=2)
    second = _stored((4, 12, 8), 8, n_batch=1)
    vector, columns = _dense(12), _dense(12, 16)
    last = (((1,), (0,)), ((), ()))
    matrix = _dense(*_MATRIX, share=0.4)
    compressed = _compressed(matrix, 40)
    many = tuple(np.stack(buffers) for buffers in zip(*(_compressed(of, 60) for of in _dense(*_BATCH, share=0.4))))
    of_rows = (compressed[0], _rows(matrix, 40), compressed[1])
    coo = lambda d, r, c: sparse.COO((d, r, c), shape=_MATRIX)  # noqa: E731
    old = lambda d, r, c: sparse.CSR((d, r, c), shape=_MATRIX)  # noqa: E731
    extract = lambda i, m: sparse.bcoo_extract(_bcoo(jnp.ones(i.shape[:-1]), i, m.shape), m).data  # noqa: E731
    sampled = lambda a, b, i: sparse.bcoo_dot_general_sampled(a, b, i, dimension_numbers=last)  # noqa: E731
    return [
        ("bcoo_dot_general", _product(_MATRIX, last), (*plain, columns), 4),
        ("bcoo_dot_general", _product(_MATRIX, last), (*plain, vector), 1),
        ("bcoo_dot_general", _product(_BATCH, _BATCHED), (*batch, _dense(4, 12, 8)), 9),
        ("bcoo_dot_general", _product(_BATCH, (((2,), (0,)), ((), ()))), (*batch, _dense(12, 8)), 9),
        ("bcoo_dot_general", _product(_BATCH, (((0,), (0,)), ((), ()))), (*batch, _dense(4, 8)), 4),
        ("bcoo_dot_general", _product(_WIDE, last), (*wide, _dense(12, 8)), 9),
        ("bcoo_todense", lambda d, i: _bcoo(d, i, _MATRIX).todense(), plain, 1),
        ("bcoo_todense", lambda d, i: _bcoo(d, i, _BATCH).todense(), batch, 4),
        ("bcoo_todense", lambda d, i: _bcoo(d, i, _WIDE).todense(), wide, 4),
        (
            "bcoo_fromdense",
            lambda m: sparse.BCOO.fromdense(m, nse=16, n_batch=1)._bufs,
            (_dense(*_BATCH),),
            1,
        ),
        ("bcoo_extract", extract, (plain[1], _dense(*_MATRIX)), 1),
        ("bcoo_extract", extract, (batch[1], _dense(*_BATCH)), 4),
        ("bcoo_sort_indices", lambda d, i: _bcoo(d, i, _BATCH).sort_indices()._bufs, batch, 1),
        ("bcoo_sum_duplicates", lambda d, i: _bcoo(d, i, _BATCH).sum_duplicates(nse=12)._bufs, batch, 1),
        ("bcoo_transpose", lambda d, i: _bcoo(d, i, _BATCH).transpose((0, 2, 1))._bufs, batch, 4),
        (
            "bcoo_transpose",
            lambda d, i: _bcoo(d, i, (4, 6, 8, 12, 2, 3)).transpose((1, 0, 3, 2, 5, 4))._bufs,
            several,
            14,
        ),
        ("bcoo_dot_general_sampled", sampled, (_dense(8, 5), _dense(5, 12), plain[1]), 1),
        ("bcoo_spdot_general", _sparse_product, (*batch, *second), 1),
        ("bcsr_dot_general", lambda d, i, p, x: _bcsr(d, i, p) @ x, (*compressed, columns), 1),
        ("bcsr_todense", lambda *b: _bcsr(*b, shape=_BATCH).todense(), many, 1),
        (
            "bcsr_fromdense",
            lambda m: sparse.BCSR.fromdense(m, nse=60, n_batch=1)._bufs,
            (_dense(*_BATCH),),
            1,
        ),
        ("bcsr_extract", sparse.bcsr_extract, (*many[1:], _dense(*_BATCH)), 1),
        ("coo_matvec", lambda d, r, c, x: coo(d, r, c) @ x, (*of_rows, vector), 1),
        ("coo_matmat", lambda d, r, c, x: coo(d, r, c) @ x, (*of_rows, columns), 4),
        ("coo_matmat", lambda d, r, c, x: coo(d, r, c).T @ x, (*of_rows, _dense(8, 16)), 4),
        ("coo_todense", lambda d, r, c: coo(d, r, c).todense(), of_rows, 1),
        ("coo_fromdense", lambda m: sparse.COO.fromdense(m, nse=40).data, (_dense(*_MATRIX),), 0),
        ("csr_matvec", lambda d, r, c, x: old(d, r, c) @ x, (*compressed, vector), 0),
        ("csr_matmat", lambda d, r, c, x: old(d, r, c) @ x, (*compressed, columns), 1),
        ("csr_todense", lambda d, r, c: old(d, r, c).todense(), compressed, 0),
        ("csr_fromdense", lambda m: sparse.CSR.fromdense(m, nse=40).data, (_dense(*_MATRIX),), 0),
    ]


SPARSE_CASES = _cases()
"""(primitive, function, operands, ways to split it over four devices)."""
