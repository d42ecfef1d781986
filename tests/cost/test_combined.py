"""Shares of latencies: counted by hand for small parameters, gradients and statistics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxplan.cost import build_cost_model
from jaxplan.cost._combined import (
    COMBINED_TOGETHER_BYTES,
    combined_bytes,
    evenly_split_peak,
    latency_shares,
)
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


def _shares_of_weights_and_gradients(
    graph: StepGraph, topology: str, most_bytes: int = COMBINED_TOGETHER_BYTES
) -> tuple[list[float], list[float]]:
    model = build_cost_model(graph, Topology.parse(topology))
    shares = latency_shares(graph, model.reads, model.buffers.found, lambda group: True, most_bytes)
    made_by, groups = graph.values.producer, graph.grouping.groups
    weights = [t for t in graph.program.inputs if t in graph.state]
    updates = [f for f in model.reads if made_by[f.tensor] >= 0 and groups[f.consumer].kind == "state"]
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


@pytest.mark.parametrize(
    "num_layers, fit, share",
    [
        (3, 4, 1 / 3),  # all three fit into one
        (10, 4, 3 / 10),  # four, four and two
        (4, 1, 1.0),
    ],
)
def test_larger_ones_share_where_more_may_be_combined(num_layers: int, fit: int, share: float) -> None:
    """Parameters of 1 MiB."""
    weights, gradients = _shares_of_weights_and_gradients(_layers(num_layers, 512), "h100:8", fit * 2**20)
    assert weights == gradients == pytest.approx([share] * num_layers)


def test_small_beside_large_pays_by_its_size() -> None:
    """A combined collective of 4 MiB holds two matrices of 2 MiB, or 64 of 64 KiB: two and four are one and a bit."""
    widths = [128, 128, 724, 724]
    shapes = [jax.ShapeDtypeStruct((w, w), jnp.float32) for w in widths]
    inputs = [jax.ShapeDtypeStruct((BATCH, w), jnp.float32) for w in widths]

    def step(params: Any, xs: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            return jnp.stack([jnp.sum(jnp.tanh(x @ p)) for x, p in zip(xs, params, strict=True)]).sum()

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    weights, _ = _shares_of_weights_and_gradients(analyse(trace(step, (shapes, inputs), {})), "h100:8", 4 * 2**20)
    assert weights[0] == weights[1] and weights[2] == weights[3]
    assert weights[2] == pytest.approx(32 * weights[0])
    assert sum(weights) == pytest.approx(2)


def test_a_gradient_that_is_reshaped_before_its_update_shares_too() -> None:
    """A bias for heads is a sum of shape (heads, size), and reshaped where it was broadcast."""

    def step(params: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            weight, bias = params
            return jnp.sum(jnp.tanh((x @ weight).reshape(BATCH, 16, 16) + bias.reshape(1, 16, 16)))

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((256, 256), (256,), (BATCH, 256))]
    graph = analyse(trace(step, (shapes[:2], shapes[2]), {}))
    model = build_cost_model(graph, Topology.parse("h100:8"))
    backward = [e for e in graph.program.equations if e.phase == "backward"]
    total = next(e.results[0] for e in backward if e.name == "reduce_sum")
    assert model.latency_shares[total] < 1 / 2


@pytest.mark.parametrize(
    "memory, limit", [(2**20, 2**20), (400 * 2**20, 4 * 2**20), (2**33, 30 * 2**20), (0.0, 2**20)]
)
def test_as_much_is_combined_as_one_percent_of_memory(memory: float, limit: int) -> None:
    assert combined_bytes(memory) == limit


def test_an_even_split_of_what_lives() -> None:
    """Two dots in a row: the first result, both operands of the second and its result live together."""

    def forward(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        return jnp.tanh(x @ first) @ second

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((512, 64), (64, 256), (256, 1024))]
    graph = analyse(trace(forward, shapes, {}))
    model = build_cost_model(graph, Topology.parse("h100:8"))
    alive = 4 * (512 * 64 + 64 * 256 + 256 * 1024 + 512 * 256 + 512 * 1024)
    least = 4 * (256 * 1024 + 512 * 256 + 512 * 1024)
    assert least / 8 <= evenly_split_peak(graph, model.buffers, 8) <= alive / 8


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
    """Two statistics of one activation, taken between the same two dots."""

    def forward(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        hidden = jnp.tanh(x @ first)
        mean, square = jnp.mean(hidden, 0), jnp.mean(hidden**2, 0)
        return ((hidden - mean) * jax.lax.rsqrt(square - mean**2 + 1e-6)) @ second

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((BATCH, 256), (256, 256), (256, 256))]
    graph = analyse(trace(forward, shapes, {}))
    model = build_cost_model(graph, Topology.parse("h100:8"))
    sums = [e.results[0] for e in graph.program.equations if e.name == "reduce_sum"]
    assert [model.latency_shares[t] for t in sums] == [0.5, 0.5]
