"""Squeeze and excitation: expectations are values that compiled programs were seen to write."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from jaxplan.ir import analyse, trace
from jaxplan.mesh import Topology
from jaxplan.xla import Target, analyse_buffers

IMAGE, C = (8, 14, 14), 64
Function = Callable[[jax.Array], jax.Array]


def _images(function: Function, topology: str) -> int:
    """How many images the forward pass writes."""

    def step(x: jax.Array, first: jax.Array, squeeze: jax.Array, excite: jax.Array, last: jax.Array) -> tuple:
        def loss(first: jax.Array, last: jax.Array) -> jax.Array:
            h = (x @ first).astype(jnp.float32)
            h = (h - h.mean((0, 1, 2))) * jax.lax.rsqrt(h.var((0, 1, 2)) + 1e-3)
            h = function(h.astype(jnp.bfloat16))
            gate = jax.nn.sigmoid(jax.nn.relu(h.mean((1, 2), keepdims=True) @ squeeze) @ excite)
            return jnp.square(((h * gate) @ last).astype(jnp.float32)).sum()

        return jax.grad(loss, argnums=(0, 1))(first, last)

    shapes = [(*IMAGE, C), (C, C), (C, 16), (16, C), (C, 2 * C)]
    graph = analyse(trace(step, [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes], {}))
    written = analyse_buffers(graph, Target.of(Topology.parse(topology).chip)).materialised
    forward = [e for e in graph.program.equations if e.phase == "forward"]
    results = [t for e in forward for t in e.results]
    return sum(graph.program.tensors[t].shape == (*IMAGE, C) and written[t] for t in results)


@pytest.mark.parametrize("function", [jax.nn.relu, jax.nn.relu6, jax.nn.swish])
def test_gpus_write_what_is_weighed_behind_a_function(function: Function) -> None:
    assert _images(function, "h100:8") == _images(lambda h: h, "h100:8") + 1


@pytest.mark.parametrize("function", [jax.nn.relu, jax.nn.swish])
def test_tpus_compute_it_again(function: Function) -> None:
    assert _images(function, "v5e:2x4") == _images(lambda h: h, "v5e:2x4")
