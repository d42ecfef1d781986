"""Shares of latencies: counted by hand for small parameters, gradients and statistics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxplan.cost import build_cost_model
from jaxplan.cost._combined import COMBINED_TOGETHER_BYTES, latency_shares
from jaxplan.ir import StepGraph, analyse, trace
from jaxplan.mesh import Topology

BATCH = 512


def _layers(num_layers: int, width: int) -> StepGraph:
    def step(params: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            hidden = x
            for weight in params:
                hidden = jnp.tanh(hidden @ weight)
            return jnp.sum(hidden)

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    shape = jax.ShapeDtypeStruct((width, width), jnp.float32)
    return analyse(trace(step, ([shape] * num_layers, jax.ShapeDtypeStruct((BATCH, width), jnp.float32)), {}))


def _shares_of_weights_and_gradients(graph: StepGraph, topology: str) -> tuple[list[float], list[float]]:
    model = build_cost_model(graph, Topology.parse(topology))
    shares = latency_shares(graph, model.flows, model.topology.chip, lambda group: True)
    made_by, groups = graph.values.producer, graph.grouping.groups
    weights = [t for t in graph.program.inputs if t in graph.state]
    updates = [f for f in model.flows if made_by[f.tensor] >= 0 and groups[f.consumer].kind == "state"]
    gradients = dict.fromkeys(f.tensor for f in updates)
    return [shares.get(t, 1.0) for t in weights], [shares.get(t, 1.0) for t in gradients]


@pytest.mark.parametrize(
    "num_layers, width, share",
    [
        (4, 128, 1 / 4),  # 64 KiB each: one is left
        (20, 128, 2 / 20),  # 1.25 MiB in all
        (32, 128, 2 / 32),  # 2 MiB in all: two are left
        (3, 512, 1.0),  # 1 MiB each: nothing fits beside another
    ],
)
def test_small_parameters_and_gradients_share_latencies(num_layers: int, width: int, share: float) -> None:
    weights, gradients = _shares_of_weights_and_gradients(_layers(num_layers, width), "h100:8")
    assert weights == gradients == [share] * num_layers


@pytest.mark.parametrize("topology", ["cpu:8", "v5e:2x4"])
def test_nothing_is_shared_where_no_compiler_was_seen_to_combine(topology: str) -> None:
    weights, gradients = _shares_of_weights_and_gradients(_layers(20, 128), topology)
    assert weights == gradients == [1.0] * 20


def test_large_ones_pay_in_full() -> None:
    graph = _layers(2, 1024)
    model = build_cost_model(graph, Topology.parse("h100:8"))
    large = [t for t in graph.program.inputs if graph.program.tensors[t].num_bytes > COMBINED_TOGETHER_BYTES]
    assert large
    assert not set(large) & set(model.latency_shares)


def test_a_mean_and_a_mean_of_squares_are_one_sum() -> None:
    """Two statistics of one activation, taken between the same two products."""

    def forward(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        hidden = jnp.tanh(x @ first)
        mean, square = jnp.mean(hidden, 0), jnp.mean(hidden**2, 0)
        return ((hidden - mean) * jax.lax.rsqrt(square - mean**2 + 1e-6)) @ second

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((BATCH, 256), (256, 256), (256, 256))]
    graph = analyse(trace(forward, shapes, {}))
    model = build_cost_model(graph, Topology.parse("h100:8"))
    sums = [e.results[0] for e in graph.program.equations if e.name == "reduce_sum"]
    assert [model.latency_shares[t] for t in sums] == [0.5, 0.5]
