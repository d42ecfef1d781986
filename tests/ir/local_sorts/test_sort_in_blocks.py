"""Rows for ragged dots sorted in blocks: exact where only the inverse of the sort shows, and else left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxplan.ir.local_sorts import sort_in_blocks
from tests.ir.local_sorts.routed import (
    CHOSEN,
    EXPERTS,
    FORMS,
    OTHER_KEYS,
    WHOLE,
    Mixture,
    dense,
    experts,
    joined,
    parameters,
    route,
    routed,
    sorted_back,
    tokens,
    usual,
)
from tests.sampling import sampled

BLOCKS = 4


def loss_of(mixture: Mixture) -> Callable[..., Any]:
    return jax.value_and_grad(lambda p, x: jnp.mean(mixture(p, x) ** 2), argnums=(0, 1))


def sorts(jaxpr: Any) -> list[tuple[int, ...]]:
    """Shapes that are sorted, at any depth."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "sort":
            found.append(eqn.invars[0].aval.shape)
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += sorts(inner)
    return found


def check(step: Callable[..., Any], expected: Callable[..., Any], *args: Any) -> None:
    """In blocks it sorts blocks only, and equals another step."""
    closed = jax.make_jaxpr(step)(*args)
    blocks = sort_in_blocks(closed, BLOCKS)
    shapes = sorts(blocks.jaxpr)
    assert shapes and all(shape[0] == BLOCKS and len(shape) == 2 for shape in shapes), shapes
    assert [v.aval for v in blocks.jaxpr.outvars] == [v.aval for v in closed.jaxpr.outvars]
    results = jax.core.eval_jaxpr(blocks.jaxpr, blocks.consts, *jax.tree.leaves(args))
    for a, b in zip(results, jax.tree.leaves(expected(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * float(jnp.max(jnp.abs(b))))


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FORMS)
def test_forms_and_their_gradients_equal_all_experts_on_all_tokens(name: str) -> None:
    check(loss_of(FORMS[name]), loss_of(dense), parameters(), tokens())


@pytest.mark.parametrize("name", ["sorted_back", "added_back"])
def test_a_mixture_that_is_recomputed(name: str) -> None:
    check(loss_of(jax.checkpoint(FORMS[name])), loss_of(dense), parameters(), tokens())


@pytest.mark.parametrize("name", ["sorted_back", "written_back"])
@pytest.mark.parametrize("policy", sampled(["dots", "none", "all"]))
def test_layers_in_a_loop(policy: str, name: str) -> None:
    """Sorted rows, positions and counts go from the forward loop to the backward loop in stacks."""
    remat = {
        "none": lambda body: body,
        "all": jax.checkpoint,
        "dots": lambda body: jax.checkpoint(body, policy=jax.checkpoint_policies.dots_saveable),
    }[policy]

    def layers(mixture: Mixture) -> Mixture:
        body = remat(lambda x, p: (x + mixture(p, x), None))
        return lambda stack, x: lax.scan(body, x, stack)[0]

    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(parameters(seed) for seed in range(3)))
    check(loss_of(layers(FORMS[name])), loss_of(layers(dense)), stack, tokens())


@pytest.mark.slow
def test_counts_in_64_bits_may_be_narrowed() -> None:
    with jax.enable_x64(True):
        check(loss_of(FORMS["inverse_written"]), loss_of(dense), parameters(), tokens())


def test_counts_may_be_read_otherwise_too() -> None:
    """A loss for balanced experts reads the counts of all rows."""

    def balanced(p: Any, x: jax.Array) -> jax.Array:
        keys = route(p, x)[1].reshape(-1)
        shares = jnp.bincount(keys, length=EXPERTS) / keys.size
        return sorted_back(p, x) + (shares * jax.nn.softmax(x @ p["router"]).mean(0)).sum()

    def expected(p: Any, x: jax.Array) -> jax.Array:
        shares = jax.nn.one_hot(route(p, x)[1], EXPERTS).mean((0, 1))
        return dense(p, x) + (shares * jax.nn.softmax(x @ p["router"]).mean(0)).sum()

    check(loss_of(balanced), loss_of(expected), parameters(), tokens())


