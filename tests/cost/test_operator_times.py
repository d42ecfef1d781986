"""Predicted seconds of operators on one device and on several: arithmetic at data-sheet rates, bytes that are touched.

H100: 66.9 TFLOP/s in float32, 494.7 of float32 dots at default precision, 989.4 in bfloat16, 3.352 TB/s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental import sparse

import jaxplan

FLOAT32, PRODUCTS, HALF, BANDWIDTH = 66.9e12, 494.7e12, 989.4e12, 3.352e12


def _s(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def seconds(fn: Callable[..., Any], *args: Any, topology: str = "h100:1", **options: Any) -> float:
    """Predicted compute seconds of the fastest plan."""
    found = jaxplan.plan(fn, *args, topology=topology, memory="10TiB", remat=False, progress=False, **options)
    return found.fastest().compute_seconds


def _cholesky(a: jax.Array) -> jax.Array:
    return lax.linalg.cholesky(a, symmetrize_input=False)


def _attend(q: Any, k: Any, v: Any, o: Any) -> None:
    o[0] = jax.nn.softmax(q[0] @ k[0].T) @ v[0]


def _flash(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    _, t, d = q.shape
    whole = pl.BlockSpec((1, t, d), lambda h, i: (h, 0, 0))
    part = pl.BlockSpec((1, 128, d), lambda h, i: (h, i, 0))
    return pl.pallas_call(
        _attend,
        grid=(q.shape[0], t // 128),
        in_specs=[part, whole, whole],
        out_specs=part,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
    )(q, k, v)


N = 8192
# Operator, operands, FLOPs by its closed form, the rate that it cannot exceed.
_LEAST: dict[str, tuple[Callable[..., Any], tuple[Any, ...], float, float]] = {
    "cholesky": (_cholesky, (_s(N, N),), N**3 / 3, FLOAT32),
    "lu": (lambda a: lax.linalg.lu(a)[0], (_s(N, N),), 2 * N**3 / 3, FLOAT32),
    "qr": (lambda a: jnp.linalg.qr(a)[0], (_s(N, N),), 8 * N**3 / 3, FLOAT32),
    "eigh": (jnp.linalg.eigh, (_s(N, N),), 9 * N**3, FLOAT32),
    "svd": (jnp.linalg.svd, (_s(N, N),), 21 * N**3, FLOAT32),
    "solve": (jnp.linalg.solve, (_s(N, N), _s(N, N)), 8 * N**3 / 3, FLOAT32),
    "triangular": (jax.scipy.linalg.solve_triangular, (_s(N, N), _s(N, N)), N**3, FLOAT32),
    "inverse": (jnp.linalg.inv, (_s(N, N),), 8 * N**3 / 3, FLOAT32),
    "flash": (_flash, (_s(64, N, 128),) * 3, 4 * 64 * N**2 * 128, PRODUCTS),
    "flash in bfloat16": (_flash, (_s(64, N, 128, dtype=jnp.bfloat16),) * 3, 4 * 64 * N**2 * 128, HALF),
    "beta": (jax.scipy.special.betainc, (_s(N, N),) * 3, 200 * 30 * N**2, FLOAT32),
}


@pytest.mark.parametrize("name", _LEAST)
def test_no_operator_is_faster_than_its_arithmetic(name: str) -> None:
    fn, args, flops, rate = _LEAST[name]
    found = seconds(fn, *args)
    assert flops / rate <= found
    if name != "beta":
        assert found <= 4 * flops / rate


@pytest.mark.parametrize("fn", [jnp.sort, jnp.cumsum, lambda x: lax.top_k(x, 64), jnp.fft.fft, jnp.exp])
def test_no_operator_is_faster_than_its_bytes(fn: Callable[..., Any]) -> None:
    x = _s(1024, 2**17)
    moved = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((x, jax.eval_shape(fn, x))))
    assert moved / BANDWIDTH <= seconds(fn, x)


def test_work_divides_by_what_really_splits_it() -> None:
    batch = _s(8, N, N)
    whole = seconds(_cholesky, batch)
    assert seconds(_cholesky, batch, topology="h100:8") == pytest.approx(whole / 8, rel=0.1)
    single = _s(4096, 4096)
    assert seconds(_cholesky, single, topology="h100:8") == pytest.approx(seconds(_cholesky, single), rel=0.1)
    solve = jax.scipy.linalg.solve_triangular
    columns = _s(4096, 4096), _s(4096, 2**15)
    assert seconds(solve, *columns, topology="h100:8") < 0.3 * seconds(solve, *columns)


def test_loops_run_their_operators_each_trip() -> None:
    def looped(a: jax.Array) -> jax.Array:
        return lax.scan(lambda c, _: (_cholesky(c), None), a, length=10)[0]

    a = _s(4096, 4096)
    assert seconds(looped, a) == pytest.approx(10 * seconds(_cholesky, a), rel=0.1)


def test_operators_inside_of_a_shard_map_count() -> None:
    mesh = jax.sharding.AbstractMesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))  # not JAX 0.12's default
    spec = jax.sharding.PartitionSpec("x")
    mapped = jax.shard_map(_cholesky, mesh=mesh, in_specs=spec, out_specs=spec)
    a = _s(8, 4096, 4096)
    found = seconds(mapped, a, topology="h100:8")
    assert 4096**3 / 3 / FLOAT32 <= found <= 3 * 4096**3 / 3 / FLOAT32


# ---- rows


ROWS, WIDTH, TAKEN = 2**20, 256, 1024
TABLE, SOME = 4 * ROWS * WIDTH, 4 * TAKEN * WIDTH


def _take(table: jax.Array, ids: jax.Array) -> jax.Array:
    return jnp.take(table, ids, axis=0, mode="clip")


@pytest.mark.parametrize(
    "fn",
    [
        _take,
        lambda table, ids: lax.dynamic_slice_in_dim(table, ids[0], TAKEN),
        lambda table, ids: table[:TAKEN] + 1.0,
        lambda table, ids: (
            sparse.bcoo_extract(
                sparse.BCOO((jnp.ones(TAKEN), jnp.stack([ids, ids], 1)), shape=(ROWS, WIDTH)), table
            ).data
        ),
    ],
)
def test_reading_some_rows_costs_their_bytes(fn: Callable[..., Any]) -> None:
    found = seconds(fn, _s(ROWS, WIDTH), _s(TAKEN, dtype=jnp.int32))
    assert found < 0.1 * TABLE / BANDWIDTH


def test_looking_up_many_rows_costs_their_bytes_too() -> None:
    many = 2**19
    found = seconds(_take, _s(ROWS, WIDTH), _s(many, dtype=jnp.int32))
    rows = 4 * many * WIDTH
    assert 2 * rows / BANDWIDTH <= found <= 3 * rows / BANDWIDTH  # read and written


def test_the_gradient_of_a_look_up_writes_its_table_once() -> None:
    def gradient(table: jax.Array, ids: jax.Array, ct: jax.Array) -> jax.Array:
        return jax.vjp(lambda t: _take(t, ids), table)[1](ct)[0]

    found = seconds(gradient, _s(ROWS, WIDTH), _s(TAKEN, dtype=jnp.int32), _s(TAKEN, WIDTH))
    assert TABLE / BANDWIDTH <= found <= 1.3 * TABLE / BANDWIDTH


@pytest.mark.parametrize(
    "update",
    [
        lambda t, x, i: lax.dynamic_update_slice_in_dim(t, x, i, 0),
        lambda t, x, i: t.at[i + jnp.arange(TAKEN)].set(x),
        lambda t, x, i: t.at[i + jnp.arange(TAKEN)].add(x),
    ],
)
def test_a_table_is_updated_in_place_where_nothing_else_reads_it(update: Callable[..., Any]) -> None:
    args = _s(ROWS, WIDTH), _s(TAKEN, WIDTH), _s(dtype=jnp.int32)
    in_place = seconds(update, *args, donate_argnums=(0,))
    copied = seconds(update, *args, donate_argnums=())
    assert in_place < 0.1 * TABLE / BANDWIDTH
    assert copied >= 2 * TABLE / BANDWIDTH


def test_a_cache_in_a_loop_is_updated_in_place() -> None:
    def decode(cache: jax.Array, x: jax.Array) -> jax.Array:
        def body(cache: jax.Array, i: Any) -> Any:
            return lax.dynamic_update_slice_in_dim(cache, x, i, 0), None

        return lax.scan(body, cache, jnp.arange(100))[0]

    found = seconds(decode, _s(ROWS, WIDTH), _s(1, WIDTH), donate_argnums=(0,))
    assert found < 3 * TABLE / BANDWIDTH  # not a hundred times


def test_rows_of_a_split_table_divide_among_its_parts() -> None:
    many = 2**19
    args = _s(ROWS, WIDTH), _s(many, dtype=jnp.int32)
    assert seconds(_take, *args, topology="h100:8") == pytest.approx(seconds(_take, *args) / 8, rel=0.15)


def test_random_bits_take_longer_than_their_bytes() -> None:
    """A block of Threefry takes over a hundred operations for each word of four bytes."""
    n = 2**28
    key = jax.eval_shape(lambda: jax.random.key(0))
    found = seconds(lambda k, x: jax.random.bits(k, (n,)) + x, key, _s(n, dtype=jnp.uint32))
    assert found >= 100 * n / FLOAT32 > 4 * n / BANDWIDTH


def test_a_factorisation_of_a_constant_has_a_price() -> None:
    """A matrix that depends on no argument exists in every layout for nothing, its factor does not."""
    found = seconds(lambda x: _cholesky(2 * jnp.eye(4096)) + x, _s(4096, 4096))
    assert found >= 4096**3 / 3 / FLOAT32


def test_a_step_with_a_factorisation_of_a_constant_runs() -> None:
    def step(x: jax.Array) -> jax.Array:
        index = jnp.arange(16.0)
        return _cholesky(jnp.eye(16) + jnp.exp(-((index[:, None] - index) ** 2))) @ x

    x = jnp.arange(128.0).reshape(16, 8)
    for plan in jaxplan.plan(step, x, topology="cpu:8", memory="1GiB", progress=False).points:
        assert jnp.allclose(plan.jit()(x), step(x), rtol=1e-5)


def test_a_dot_that_is_added_to_a_sum_costs_one_more_read() -> None:
    """A B + C is one library call that reads C besides: no dot is written and read again, two passes more."""
    matrix = _s(N, N)
    extra = seconds(lambda a, b, c: a @ b + c, matrix, matrix, matrix) - seconds(jnp.matmul, matrix, matrix)
    assert 0.8 < extra / (4 * N * N / BANDWIDTH) < 1.5
