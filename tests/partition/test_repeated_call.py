"""Calls that pass on the results of the last one take a short way; every other call takes the ordinary one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan

WIDTH = 16


def step(state: dict[str, jax.Array], batch: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    state = {name: leaf + batch.sum(axis=0)[:, None] for name, leaf in state.items()}
    return state, batch.sum()


def state_and_batch() -> tuple[Any, Any]:
    state = {name: np.full((WIDTH, WIDTH), float(i), np.float32) for i, name in enumerate("ab")}
    return state, np.ones((8, WIDTH), np.float32)


@pytest.fixture(scope="module")
def planned() -> Any:
    return jaxplan.plan(step, *state_and_batch(), topology="cpu:8", memory="1GiB").leanest().jit()


def trained(planned: Any, calls: int) -> tuple[Any, Any]:
    """State after some calls, and the placed batch."""
    state, batch = planned.shard(*state_and_batch())
    for _ in range(calls):
        state, _ = planned(state, batch)
    return state, batch


def test_third_call_takes_the_short_way_with_equal_results(planned: Any) -> None:
    state, batch = trained(planned, 2)
    assert planned.repeated((state, batch), {}) is not NotImplemented
    state, _ = trained(planned, 4)
    np.testing.assert_array_equal(state["b"], 1.0 + 4 * 8 * np.ones((WIDTH, WIDTH)))


def test_new_placed_batch_of_the_same_kind_takes_the_short_way(planned: Any) -> None:
    state, batch = trained(planned, 3)
    other = jax.device_put(2 * np.asarray(batch), batch.sharding)
    results = planned.repeated((state, other), {})
    assert results is not NotImplemented and float(results[1]) == 2 * 8 * WIDTH


@pytest.mark.parametrize("kind", ["numpy", "other dtype", "other structure", "own state", "twice"])
def test_other_arguments_take_the_ordinary_way(planned: Any, kind: str) -> None:
    state, batch = trained(planned, 3)
    given = {
        "numpy": (state, np.asarray(batch)),
        "other dtype": (state, batch.astype(jnp.int32)),
        "other structure": ({**state, "c": state["a"]}, batch),
        "own state": ({"a": jnp.copy(state["a"]), "b": state["b"]}, batch),
        "twice": ({"a": state["a"], "b": state["a"]}, batch),
    }[kind]
    assert planned.repeated(given, {}) is NotImplemented


def test_settings_that_change_the_program_take_the_ordinary_way(planned: Any) -> None:
    state, batch = trained(planned, 3)
    with jax.debug_nans(True):
        assert planned.repeated((state, batch), {}) is NotImplemented
    with jax.default_matmul_precision("highest"):
        assert planned.repeated((state, batch), {}) is NotImplemented


def test_argument_that_was_donated_is_named_in_a_loop_too(planned: Any) -> None:
    state, batch = trained(planned, 3)
    planned(state, batch)
    with pytest.raises(jaxplan.ArgumentError, match=r"\[0\]\['a'\] was deleted"):
        planned(state, batch)


def test_auto_counts_hits_of_the_short_way() -> None:
    auto = jaxplan.auto(step, memory="1GiB", choose="leanest")
    state, batch = state_and_batch()
    for _ in range(5):
        state, loss = auto(state, batch)
        batch = auto._repeated.shard(state, np.ones((8, WIDTH), np.float32))[1]
    assert auto.cache_info().hits == 4 and auto.cache_info().misses == 1
    assert float(loss) == 8 * WIDTH
