"""Random operators on sorted rows: wherever they run in blocks, the results are those of one sort."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxplan.ir.local_sorts import sort_in_blocks
from tests.ir.local_sorts.routed import (
    CHOSEN,
    EXPERTS,
    WIDTH,
    Mixture,
    experts,
    joined,
    parameters,
    route,
    tokens,
)

BLOCKS = 4


class Routing(NamedTuple):
    """Of sorted rows; ``key``: of each sorted row."""

    p: Any
    order: jax.Array
    key: jax.Array
    counts: jax.Array


OPERATORS: dict[str, Callable[[jax.Array, Routing], jax.Array]] = {
    # of each row alone, or of all in any order
    "tanh": lambda r, at: jnp.tanh(r),
    "normalise": lambda r, at: r / (1 + jnp.abs(r).sum(-1, keepdims=True)),
    "features by position": lambda r, at: r * jnp.arange(WIDTH) * 0.1,
    "turn features": lambda r, at: jnp.roll(r, 1, 1),
    "heads": lambda r, at: jnp.repeat(jnp.sum(r.reshape(-1, 4, 4) ** 2, -1), 4, 1),
    "look up by key": lambda r, at: r + at.p["bias"][at.key][:, :WIDTH],
    "mask by key": lambda r, at: jnp.where((at.key == 1)[:, None], 0, r),
    "sum by key": lambda r, at: r + 0.1 * jax.ops.segment_sum(r, at.key, EXPERTS)[at.key],
    "count by key": lambda r, at: r / (1 + at.counts[at.key])[:, None],
    "centre": lambda r, at: r - r.mean(0),
    "softmax of all rows": lambda r, at: 10 * jax.nn.softmax(r, 0),
    "second moments": lambda r, at: r + 0.01 * r @ (r.T @ r),
    "ragged dots": lambda r, at: lax.ragged_dot(lax.ragged_dot(r, at.p["gate"], at.counts), at.p["down"], at.counts),
    "back, by position, and again": lambda r, at: (
        0.01 * jnp.zeros_like(r).at[at.order].add(r) * jnp.arange(r.shape[0])[:, None]
    )[at.order],
    # of their order
    "sums up to a row": lambda r, at: 0.1 * jnp.cumsum(r, 0),
    "the row before": lambda r, at: jnp.roll(r, 1, 0),
    "reverse": lambda r, at: jnp.flip(r, 0),
    "by position": lambda r, at: 0.01 * r * jnp.arange(r.shape[0])[:, None],
    "less the first row": lambda r, at: r - r[:1],
    "sort each feature": lambda r, at: jnp.sort(r, 0),
    "by place before the sort": lambda r, at: r + 0.01 * at.order[:, None],
    "noise": lambda r, at: r * jax.random.normal(jax.random.key(0), r.shape),
}


def mixture_of(before: Iterable[str], after: Iterable[str], way_back: str) -> Mixture:
    def mixture(p: Any, x: jax.Array) -> jax.Array:
        weights, chosen = route(p, x)
        keys = chosen.reshape(-1)
        order = jnp.argsort(keys)
        at = Routing(p, order, keys[order], jnp.bincount(keys, length=EXPERTS))
        rows = x[order // CHOSEN]
        for name in before:
            rows = OPERATORS[name](rows, at)
        rows = experts(p, rows, at.counts, at.key)
        for name in after:
            rows = OPERATORS[name](rows, at)
        if way_back == "written":
            rows, order = jnp.zeros_like(rows).at[order].set(rows), jnp.arange(order.size)
        if way_back != "added":
            return joined(rows, jnp.argsort(order), weights)
        return jnp.zeros_like(x).at[order // CHOSEN].add(rows * weights.reshape(-1)[order][:, None])

    return mixture


def check(seed: int) -> bool:
    """Whether the program of a seed runs in blocks; its results are compared."""
    rng = random.Random(seed)
    before, after = (rng.choices(list(OPERATORS), k=rng.choice([0, 1, 1])) for _ in range(2))
    mixture = mixture_of(before, after, rng.choice(["sorted", "added", "written"]))
    step = jax.value_and_grad(lambda p, x: jnp.mean(mixture(p, x) ** 2 * jnp.arange(1, WIDTH + 1)))
    args = parameters(seed), tokens(seed=seed + 1)
    closed = jax.make_jaxpr(step)(*args)
    blocks = sort_in_blocks(closed, BLOCKS)
    runs = [jax.core.eval_jaxpr(c.jaxpr, c.consts, *jax.tree.leaves(args)) for c in (closed, blocks)]
    for expected, result in zip(*runs, strict=True):
        largest = float(jnp.max(jnp.abs(expected)))
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-4 * largest, err_msg=f"{before} {after}")
    return blocks is not closed


def test_results_are_those_of_one_sort() -> None:
    assert sum(map(check, range(6))) >= 3


@pytest.mark.slow
def test_results_are_those_of_one_sort_for_many_programs() -> None:
    assert sum(map(check, range(6, 150))) >= 42
