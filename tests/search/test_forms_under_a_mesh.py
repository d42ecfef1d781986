"""Steps in slices, with recomputed layers, in stages and with sorted rows, under the mesh that a person has set."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from tests.ir.local_sorts.routed import WIDTH, parameters, sorted_back

KINDS = {name: getattr(jax.sharding.AxisType, name) for name in ("Explicit", "Auto")}


def train_step(weights, x):
    def loss(weights):
        y, _ = jax.lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, weights)
        return jnp.mean(y**2)

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, value


def mixture_step(params, x):
    value, gradients = jax.value_and_grad(lambda params: jnp.mean(sorted_back(params, x) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def scanned():
    keys = jax.random.split(jax.random.key(0))
    return jax.random.normal(keys[0], (4, WIDTH, WIDTH)) / 4, jax.random.normal(keys[1], (64, WIDTH))


def routed():
    return parameters(), jax.random.normal(jax.random.key(1), (64, WIDTH))


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("step", "arguments", "options"),
    [
        (train_step, scanned, {"microbatches": 2}),
        (train_step, scanned, {"remat": True}),
        (train_step, scanned, {"stages": 2}),
        pytest.param(mixture_step, routed, {"microbatches": 2}, marks=pytest.mark.slow),
    ],
    ids=["slices", "recomputed layers", "stages", "sorted rows in slices"],
)
def test_results_are_those_of_one_device(step, arguments, options, kind):
    args = arguments()
    expected = jax.tree.leaves(jax.jit(step)(*args))
    with jax.set_mesh(jax.make_mesh((4, 2), ("a", "b"), axis_types=(KINDS[kind],) * 2)):
        frontier = jaxplan.plan(step, *args, topology="cpu:8", donate_argnums=(), progress=False, **options)
        results = jax.tree.leaves(frontier.fastest().jit()(*args))
    for a, b in zip(results, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=1e-5 * float(np.max(np.abs(b))))
