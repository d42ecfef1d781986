"""Published searches on real train steps."""

import jax
import jax.numpy as jnp
import pytest

import jaxplan

SHAPE = (64, 64)


def recurrent_step(num_steps):
    """A train step of an unrolled recurrence of two layers, and its abstract arguments."""

    def loss(params, xs):
        states = [jnp.zeros((xs.shape[1], SHAPE[0]))] * 2
        for t in range(num_steps):
            x = xs[t]
            for layer, (read, again) in enumerate(params):
                x = states[layer] = jnp.tanh(x @ read + states[layer] @ again)
        return jnp.mean(x**2)

    def step(params, xs):
        gradients = jax.grad(loss)(params, xs)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    weight = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    return step, ([(weight, weight)] * 2, jax.ShapeDtypeStruct((num_steps, 32, SHAPE[0]), jnp.float32))


@pytest.mark.parametrize("topology", ["h100:2x2", "h100:8"])
def test_one_mesh_answers_on_a_recurrence(topology):
    step, args = recurrent_step(3)
    restricted = jaxplan.plan(step, *args, topology=topology, solver="one_mesh", progress=False)
    free = jaxplan.plan(step, *args, topology=topology, progress=False)
    assert any(plan.name == "plan" for plan in restricted)  # not reference strategies alone
    assert free.fastest().time_seconds <= restricted.fastest().time_seconds * (1 + 1e-9)
