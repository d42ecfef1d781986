"""Steps that run as one manual program compute the same as on one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxplan
from jaxplan.errors import ArgumentError
from jaxplan.frontend._options import Options
from tests.small_steps import ADAM_EPSILON

TOLERANCE = 1e-5
"""Relative to the largest value of an array."""
_ADAM = optax.adam(1e-2, eps=ADAM_EPSILON)


def _mlp_loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ params["up"] + params["bias"])
    return jnp.mean((hidden @ params["down"] - y) ** 2)


def _mlp_step(state: Any, x: jax.Array, y: jax.Array) -> Any:
    params, slots = state
    loss, gradients = jax.value_and_grad(_mlp_loss)(params, x, y)
    updates, slots = _ADAM.update(gradients, slots, params)
    return (optax.apply_updates(params, updates), slots), loss


def _mlp_args() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    shapes = {"up": (16, 64), "bias": (64,), "down": (64, 8)}
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    x, y = rng.normal(size=(16, 16)).astype(np.float32), rng.normal(size=(16, 8)).astype(np.float32)
    return (params, _ADAM.init(params)), x, y


def assert_equal(found: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(np.max(np.abs(b), initial=0), 1e-30))


def test_an_mlp_with_adam_at_every_point_of_its_frontier() -> None:
    args = _mlp_args()
    expected = jax.jit(_mlp_step)(*args)
    frontier = jaxplan.plan(_mlp_step, *args, topology="cpu:8", memory="1GiB")
    assert len(frontier.points) > 2
    for plan in frontier.points:
        run = plan.jit(backend="shard_map")
        assert_equal(run(*jax.tree.map(jnp.copy, args)), expected)
        text = run.lower(*args).as_text()
        assert "sharding_constraint" not in text  # nothing is left to the partitioner


def test_a_decorated_step_runs_as_a_manual_program() -> None:
    step = jaxplan.auto(_mlp_step, backend="shard_map", topology="cpu:8", memory="1GiB")
    args = _mlp_args()
    expected = jax.jit(_mlp_step)(*args)
    state, loss = step(*args)
    assert_equal((state, loss), expected)
    assert "manual_computation" in step.lower(*_mlp_args()).as_text()
    assert_equal(step(state, *args[1:]), jax.jit(_mlp_step)(expected[0], *args[1:]))


@pytest.mark.parametrize("backend", ["shardmap", None, 3])
def test_an_unknown_backend_is_named(backend: Any) -> None:
    with pytest.raises(ArgumentError, match=r"expected 'jit' .* or 'shard_map'"):
        Options(backend=backend)


def test_random_bits_are_those_of_one_device() -> None:
    """Bits of every width, keys that are split off, and more elements than one word counts (as counters)."""

    def step(seed: jax.Array, x: jax.Array) -> Any:
        key = jax.random.key(seed)
        keep = jax.random.bernoulli(key, 0.5, x.shape)
        narrow = jax.random.bits(key, x.shape, jnp.uint8)
        keys = jax.random.split(key, x.shape[0])
        rows = jax.vmap(lambda k: jax.random.normal(k, (4,)))(keys)
        return jnp.where(keep, x, 0) + narrow, rows, x * 2

    x = jnp.ones((16, 8))
    expected = jax.jit(step)(jnp.uint32(3), x)
    for plan in jaxplan.plan(step, jnp.uint32(3), x, topology="cpu:8", memory="1GiB").points:
        for a, b in zip(plan.jit(backend="shard_map")(jnp.uint32(3), x), expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_counters_count_beyond_one_word() -> None:
    from jaxplan.partition.manual._positions import Piece, counters

    whole, starts, shape = (7, 2**17, 2**19), (5, 2**16 + 3, 2**18 + 1), (2, 3, 4)
    high, low = counters(Piece(whole, shape, starts))
    places = [np.arange(s, s + n, dtype=object) for s, n in zip(starts, shape, strict=True)]
    flat = (places[0][:, None, None] * whole[1] + places[1][:, None]) * whole[2] + places[2]
    np.testing.assert_array_equal(np.asarray(high), (flat // 2**32).astype(np.uint32))
    np.testing.assert_array_equal(np.asarray(low), (flat % 2**32).astype(np.uint32))
