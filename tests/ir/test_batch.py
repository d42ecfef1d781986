"""The batch is the dimension along which examples are independent, and parameters are shared by all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxplan.ir import StepGraph, analyse, trace

BATCH, TIME, WIDTH, HIDDEN = 96, 12, 48, 80
"""All different, so that a size names a dimension."""


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


KERNELS = {"up": shape(WIDTH, HIDDEN), "down": shape(HIDDEN, WIDTH)}
KEY = shape(2, dtype=jnp.uint32)


def mlp(p: Any, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ p["up"]) @ p["down"]


def descend(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    def step(params: Any, *data: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, *data))

    return step


def analysed(step: Callable[..., Any], *args: Any) -> StepGraph:
    return analyse(trace(step, args, {}))


def sizes(graph: StepGraph) -> list[int]:
    return [graph.named.dimensions[k].size for k in graph.batch.dimensions]


def parameters(graph: StepGraph) -> set[str]:
    return {graph.program.tensors[t].path for t in graph.batch.parameters}


def _square(p: Any, x: jax.Array) -> jax.Array:
    return jnp.mean(mlp(p, x) ** 2)


def _features_first(p: Any, x: jax.Array) -> jax.Array:
    return jnp.mean((p["down"].T @ jax.nn.relu(p["up"].T @ x)) ** 2)


def _recurrent(p: Any, x: jax.Array) -> jax.Array:
    def cell(h: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(now + mlp(p, h))
        return h, h

    return jnp.mean(jax.lax.scan(cell, jnp.zeros(x.shape[1:]), x)[1] ** 2)


def _attention(p: Any, x: jax.Array) -> jax.Array:
    """Of tokens that stand before the batch."""
    h = mlp(p, x)
    scores = jax.nn.softmax(jnp.einsum("tbd,sbd->bts", h, h))
    return jnp.mean(jnp.einsum("bts,sbd->tbd", scores, h) ** 2)


def _normalised(p: Any, x: jax.Array) -> jax.Array:
    h = x @ p["up"]
    return jnp.mean(((h - h.mean(0)) / (h.std(0) + 1e-3)) @ p["down"] ** 2)


def _weighted(p: Any, x: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.sum(weights * jnp.mean(mlp(p, x) ** 2, axis=-1)) / jnp.sum(weights)


def _contrastive(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    z = mlp(p, jnp.concatenate([x, y]))
    return -jnp.mean(jax.nn.log_softmax(z @ z.T)[: len(x), len(x) :])


@pytest.mark.parametrize(
    ("loss", "data", "expected"),
    [
        (_square, (shape(BATCH, WIDTH),), BATCH),
        (_features_first, (shape(WIDTH, BATCH),), BATCH),
        (_recurrent, (shape(TIME, BATCH, WIDTH),), BATCH),
        (_attention, (shape(TIME, BATCH, WIDTH),), BATCH),
        (_normalised, (shape(BATCH, WIDTH),), BATCH),
        (_weighted, (shape(BATCH, WIDTH), shape(BATCH)), BATCH),
        (_contrastive, (shape(BATCH, WIDTH), shape(BATCH, WIDTH)), 2 * BATCH),
    ],
)
def test_the_batch_is_found_wherever_it_stands(loss: Any, data: tuple[Any, ...], expected: int) -> None:
    graph = analysed(descend(loss), KERNELS, *data)
    assert sizes(graph)[0] == expected
    assert {"[0]['up']", "[0]['down']"} <= parameters(graph)


def _stacked(p: Any, batches: jax.Array) -> Any:
    """Gradients of micro-batches, added up."""
    zeros = jax.tree.map(jnp.zeros_like, p)
    add = lambda g, x: (jax.tree.map(jnp.add, g, jax.grad(_square)(p, x)), None)  # noqa: E731
    return jax.tree.map(lambda p, g: p - g, p, jax.lax.scan(add, zeros, batches)[0])


def _sliced(p: Any, x: jax.Array, stride: int = BATCH // 3) -> Any:
    def add(k: Any, g: Any) -> Any:
        part = jax.lax.dynamic_slice_in_dim(x, k * stride, BATCH // 3)
        return jax.tree.map(jnp.add, g, jax.grad(_square)(p, part))

    return jax.tree.map(lambda p, g: p - g, p, jax.lax.fori_loop(0, 3, add, jax.tree.map(jnp.zeros_like, p)))


def _reshaped(p: Any, x: jax.Array) -> Any:
    return _stacked(p, x.reshape(3, BATCH // 3, WIDTH))


def _overlapping(p: Any, x: jax.Array) -> Any:
    return _sliced(p, x, stride=BATCH // 4)


def _steps(p: Any, batches: jax.Array) -> Any:
    return jax.lax.scan(lambda p, x: (descend(_square)(p, x), None), p, batches)[0]


@pytest.mark.parametrize(
    ("step", "data", "expected"),
    [
        (_stacked, shape(3, BATCH, WIDTH), BATCH),
        (_reshaped, shape(BATCH, WIDTH), BATCH),
        (_sliced, shape(BATCH, WIDTH), BATCH),
        (_overlapping, shape(BATCH, WIDTH), BATCH // 3),
        (_steps, shape(3, BATCH, WIDTH), BATCH),
    ],
)
def test_the_batch_of_a_loop_over_micro_batches_is_theirs(step: Any, data: Any, expected: int) -> None:
    """Or the whole one, where each device may cut micro-batches out of its own examples."""
    graph = analysed(step, KERNELS, data)
    assert sizes(graph) == [expected]
    assert parameters(graph) == {"[0]['up']", "[0]['down']"}


def test_environments_in_the_state_are_the_batch() -> None:
    """A rollout by the policy, then a gradient of its rewards; nothing but a key comes from outside."""

    def step(p: Any, envs: jax.Array, key: jax.Array) -> Any:
        def act(envs: jax.Array, key: jax.Array) -> Any:
            new = jnp.tanh(envs + mlp(p, envs) * jax.random.normal(key, envs.shape))
            return new, (envs, new.sum(-1))

        envs, (seen, gained) = jax.lax.scan(act, envs, jax.random.split(key, TIME))
        loss = lambda p: jnp.mean(mlp(p, seen).sum(-1) * gained)  # noqa: E731
        return jax.tree.map(lambda p, g: p - g, p, jax.grad(loss)(p)), envs

    graph = analysed(step, KERNELS, shape(BATCH, WIDTH), KEY)
    assert sizes(graph) == [BATCH]
    assert parameters(graph) == {"[0]['up']", "[0]['down']"}


def test_a_second_tower_has_a_batch_of_its_own() -> None:
    def loss(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        scores = mlp(p, x) @ (jnp.tanh(mlp(p, y)).T)
        return -jnp.mean(jax.nn.log_softmax(scores))

    graph = analysed(descend(loss), KERNELS, shape(BATCH, WIDTH), shape(BATCH // 2, WIDTH))
    assert sorted(sizes(graph)) == [BATCH // 2, BATCH]


@pytest.mark.parametrize("first", [True, False])
def test_frozen_weights_are_parameters(first: bool) -> None:
    """Low-rank adapters train beside square and rectangular kernels that no output replaces."""
    adapters = {"a": shape(WIDTH, 4), "b": shape(4, HIDDEN)}

    def loss(p: Any, base: Any, x: jax.Array) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ base["up"] + (x @ p["a"]) @ p["b"]) @ base["down"]) ** 2)

    def step(base: Any, p: Any, x: jax.Array) -> Any:
        return descend(loss)(p, base, x)

    if first:
        graph = analysed(step, KERNELS, adapters, shape(BATCH, WIDTH))
    else:
        graph = analysed(descend(loss), adapters, KERNELS, shape(BATCH, WIDTH))
    assert sizes(graph) == [BATCH]
    base, trained = ("[0]", "[1]") if first else ("[1]", "[0]")
    assert parameters(graph) == {f"{base}['up']", f"{base}['down']", f"{trained}['a']", f"{trained}['b']"}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_inference_has_a_batch_and_parameters_in_any_order(order: tuple[int, ...]) -> None:
    arguments = (shape(BATCH, WIDTH), shape(WIDTH, HIDDEN), shape(HIDDEN, 24))

    def step(*given: jax.Array) -> jax.Array:
        x, up, down = (given[order.index(i)] for i in range(3))
        return jax.nn.relu(x @ up) @ down

    graph = analysed(step, *(arguments[i] for i in order))
    assert sizes(graph) == [BATCH]
    assert parameters(graph) == {f"[{order.index(1)}]", f"[{order.index(2)}]"}


def _message_passing(p: Any, nodes: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
    for _ in range(2):
        messages = jax.nn.relu(nodes @ p["up"])
        nodes = jnp.zeros_like(messages).at[target].add(messages[source]) @ p["down"]
    return jnp.mean(nodes**2)


def test_one_large_graph_has_no_batch() -> None:
    edges = shape(200, dtype=jnp.int32)
    graph = analysed(descend(_message_passing), KERNELS, shape(BATCH, WIDTH), edges, edges)
    assert sizes(graph) == [] and "examples are independent along no dimension" in graph.batch.reason


def test_a_stencil_has_no_batch_and_a_batch_of_fields_has_one() -> None:
    def step(u: jax.Array) -> jax.Array:
        return u + 0.1 * sum(jnp.roll(u, by, axis) for by in (1, -1) for axis in (-1, -2))

    assert sizes(analysed(step, shape(BATCH, 64, WIDTH))) == [BATCH]
    assert "mixes" in analysed(step, shape(64, WIDTH)).batch.reason


def test_one_sequence_has_no_batch() -> None:
    graph = analysed(descend(_attention), KERNELS, shape(BATCH, 1, WIDTH))
    assert BATCH not in sizes(graph)
