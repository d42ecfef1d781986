"""A loop of one trip is its body: plans are those of the step without it, and values are the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan.ir import trace

X = jnp.arange(128.0).reshape(8, 16) / 100
W = jnp.full((16, 16), 0.1)


def _loss(w: Any, x: Any) -> Any:
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def plain(w: Any, x: Any) -> Any:
    return w - jax.grad(_loss)(w, x)


def scanned(w: Any, x: Any) -> Any:
    add = lambda g, x: (g + jax.grad(_loss)(w, x), None)  # noqa: E731
    return w - jax.lax.scan(add, jnp.zeros_like(w), x.reshape(1, 8, 16))[0]


def sliced(w: Any, x: Any) -> Any:
    def add(i: Any, g: Any) -> Any:
        return g + jax.grad(_loss)(w, jax.lax.dynamic_slice_in_dim(x, i * 8, 8))

    return w - jax.lax.fori_loop(0, 1, add, jnp.zeros_like(w))


def counted(w: Any, x: Any) -> Any:
    def body(state: Any) -> Any:
        return state[0] + 1, state[1] + jax.grad(_loss)(w, x)

    return w - jax.lax.while_loop(lambda state: state[0] < 1, body, (0, jnp.zeros_like(w)))[1]


@pytest.mark.parametrize("step", [scanned, sliced, counted])
def test_one_micro_batch_is_the_whole_batch(step: Any) -> None:
    program = trace(step, (W, X))
    assert not program.regions
    assert {t.shape for t in program.tensors if len(t.shape) == 3} == {(1, 8, 16)} or step is not scanned
    data = jaxplan.plan(step, W, X, topology="cpu:8", progress=False).references["data"]
    alone = jaxplan.plan(plain, W, X, topology="cpu:8", progress=False).references["data"]
    assert data.in_specs == alone.in_specs
    np.testing.assert_allclose(data.jit()(W, X), plain(W, X), rtol=1e-5)


def test_stacked_slices_are_read_in_reverse() -> None:
    def step(w: Any, xs: Any, keys: Any) -> Any:
        def body(c: Any, now: Any) -> Any:
            key, x = now
            c = c + jnp.tanh(x @ w) + jax.random.normal(key, x.shape)
            return c, (c.sum(0), jax.random.key_data(key))

        return jax.lax.scan(body, jnp.zeros((8, 16)), (keys, xs), reverse=True)

    args = W, X[None], jax.random.split(jax.random.key(0), 1)
    found = jaxplan.plan(step, *args, topology="cpu:8", progress=False).fastest().jit()(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, step(*args))


def test_a_counted_while_loop_over_micro_batches_is_split_like_a_scan() -> None:
    """Each device cuts micro-batches out of its own part of the batch: gradients are those of the whole batch."""

    def total(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    def accumulated(w: Any, x: Any) -> Any:
        def body(state: Any) -> Any:
            i, g = state
            return i + 1, g + jax.grad(total)(w, jax.lax.dynamic_slice_in_dim(x, i * 16, 16))

        return w - 0.01 * jax.lax.while_loop(lambda s: s[0] < 4, body, (0, jnp.zeros_like(w)))[1]

    x = jnp.arange(64 * 16.0).reshape(64, 16) / 1000
    plan = jaxplan.plan(accumulated, W, x, topology="cpu:8", progress=False).references["data"]
    assert len(plan.in_specs[1][0]) == 3  # all three axes of eight devices
    np.testing.assert_allclose(plan.jit()(W, x), W - 0.01 * jax.grad(total)(W, x), rtol=1e-4)