def test_keys_in_blocks_are_not_said_to_be_sorted() -> None:
    """A sum for each key, of sorted keys: in blocks these begin anew."""

    def with_sums(p: Any, rows: jax.Array, counts: jax.Array, keys: jax.Array, order: jax.Array, *others: Any) -> Any:
        sums = jax.ops.segment_sum(rows, keys[order], EXPERTS, indices_are_sorted=True)
        return usual(p, rows, counts, keys, order, *others) + jnp.sum(sums**2)

    summed = routed(with_sums)

    def expected(p: Any, x: jax.Array) -> jax.Array:
        sums = jnp.einsum("nke,nd->ed", jax.nn.one_hot(route(p, x)[1], EXPERTS), x)
        return dense(p, x) + jnp.sum(sums**2)

    check(summed, expected, parameters(), tokens())
    closed = jax.make_jaxpr(summed)(parameters(), tokens())
    assert "indices_are_sorted=True" in str(closed)
    assert "indices_are_sorted=True" not in str(sort_in_blocks(closed, BLOCKS))


def test_rows_may_be_joined_in_any_order() -> None:
    """The largest of all sorted rows, to scale them by."""

    def scaled(p: Any, x: jax.Array) -> jax.Array:
        weights, chosen = route(p, x)
        keys = chosen.reshape(-1)
        order = jnp.argsort(keys)
        rows = x[order // CHOSEN]
        largest = lax.stop_gradient(jnp.max(jnp.abs(rows)))
        rows = experts(p, rows / largest * largest, jnp.bincount(keys, length=EXPERTS), keys[order])
        return joined(rows, jnp.argsort(order), weights)

    check(loss_of(scaled), loss_of(dense), parameters(), tokens())


@pytest.mark.parametrize("name", WHOLE)
def test_what_depends_on_the_order_of_all_rows_stays_whole(name: str) -> None:
    closed = jax.make_jaxpr(loss_of(routed(WHOLE[name])))(parameters(), tokens())
    assert sort_in_blocks(closed, BLOCKS) is closed


@pytest.mark.parametrize("name", OTHER_KEYS)
def test_rows_of_other_keys_than_are_counted_stay_whole(name: str) -> None:
    closed = jax.make_jaxpr(loss_of(OTHER_KEYS[name]))(parameters(), tokens())
    assert sort_in_blocks(closed, BLOCKS) is closed


def test_blocks_of_whole_tokens_alone() -> None:
    """62 tokens are 124 sorted rows: 31 in each of four blocks would cut a token's two."""
    closed = jax.make_jaxpr(loss_of(sorted_back))(parameters(), tokens(62))
    assert sort_in_blocks(closed, BLOCKS) is closed
    assert sort_in_blocks(closed, 2) is not closed


def test_a_sort_without_ragged_dots_stays() -> None:
    closed = jax.make_jaxpr(lambda x: jnp.sort(x)[jnp.argsort(jnp.argsort(x))])(jnp.arange(64) % 7)
    assert sort_in_blocks(closed, BLOCKS) is closed


def test_of_two_sorts_one_may_stay_whole() -> None:
    def both(p: Any, x: jax.Array) -> jax.Array:
        return sorted_back(p, x) + routed(WHOLE["sums up to a row"])(p, x)

    closed = jax.make_jaxpr(both)(parameters(), tokens())
    blocks = sort_in_blocks(closed, BLOCKS)
    assert {len(shape) for shape in sorts(blocks.jaxpr)} == {1, 2}
    (result,) = jax.core.eval_jaxpr(blocks.jaxpr, blocks.consts, *jax.tree.leaves((parameters(), tokens())))
    np.testing.assert_allclose(result, both(parameters(), tokens()), rtol=0, atol=1e-5)
