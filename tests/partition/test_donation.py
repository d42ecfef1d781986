"""A planned step never takes away or corrupts arrays that its caller still holds, whichever arrays share memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxplan
from jaxplan.partition import _donation

Params = dict[str, Any]


def momentum_step(params: Params, mean: Params, x: Any) -> tuple[Params, Params, Any]:
    def loss_of(p: Params) -> Any:
        return jnp.mean((jnp.tanh(x @ p["in"]) @ p["out"] - 1) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    mean = jax.tree.map(lambda m, g: 0.9 * m + g, mean, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, mean), mean, loss


def distance_step(params: Params, target: Params, x: Any) -> tuple[Params, Params, Any]:
    def loss_of(p: Params) -> Any:
        return jnp.mean((x @ p["w"] - x @ target["w"] - 1) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), target, loss


def make_params(seed: int) -> Params:
    keys = jax.random.split(jax.random.key(seed))
    return {"in": jax.random.normal(keys[0], (16, 32)) / 4, "out": jax.random.normal(keys[1], (32, 16)) / 6}


X = jax.random.normal(jax.random.key(7), (64, 16))


@pytest.fixture(scope="module", params=["fastest", "data", "fsdp"])
def plan(request: pytest.FixtureRequest) -> jaxplan.Plan:
    """Both states are donated; replicated parameters (`data`) keep the buffer of the device they come from."""
    example = (make_params(0), make_params(1), X)
    frontier = jaxplan.plan(
        momentum_step, *example, topology="cpu:8", memory="1GiB", donate_argnums=(0, 1), progress=False
    )
    return frontier.choose(request.param)


def on_other_axes(x: Any) -> Any:
    """Replicated over the same devices by a mesh of other axes: the planned step has to place it anew."""
    return jax.device_put(x, NamedSharding(Mesh(np.array(jax.devices()[:8]), ("all",)), PartitionSpec()))


SOURCES: dict[str, Callable[[Any], Any]] = {
    "one device": jnp.asarray,
    "NumPy": np.asarray,
    "zero copy": lambda x: jnp.asarray(np.asarray(x)),
    "another mesh": on_other_axes,
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("source", SOURCES)
def test_arrays_that_are_placed_stay_with_their_caller(plan: jaxplan.Plan, source: str) -> None:
    """Placing keeps the buffer where an array is already: the donated one has to be a copy."""
    params, mean = (jax.tree.map(SOURCES[source], make_params(seed)) for seed in (0, 1))
    wanted = jax.jit(momentum_step)(make_params(0), make_params(1), X)
    found = plan.jit()(params, mean, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, wanted)
    for given, original in zip((params, mean), (make_params(0), make_params(1)), strict=True):
        jax.tree.map(np.testing.assert_array_equal, given, original)
    again = plan.jit()(params, mean, X)
    jax.tree.map(np.testing.assert_array_equal, again, found)


def test_placed_arguments_are_not_those_of_the_caller(plan: jaxplan.Plan) -> None:
    arguments = (make_params(0), make_params(1), X)
    placed = plan.shard(arguments)
    jax.block_until_ready(plan.jit()(*placed))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(arguments))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(placed[:2]))


def test_one_array_as_two_donated_arguments(plan: jaxplan.Plan, caplog: pytest.LogCaptureFixture) -> None:
    """As when an average starts as the parameters themselves; said once, with both paths."""
    run = plan.jit()
    params, _, x = plan.shard((make_params(0), make_params(1), X))
    with caplog.at_level(logging.INFO, logger="jaxplan"):
        found = run(params, params, x)
        once_more = run(params, params, x)
    wanted = jax.jit(momentum_step)(make_params(0), make_params(0), X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, wanted)
    jax.tree.map(np.testing.assert_array_equal, found, once_more)
    notes = [r.getMessage() for r in caplog.records if "share a buffer" in r.getMessage()]
    assert len(notes) == 1
    assert "[0]['in'] with [1]['in']" in notes[0]


def test_one_array_throughout_a_donated_tree(plan: jaxplan.Plan) -> None:
    shared = plan.shard((make_params(0), make_params(1), X))
    zeros = jax.device_put(jnp.zeros((16, 32)), shared[0]["in"].sharding)
    params, mean = {**shared[0], "in": zeros}, {**shared[1], "in": zeros}
    wanted = jax.jit(momentum_step)(jax.tree.map(np.asarray, params), jax.tree.map(np.asarray, mean), X)
    found = plan.jit()(params, mean, shared[2])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, wanted)


def test_a_target_that_is_now_and_then_the_parameters() -> None:
    """jax.jit computes this; buffers of one execution that are donated and read would end the process."""
    run = jaxplan.auto(distance_step, topology="cpu:8", memory="1GiB", donate_argnums=(0,), progress=False)
    reference = jax.jit(distance_step)
    params, target = {"w": jnp.ones((32, 32))}, {"w": jnp.zeros((32, 32))}
    wanted_params, wanted_target, x = params, target, jnp.ones((64, 32))
    for i in range(7):
        if i % 2 == 0:
            target, wanted_target = params, wanted_params
        params, target, loss = run(params, target, x)
        wanted_params, wanted_target, wanted = reference(wanted_params, wanted_target, x)
        np.testing.assert_allclose(loss, wanted, rtol=1e-4)


@pytest.mark.parametrize("alias", ["one shard", "device_put", "same object"])
def test_a_view_of_a_donated_array_is_not_lost(alias: str) -> None:
    def step(state: Any, x: Any) -> tuple[Any, Any]:
        return state + jnp.sum(x), jnp.mean(x)

    example = (jnp.ones((8, 8)), jnp.ones((8, 8)))
    frontier = jaxplan.plan(
        step, *example, topology="cpu:8", memory="1GiB", donate_argnums=(0,), progress=False
    )
    run = frontier.fastest().jit()
    state, _ = run.shard(*example)
    for _ in range(3):
        if alias == "one shard":
            shard = next(iter(state.addressable_shards)).data
            view = shard if shard.shape == (8, 8) else jnp.zeros((8, 8))
        else:
            view = state if alias == "same object" else on_other_axes(state)
        total = float(np.sum(np.asarray(view)))
        new, mean = run(state, view)
        assert float(mean) == total / 64
        assert float(np.sum(np.asarray(view))) == total
        state = new


def test_key_data_shares_the_buffer_of_its_key() -> None:
    def step(key: Any, words: Any, x: Any) -> tuple[Any, Any]:
        key, _ = jax.random.split(key)
        return key, jnp.sum(words) + jnp.sum(x @ x).astype(jnp.uint32)

    key, x = jax.random.key(3), jnp.ones((8, 8))
    frontier = jaxplan.plan(
        step,
        key,
        jax.random.key_data(key),
        x,
        topology="cpu:8",
        memory="1GiB",
        donate_argnums=(0,),
        progress=False,
    )
    run = frontier.fastest().jit()
    key, _, x = run.shard(key, jax.random.key_data(key), x)
    words = jax.random.key_data(key)
    expected = np.asarray(words).sum(dtype=np.uint32) + np.uint32(512)
    found, total = run(key, words, x)
    assert int(total) == int(expected)
    assert jax.random.key_data(found).shape == words.shape


def test_a_loop_that_passes_results_on_looks_at_no_buffer(
    plan: jaxplan.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses are slow to ask for, so only arguments that could share memory are asked."""
    run, (params, mean, x) = plan.jit(), plan.shard((make_params(0), make_params(1), X))
    params, mean, _ = run(params, mean, x)
    looked: list[Any] = []
    spans = _donation.spans
    monkeypatch.setattr(_donation, "spans", lambda array: looked.append(array) or spans(array))
    for _ in range(3):
        params, mean, _ = run(params, mean, x)
    assert not looked
    run(*plan.shard((make_params(0), make_params(1), X)))
    assert looked


def test_empty_arrays_are_nobodys_to_consume() -> None:
    def step(state: dict[str, Any], x: Any) -> tuple[dict[str, Any], Any]:
        return {"w": state["w"] - 0.1 * jnp.mean(x @ state["w"]), "none": state["none"] * 2}, jnp.mean(x)

    state = {"w": jnp.ones((16, 16)), "none": jnp.zeros((0, 4))}
    frontier = jaxplan.plan(
        step, state, X, topology="cpu:8", memory="1GiB", donate_argnums=(0,), progress=False
    )
    run = frontier.fastest().jit()
    new, _ = run(state, X)
    run({**new, "none": state["none"]}, X)
    assert state["none"].shape == np.asarray(state["none"]).shape == (0, 4)
