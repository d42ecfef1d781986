"""Updates that scale with the norm of their parameter compute it from shards, under sharded references."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxplan
from tests.strategies.small_models import F32, totals

DEVICES, ROWS, COLUMNS, BATCH = 8, 4096, 1024, 256
PARAMETER = F32 * ROWS * COLUMNS
UPDATES = {
    "adafactor": optax.adafactor(1e-3),
    "lamb": optax.lamb(1e-3),
    "fromage": optax.fromage(1e-3),
}


def _case(name: str):
    update = UPDATES[name]

    def step(w, state, x):
        grads = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        updates, state = update.update(grads, state, w)
        return optax.apply_updates(w, updates), state

    w = jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, COLUMNS)) / 64, jnp.float32)
    return step, (w, update.init(w), jnp.ones((BATCH, ROWS), jnp.float32))


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("strategy", ["zero2", "fsdp"])
def test_parameters_are_gathered_for_dots_alone(name: str, strategy: str) -> None:
    """One dot reads the parameter; its input needs no gradient, so there is one gather, and one scattered sum."""
    step, args = _case(name)
    plan = jaxplan.plan(step, *args, topology=f"h100:{DEVICES}", progress=False).references[strategy]
    moved = totals(plan, PARAMETER // 16)
    assert moved == {("all-gather", DEVICES): PARAMETER, ("reduce-scatter", DEVICES): PARAMETER}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", UPDATES)
def test_norms_of_shards_are_those_of_one_device(name: str) -> None:
    step, args = _case(name)
    plan = jaxplan.plan(step, *args, topology="cpu:8", progress=False).references["zero2"]
    alone = jax.jit(step)(*args)
    planned = plan.jit()(*plan.shard(args))
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(planned), strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-4, atol=1e-5 * float(np.abs(one).max()))
