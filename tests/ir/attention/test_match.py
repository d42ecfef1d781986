"""Attention is found by the values computed, forward and backward, and left alone where a weight has another use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from jaxplan.ir import StepGraph, analyse, trace
from jaxplan.ir.attention import BACKWARD, FORMS, FORWARD, attention_graph, block_keys, largest_scores

Array = jax.Array
HEADS = jax.ShapeDtypeStruct((2, 8, 4, 16), jnp.float32)


def causal(q: Array, k: Array, v: Array) -> Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)


def by_hand(q: Array, k: Array, v: Array) -> Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q * 0.25, k)
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    return jnp.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)


def grouped(q: Array, k: Array, v: Array) -> Array:
    """Two heads of queries share one of keys; the mask is added."""
    q, k, v = q.reshape(2, 8, 2, 2, 16), k[:, :, :2], v[:, :, :2]
    positions = jnp.arange(8)
    bias = jnp.where(positions[:, None] >= positions, 0.0, -jnp.inf)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k) * 0.25 + bias
    return jnp.einsum("bhgqk,bkhd->bqhgd", jax.nn.softmax(scores, -1), v)


def of_jax(q: Array, k: Array, v: Array) -> Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def of_flax(q: Array, k: Array, v: Array) -> Array:
    return nn.dot_product_attention(q, k, v, mask=nn.make_causal_mask(jnp.ones((2, 8))))


def dropped(q: Array, k: Array, v: Array) -> Array:
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), -1)
    kept = jax.random.bernoulli(jax.random.key(0), 0.9, weights.shape)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(kept, weights / 0.9, 0), v)


def capped(q: Array, k: Array, v: Array) -> Array:
    scores = 30 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)


def graph_of(attention: Callable[..., Array], *, gradient: bool = True) -> StepGraph:
    def loss(arrays: Any) -> Array:
        return (attention(*arrays) ** 2).sum()

    return analyse(trace(jax.grad(loss) if gradient else loss, ((HEADS, HEADS, HEADS),)))


def names(graph: StepGraph) -> list[str]:
    return [eqn.name for eqn in graph.program.equations if eqn.name in (FORWARD, BACKWARD)]


@pytest.mark.parametrize("attention", [causal, by_hand, grouped, of_jax, of_flax])
def test_found(attention: Callable[..., Array]) -> None:
    graph = graph_of(attention)
    assert names(graph) == []
    fused = attention_graph(graph, "ring")
    assert names(fused) == [FORWARD, BACKWARD]
    shapes = [fused.program.tensors[t].shape for eqn in fused.program.equations for t in eqn.results]
    assert all(shape.count(8) < 2 for shape in shapes), "no scores are left"
    assert names(attention_graph(graph_of(attention, gradient=False), "gather")) == [FORWARD]


def test_recomputed() -> None:
    """The backward pass of a checkpointed block has no result of its own: it is computed for the row sums."""
    assert names(attention_graph(graph_of(jax.checkpoint(causal)), "ring")) == [FORWARD, FORWARD, BACKWARD]


@pytest.mark.parametrize("attention", [dropped, capped])
def test_left_alone(attention: Callable[..., Array]) -> None:
    graph = graph_of(attention)
    assert attention_graph(graph, "ring") is graph
    assert largest_scores(graph) == 0


def test_weights_that_are_returned_are_left_alone() -> None:
    def step(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), -1)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v), weights

    graph = analyse(trace(step, (HEADS, HEADS, HEADS)))
    assert attention_graph(graph, "ring") is graph


def test_sizes() -> None:
    """4 bytes for each of 2 x 4 x 8 x 8 scores; a block has a number of keys that divides all, and 2**25 scores."""
    assert largest_scores(graph_of(causal)) == 4 * 2 * 4 * 8 * 8
    assert block_keys(2**20, 96) == 32
    assert FORMS == ("ring", "gather", "heads")


def test_names_are_kept() -> None:
    """One operator does not show that it compares positions, so they could be taken for examples."""
    graph = graph_of(causal)
    fused = attention_graph(graph, "ring")
    assert fused.batch == graph.batch
    first = fused.program.inputs[0]
    assert [fused.named.name_at(first, d) for d in range(4)] == [
        graph.named.name_at(first, d) for d in range(4)
    ]


def test_attentions_of_equal_layers_are_equal() -> None:
    """Repeated layers are found by equal operators, so that they can be recomputed in blocks."""

    def origins(scales: tuple[float, ...]) -> list[Any]:
        def step(x: Array) -> Array:
            for scale in scales:
                x = x + causal(x * scale, x, x) if scale == 1 else x + by_hand(x, x, x)
            return x

        fused = attention_graph(analyse(trace(step, (HEADS,))), "ring")
        return [eqn.params for eqn in fused.program.equations if eqn.name == FORWARD]

    first, second, other = origins((1.0, 1.0, 2.0))
    assert first == second and first != other
    assert len({next(iter(params.values())) for params in (first, second, other)}) == 2
