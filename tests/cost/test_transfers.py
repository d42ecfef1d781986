"""Reads of a tensor are in program order, so that every copy lives until its last reader and every reader has one.

Each step reads parameters before the backward pass, in it, and after it in equations that no gradient enters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan.cost import Read, Span, Transfer, find_reads
from jaxplan.mesh import Path, Sharding
from jaxplan.search._traced import analyse_step

WIDTH = 32
Tree = dict[str, jax.Array]


def _loss(p: Tree, x: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"]) ** 2)


def distance_step(p: Tree, start: Tree, x: jax.Array) -> tuple[Tree, jax.Array]:
    """The length of the step is the distance from the initial parameters (DoG)."""
    loss, grads = jax.value_and_grad(_loss)(p, x)
    distance = jnp.sqrt(sum(jnp.sum((a - b) ** 2) for a, b in zip(p.values(), start.values(), strict=True)))
    return jax.tree.map(lambda w, g: w - 1e-2 * (1 + distance) * g, p, grads), loss


def two_losses_step(p: Tree, x: jax.Array) -> tuple[Tree, jax.Array]:
    """Two forward and backward passes over the same parameters (a GAN)."""
    one, first = jax.value_and_grad(_loss)(p, x)
    two, second = jax.value_and_grad(lambda p: _loss(p, jnp.sin(x)) + jnp.sum(p["a"] ** 2))(p)
    return jax.tree.map(lambda w, f, s: w - 1e-2 * (f + s), p, first, second), one + two


def decay_first_step(p: Tree, x: jax.Array) -> tuple[Tree, jax.Array]:
    """The term that the update subtracts from a parameter is computed before the forward pass."""
    decay = jax.tree.map(lambda w: 0.1 * jnp.tanh(w), p)
    loss, grads = jax.value_and_grad(_loss)(p, x)
    return jax.tree.map(lambda w, d, g: w - 1e-2 * (g + d) + 1e-3 * w.T.T, p, decay, grads), loss


def _params() -> Tree:
    a, b = jax.random.split(jax.random.key(0))
    return {"a": jax.random.normal(a, (8, WIDTH)), "b": jax.random.normal(b, (WIDTH, 8))}


STEPS: dict[str, tuple[Callable[..., Any], int]] = {
    "distance": (distance_step, 2),
    "two losses": (two_losses_step, 1),
    "decay first": (decay_first_step, 1),
}


def _arguments(num_trees: int) -> tuple[Any, ...]:
    trees = [jax.tree.map(lambda w, k=k: w + 0.1 * k, _params()) for k in range(num_trees)]
    return (*trees, jax.random.normal(jax.random.key(1), (16, 8)))


@pytest.mark.parametrize("name", STEPS)
def test_reads_are_split_where_the_backward_pass_begins(name: str) -> None:
    step, num_trees = STEPS[name]
    graph = analyse_step(step, _arguments(num_trees), {}, donate_argnums=None, static_argnums=())
    backward = min(e.index for e in graph.program.equations if "transpose(" in e.name_stack)
    for read in find_reads(graph):
        assert all(e < backward for e in read.forward)
        assert all(e >= backward for e in read.later)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", STEPS)
def test_all_plans_that_are_offered_compute_the_step(name: str) -> None:
    step, num_trees = STEPS[name]
    arguments = _arguments(num_trees)
    expected = jax.tree.leaves(jax.jit(step)(*arguments))
    frontier = jaxplan.plan(step, *arguments, topology="cpu:4", progress=False)
    for choice in (*range(len(frontier)), *frontier.references):
        found = jax.tree.leaves(frontier.choose(choice).jit(donate_argnums=())(*arguments))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=str(choice))


def test_reads_in_no_order_are_refused() -> None:
    with pytest.raises(AssertionError, match="no order"):
        Read(tensor=0, producer=0, consumer=1, forward=(3, 9), later=(7,))
    with pytest.raises(AssertionError, match="no order"):
        Span(first=0, readers=(3, 9, 7))
    with pytest.raises(AssertionError, match="before 5 is read by 3"):
        Span(first=5, readers=(3, 9))
    assert Span(first=1, readers=(3, 9)).last == 9


def test_a_reader_has_the_copy_that_was_made_for_it() -> None:
    spans = Span(first=2, readers=(2, 5)), Span(first=8, readers=(8, 11))
    path = Path(shardings=(Sharding(((),)),), steps=(), seconds=0.0, collectives=(), peak_bytes=0)
    common = {"tensor": 0, "carried": 0, "path": path, "itemsize": 4}
    transfer = Transfer(spans=spans, repeated=True, **common)
    assert [transfer.execution_at(e) for e in (2, 5, 8, 11)] == [0, 0, 1, 1]
    with pytest.raises(AssertionError, match="equation 6 reads"):
        transfer.execution_at(6)
    with pytest.raises(AssertionError, match="overlap"):
        Transfer(spans=(Span(first=2, readers=(2, 9)), spans[1]), repeated=True, **common)
