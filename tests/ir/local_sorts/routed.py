"""Mixtures of experts that sort their tokens, as people write them, and one with every expert on all tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

TOKENS, WIDTH, EXPERTS, HIDDEN, CHOSEN = 64, 16, 4, 32, 2

Mixture = Callable[[Any, jax.Array], jax.Array]
FORMS: dict[str, Mixture] = {}


def parameters(seed: int = 0) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 5)
    shapes = {
        "router": (WIDTH, EXPERTS),
        "gate": (EXPERTS, WIDTH, HIDDEN),
        "up": (EXPERTS, WIDTH, HIDDEN),
        "down": (EXPERTS, HIDDEN, WIDTH),
        "bias": (EXPERTS, HIDDEN),
    }
    return {name: 0.3 * jax.random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items())}


def tokens(num: int = TOKENS, seed: int = 1) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (num, WIDTH))


def dense(p: Any, x: jax.Array) -> jax.Array:
    """Every expert on all tokens: all forms compute the same."""
    weights, chosen = route(p, x)
    hidden = jax.nn.silu(jnp.einsum("nd,edf->enf", x, p["gate"]) + p["bias"][:, None])
    hidden *= jnp.einsum("nd,edf->enf", x, p["up"])
    results = jnp.einsum("enf,efd->end", hidden, p["down"])
    return jnp.einsum("end,nke,nk->nd", results, jax.nn.one_hot(chosen, EXPERTS), weights)


def route(p: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return lax.top_k(jax.nn.softmax(x @ p["router"]), CHOSEN)


def experts(p: Any, rows: jax.Array, counts: jax.Array, keys: jax.Array) -> jax.Array:
    """Of sorted rows, with a bias looked up by their sorted keys."""
    hidden = jax.nn.silu(lax.ragged_dot(rows, p["gate"], counts) + p["bias"][keys])
    return lax.ragged_dot(hidden * lax.ragged_dot(rows, p["up"], counts), p["down"], counts)


def joined(rows: jax.Array, places: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.einsum("nkd,nk->nd", rows[places].reshape(*weights.shape, WIDTH), weights)


def form(mixture: Mixture) -> Mixture:
    FORMS[mixture.__name__] = mixture
    return mixture


@form
def sorted_back(p: Any, x: jax.Array) -> jax.Array:
    weights, chosen = route(p, x)
    keys = chosen.reshape(-1)
    order = jnp.argsort(keys)
    rows = experts(p, x[order // CHOSEN], jnp.bincount(keys, length=EXPERTS), keys[order])
    return joined(rows, jnp.argsort(order), weights)


@form
def added_back(p: Any, x: jax.Array) -> jax.Array:
    weights, chosen = route(p, x)
    keys = jnp.ravel(chosen)
    order = jnp.argsort(keys)
    rows = experts(p, jnp.take(x, order // CHOSEN, axis=0), jnp.bincount(keys, length=EXPERTS), keys[order])
    return jnp.zeros_like(x).at[order // CHOSEN].add(rows * weights.reshape(-1)[order][:, None])


@form
def inverse_written(p: Any, x: jax.Array) -> jax.Array:
    weights, chosen = route(p, x)
    keys = chosen.reshape(-1)
    order = jnp.argsort(keys)
    counts = jnp.sum(keys[:, None] == jnp.arange(EXPERTS), axis=0)
    rows = experts(p, x[order // CHOSEN], counts.astype(jnp.int32), keys[order])
    return joined(rows, jnp.zeros_like(order).at[order].set(jnp.arange(order.size)), weights)


@form
def written_back(p: Any, x: jax.Array) -> jax.Array:
    """The gradient numbers the rows, to know which of two in one place was written last."""
    weights, chosen = route(p, x)
    keys = chosen.reshape(-1)
    order = jnp.argsort(keys)
    rows = experts(p, x[order // CHOSEN], jnp.bincount(keys, length=EXPERTS), keys[order])
    rows = jnp.zeros_like(rows).at[order].set(rows)
    return jnp.einsum("nkd,nk->nd", rows.reshape(*weights.shape, -1), weights)


@form
def repeated(p: Any, x: jax.Array) -> jax.Array:
    weights, chosen = route(p, x)
    keys = chosen.reshape(-1)
    order = jnp.argsort(keys)
    counts = jax.nn.one_hot(chosen, EXPERTS, dtype=jnp.int32).sum((0, 1))
    rows = experts(p, jnp.repeat(x, CHOSEN, axis=0)[order], counts, keys[order])
    return joined(rows, jnp.argsort(order), weights)


@form
def carried_along(p: Any, x: jax.Array) -> jax.Array:
    """Tokens and weights are sorted along with the keys: three sorts of one order."""
    weights, chosen = route(p, x)
    keys = chosen.reshape(-1)
    in_order, token = lax.sort_key_val(keys, jnp.arange(keys.size) // CHOSEN)
    rows = experts(p, x[token], jnp.bincount(in_order, length=EXPERTS), in_order)
    rows *= weights.reshape(-1)[jnp.argsort(keys)][:, None]
    return jax.ops.segment_sum(rows, token, num_segments=x.shape[0])


def routed(change: Callable[..., jax.Array]) -> Mixture:
    """`sorted_back` with a change to rows, counts or results, given rows, counts, keys and order."""

    def mixture(p: Any, x: jax.Array) -> jax.Array:
        weights, chosen = route(p, x)
        keys = chosen.reshape(-1)
        order = jnp.argsort(keys)
        return change(p, x[order // CHOSEN], jnp.bincount(keys, length=EXPERTS), keys, order, weights)

    return mixture


def usual(
    p: Any, rows: jax.Array, counts: jax.Array, keys: jax.Array, order: jax.Array, weights: jax.Array
) -> jax.Array:
    return joined(experts(p, rows, counts, keys[order]), jnp.argsort(order), weights)


# Changes after which blocks would give other results.
WHOLE: dict[str, Callable[..., jax.Array]] = {
    "rows by their position": lambda p, rows, *others: usual(
        p, rows * jnp.arange(rows.shape[0])[:, None], *others
    ),
    "sums up to a row": lambda p, rows, *others: usual(p, jnp.cumsum(rows, 0), *others),
    "the row before": lambda p, rows, *others: usual(p, rows - jnp.roll(rows, 1, 0), *others),
    "the first rows alone": lambda p, rows, *others: usual(p, rows.at[:8].set(0.0), *others),
    "positions as numbers": lambda p, rows, counts, keys, order, weights: usual(
        p, rows * order[:, None], counts, keys, order, weights
    ),
    "counts of other keys": lambda p, rows, counts, keys, *others: usual(
        p, rows, jnp.bincount(EXPERTS - 1 - keys, length=EXPERTS), keys, *others
    ),
    "counts of some rows": lambda p, rows, counts, keys, *others: usual(
        p, rows, jnp.bincount(keys[: TOKENS // 2], length=EXPERTS), keys, *others
    ),
    "equal counts": lambda p, rows, counts, keys, *others: usual(
        p, rows, jnp.full_like(counts, keys.size // EXPERTS), keys, *others
    ),
    "counts up to a capacity": lambda p, rows, counts, *others: usual(p, rows, jnp.minimum(counts, 8), *others),
    "counts up to nearly all rows": lambda p, rows, counts, *others: usual(
        p, rows, jnp.minimum(counts, TOKENS * CHOSEN - 1), *others
    ),
    "counts of halves up to a capacity": lambda p, rows, counts, keys, *others: usual(
        p, rows, jnp.minimum(jax.nn.one_hot(keys, EXPERTS, dtype=jnp.int32).reshape(2, -1, EXPERTS).sum(1), 60).sum(0),
        keys, *others,
    ),
    "counts in 8 bits, which 128 does not fit in": lambda p, rows, counts, *others: usual(
        p, rows, counts.astype(jnp.int8).astype(jnp.int32), *others
    ),
    "some of the sorted results": lambda p, rows, counts, keys, order, weights: experts(
        p, rows, counts, keys[order]
    )[::CHOSEN],
    "the wrong way back": lambda p, rows, counts, keys, order, weights: usual(
        p, rows, counts, keys, jnp.flip(order), weights
    ),
    "rows by the number that was written in their place": lambda p, rows, counts, keys, order, weights: usual(
        p, rows * jnp.zeros_like(rows).at[order].set(jnp.broadcast_to(jnp.arange(order.size)[:, None], rows.shape)),
        counts, keys, order, weights,
    ),
    "results of other rows": lambda p, rows, counts, keys, order, weights: joined(
        experts(p, rows, counts, keys[order]), jnp.argsort(order) ^ 1, weights
    ),
}


def keyed(keys_of: Callable[..., tuple[jax.Array, jax.Array]]) -> Mixture:
    """Rows sorted by one key and counted by another one, given all that are routed to."""

    def mixture(p: Any, x: jax.Array) -> jax.Array:
        keys, counted = keys_of(jnp.abs(x[:, :CHOSEN].reshape(-1)), x @ p["router"])
        order = jnp.argsort(keys)
        counts = jnp.sum(counted[:, None] == jnp.arange(EXPERTS), axis=0).astype(jnp.int32)
        return jnp.zeros_like(x).at[order // CHOSEN].add(experts(p, x[order // CHOSEN], counts, keys[order]))

    return mixture


def _largest_scores(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Their values, not their numbers: there may be more of them than experts, and negative ones."""
    keys = lax.top_k((10 * scores).astype(jnp.int32), CHOSEN)[0].reshape(-1)
    return keys, keys


# Keys that are not those that are counted, or not those of an expert.
OTHER_KEYS: dict[str, Mixture] = {
    "narrowed": keyed(lambda x, scores: ((300 * x).astype(jnp.int32).astype(jnp.int8), (300 * x).astype(jnp.int32))),
    "rounded otherwise": keyed(lambda x, scores: (x.astype(jnp.int32), (x + 0.5).astype(jnp.int32))),
    "largest scores": keyed(lambda x, scores: _largest_scores(scores)),
}
