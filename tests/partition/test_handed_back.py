"""Results that are arguments unchanged: no copy is computed, and the caller's arrays stay valid."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan

WIDTH = 256
FROZEN = {"w": jnp.full((WIDTH, WIDTH), 0.01)}
PARAMS = {"w": jnp.full((WIDTH, WIDTH), 0.02)}
X = jnp.ones((64, WIDTH))


def step(frozen: Any, params: Any, x: jax.Array) -> Any:
    grads = jax.grad(lambda p: jnp.mean((x @ frozen["w"] @ p["w"] - 1) ** 2))(params)
    return frozen, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), x


@pytest.fixture(scope="module")
def plan() -> jaxplan.Plan:
    return jaxplan.plan(step, FROZEN, PARAMS, X, topology="cpu:8", progress=False).references["data"]


def test_no_copy_is_in_the_compiled_program(plan: jaxplan.Plan) -> None:
    memory = plan.jit().lower(FROZEN, PARAMS, X).compile().memory_analysis()
    assert WIDTH * WIDTH * 4 <= memory.output_size_in_bytes < WIDTH * WIDTH * 4 + 1024  # parameters alone


def test_the_array_that_is_passed_is_returned(plan: jaxplan.Plan) -> None:
    frozen, params, x = plan.shard((FROZEN, PARAMS, X))
    new_frozen, new_params, new_x = plan.jit()(frozen, params, x)
    assert new_frozen["w"] is frozen["w"] and new_x is x
    expected = jax.jit(step)(FROZEN, PARAMS, X)[1]
    np.testing.assert_allclose(new_params["w"], expected["w"], rtol=1e-5)


def test_an_array_that_had_to_be_placed_shares_no_memory_with_what_is_returned(plan: jaxplan.Plan) -> None:
    (frozen, _, _), given = plan.jit()(FROZEN, PARAMS, X), FROZEN["w"]
    pointers = {shard.data.unsafe_buffer_pointer() for shard in frozen["w"].addressable_shards}
    assert given.unsafe_buffer_pointer() not in pointers


def test_what_is_handed_back_may_be_donated_in_the_next_call(plan: jaxplan.Plan) -> None:
    run = plan.jit()
    frozen, _, x = run(*plan.shard((FROZEN, PARAMS, X)))
    frozen, params, _ = run(frozen, frozen, x)  # as parameters, which are donated
    assert not frozen["w"].is_deleted()
    expected = jax.jit(step)(FROZEN, FROZEN, X)[1]
    np.testing.assert_allclose(params["w"], expected["w"], rtol=1e-5)


def test_inside_another_traced_function(plan: jaxplan.Plan) -> None:
    run = plan.jit()
    found = jax.jit(lambda f, p, x: run(f, p, x))(FROZEN, PARAMS, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, step(FROZEN, PARAMS, X))


def test_donated_by_name_it_is_computed_in_place() -> None:
    frontier = jaxplan.plan(step, FROZEN, PARAMS, X, topology="cpu:2", donate_argnums=(0, 1), progress=False)
    run = frontier.fastest().jit()
    frozen, params, x = frontier.fastest().shard((FROZEN, PARAMS, X))
    new_frozen, _, _ = run(frozen, params, x)
    assert frozen["w"].is_deleted()
    np.testing.assert_array_equal(new_frozen["w"], FROZEN["w"])
