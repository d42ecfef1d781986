"""Plans that compute layers of a loop again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan

LAYERS, BATCH, WIDTH = 6, 64, 16


def train_step(weights, x):
    def layer(x, w):
        return x + jnp.tanh(jax.nn.gelu(x @ w["up"]) @ w["down"]), None

    def loss(weights):
        y, _ = jax.lax.scan(layer, x, weights)
        return jnp.mean(y**2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def arguments():
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = {"up": (LAYERS, WIDTH, 4 * WIDTH), "down": (LAYERS, 4 * WIDTH, WIDTH)}
    weights = {name: jax.random.normal(key, shape) / 8 for key, (name, shape) in zip(keys, shapes.items())}
    return weights, jax.random.normal(keys[2], (BATCH, WIDTH))


@pytest.fixture(scope="module")
def frontier():
    return jaxplan.plan(train_step, *arguments(), topology="cpu:8", remat=True, microbatches=2, progress=False)


def test_the_leanest_plan_recomputes_layers_and_equals_one_device(frontier, tmp_path):
    """In two slices of the batch, and read from a file."""
    plan = frontier.leanest()
    assert plan.recomputed_loops is not None
    assert "recomputes layers of loops" in plan.summary
    plan.save(tmp_path / "plan.json")
    again = jaxplan.load(tmp_path / "plan.json", train_step, *arguments())
    expected = jax.tree.leaves(jax.jit(train_step)(*arguments()))
    for run in (plan.jit(), again.jit()):
        for a, b in zip(jax.tree.leaves(run(*arguments())), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(jnp.max(jnp.abs(b))))


def test_it_needs_less_memory_than_any_plan_of_the_step_as_it_is(frontier):
    as_it_is = jaxplan.plan(train_step, *arguments(), topology="cpu:8", remat=False, microbatches=2, progress=False)
    assert all(plan.recomputed_loops is None for plan in as_it_is.points)
    assert frontier.leanest().memory_bytes < as_it_is.leanest().memory_bytes


def test_it_is_looked_for_where_nothing_fits_otherwise(frontier):
    as_it_is = jaxplan.plan(train_step, *arguments(), topology="cpu:8", remat=False, microbatches=2, progress=False)
    limit = (frontier.leanest().memory_bytes + as_it_is.leanest().memory_bytes) // 2
    options = {"topology": "cpu:8", "memory": limit, "microbatches": 2, "stages": False, "progress": False}
    found = jaxplan.plan(train_step, *arguments(), **options)
    assert all(plan.recomputed_loops is not None for plan in found.points)
    with pytest.raises(jaxplan.InfeasibleError):
        jaxplan.plan(train_step, *arguments(), remat=False, **options)


def test_the_step_is_traced_once_where_a_plan_fits():
    traces = []

    def counted(weights, x):
        traces.append(None)
        return train_step(weights, x)

    found = jaxplan.plan(counted, *arguments(), topology="cpu:8", progress=False)
    assert found.fastest().recomputed_loops is None
    assert len(traces) == 1
