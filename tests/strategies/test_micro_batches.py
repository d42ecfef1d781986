"""Micro-batches are cut out of each device's own examples where it does not matter which examples are in which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.quality.references import draw
from jaxplan.ir import CUT, trace

EXAMPLES, NUMBER, TIME, WIDTH, VOCABULARY = 32, 2, 4, 16, 24
Params = dict[str, jax.Array]


def _parameters() -> dict[str, np.ndarray]:
    shapes = {"table": (VOCABULARY, WIDTH), "q": (WIDTH, WIDTH), "up": (WIDTH, 32), "down": (32, WIDTH)}
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape, scale=0.3).astype(np.float32) for name, shape in shapes.items()}


def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, VOCABULARY, (EXAMPLES, TIME), dtype=np.int32)
    return tokens, rng.uniform(size=(EXAMPLES,)).astype(np.float32)


def _features(p: Params, tokens: jax.Array) -> jax.Array:
    """Causal attention, a recurrent layer and a perceptron."""
    x = p["table"][tokens]
    scores = jnp.einsum("btd,de,bse->bts", x, p["q"], x)
    x = x + jnp.einsum("bts,bsd->btd", jax.nn.softmax(jnp.where(jnp.tri(TIME, dtype=bool), scores, -1e9)), x)
    last, states = jax.lax.scan(lambda h, now: ((h := jnp.tanh(h @ p["q"] + now)), h), x[:, 0], x.swapaxes(0, 1))
    return jax.nn.relu((states.swapaxes(0, 1) + last[:, None]) @ p["up"]) @ p["down"]


def per_token(p: Params, tokens: jax.Array, weights: jax.Array) -> jax.Array:
    logits = _features(p, tokens) @ p["table"].T
    picked = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
    return jnp.mean((jax.nn.logsumexp(logits, axis=-1) - picked) * weights[:, None])


def normalised(p: Params, tokens: jax.Array, weights: jax.Array) -> jax.Array:
    """Each micro-batch has a mean of its own."""
    x = _features(p, tokens)
    return jnp.mean((x - x.mean(0)) ** 2 * weights[:, None, None])


def by_sum_of_weights(p: Params, tokens: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.sum(jnp.mean(_features(p, tokens) ** 2, axis=(1, 2)) * weights) / jnp.sum(weights)


def noisy(p: Params, tokens: jax.Array, weights: jax.Array) -> jax.Array:
    noise = jax.random.normal(jax.random.key(0), weights.shape)
    return jnp.mean(jnp.mean(_features(p, tokens) ** 2, axis=(1, 2)) * noise)


def _cut(*data: jax.Array) -> list[jax.Array]:
    return [x.reshape(NUMBER, EXAMPLES // NUMBER, *x.shape[1:]) for x in data]


def accumulating(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Gradients and loss added up in a carry, and losses stacked and averaged."""

    def step(p: Params, *data: jax.Array) -> Any:
        def add(carry: Any, batch: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(p, *batch)
            return (carry[0] + value, jax.tree.map(jnp.add, carry[1], grads)), 2.0 * value

        start = jnp.zeros(()), jax.tree.map(jnp.zeros_like, p)
        (total, grads), losses = jax.lax.scan(add, start, _cut(*data))
        return jax.tree.map(lambda p, g: p - 0.1 * g / NUMBER, p, grads), total, losses.mean()

    return step


def stepping(p: Params, *data: jax.Array) -> Any:
    """An optimizer's step for each micro-batch."""

    def descend(p: Params, batch: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, p, jax.grad(per_token)(p, *batch)), None

    return jax.lax.scan(descend, p, _cut(*data))[0]


def showing(p: Params, *data: jax.Array) -> Any:
    """The loss of each micro-batch is shown."""
    return jax.lax.scan(lambda c, batch: (c, per_token(p, *batch)), 0.0, _cut(*data))[1]


def answering(p: Params, *data: jax.Array) -> Any:
    """Every example has a result of its own."""
    return jax.lax.scan(lambda c, batch: (c, _features(p, batch[0])), 0.0, _cut(*data))[1]


CASES = {
    "per token": (accumulating(per_token), True),
    "normalised": (accumulating(normalised), False),
    "by sum of weights": (accumulating(by_sum_of_weights), False),
    "noisy": (accumulating(noisy), False),
    "stepping": (stepping, False),
    "showing": (showing, False),
    "answering": (answering, False),
}


@pytest.mark.parametrize("case", CASES)
def test_a_batch_is_cut_freely_where_examples_meet_in_sums_over_all_micro_batches(case: str) -> None:
    step, is_free = CASES[case]
    program = trace(step, (_parameters(), *_data()), {})
    assert any(eqn.name == CUT for eqn in program.equations) == is_free


@pytest.mark.parametrize("case", ["per token", "normalised"])
def test_micro_batches_of_a_device_compute_the_same(case: str) -> None:
    step, is_free = CASES[case]
    values = _parameters(), *_data()
    expected = jax.jit(step)(*values)
    plan = draw((step, values), "cpu:8", ("data",))["data"]
    if is_free:
        assert plan.in_specs[1][0] == plan.in_specs[2][0] == ("cpu0", "cpu1", "cpu2")
    found = plan.jit(donate_argnums=())(*values)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


def test_a_device_cuts_its_own_examples_without_sending_any() -> None:
    """Of a perceptron, which is quick to compile."""

    def loss(p: Params, x: jax.Array) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ p["up"]) @ p["down"]) ** 2)

    x = np.ones((EXAMPLES, WIDTH), np.float32)
    step, p = accumulating(loss), {name: _parameters()[name] for name in ("up", "down")}
    plan = draw((step, (p, x)), "cpu:8", ("data",))["data"]
    text = plan.jit(donate_argnums=()).lower(p, x).compile().as_text()
    assert text is not None and "all-reduce" in text
    assert not any(kind in text for kind in ("all-to-all", "all-gather", "collective-permute"))
