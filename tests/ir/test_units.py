"""The units of a step that stages are made of."""

from __future__ import annotations

import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from jaxplan.ir import MicroBatches, trace
from jaxplan.ir.stages import pipeline_step, unit_kinds, units_of

NUM_LAYERS, WIDTH, BATCH = 12, 16, 32


def train_step(layers, x):
    def loss(layers):
        y = x
        for layer in layers:
            y = y + jax.checkpoint(lambda y, w: jnp.tanh(y @ w["up"]) @ w["down"])(y, layer)
        return jnp.mean(y**2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, layers, jax.grad(loss)(layers))


@pytest.fixture(scope="module")
def step():
    up, down = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)))
    layers = [{"up": up, "down": down} for _ in range(NUM_LAYERS)]
    program = trace(train_step, (layers, jax.ShapeDtypeStruct((BATCH, WIDTH), "float32")))
    return pipeline_step(program, MicroBatches(num=4, dims={program.in_paths[-1]: 0}))


@pytest.mark.parametrize("most, layers", [(96, 1), (7, 2), (4, 4)])
def test_units_have_equally_many_layers(step, most, layers):
    """Of twelve equal layers: each by itself, or as many of them together everywhere; the loss may be one more."""
    units = units_of(step, most)
    ends = [*units.starts, len(step.forward)]
    dots = [
        sum(step.loop[e].full.primitive.name == "dot_general" for e in step.forward[a:b])
        for a, b in itertools.pairwise(ends)
    ]
    assert Counter(dots) - Counter({0: 1}) == Counter({2 * layers: NUM_LAYERS // layers})
    assert max(Counter(unit_kinds(units)).values()) >= len(dots) - 3  # the ends, and the layer before the loss
