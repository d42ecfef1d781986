"""Train steps that read their parameters in an unusual order: several passes, anchors, copies, loops.

Each is a function of no arguments that returns the step and its arguments; `STEPS` holds them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Maker = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
STEPS: dict[str, Maker] = {}
BATCH, DIM, WIDTH = 24, 12, 24
_RATE = 1e-2


def register(maker: Maker) -> Maker:
    """Add a maker of a step under its name."""
    STEPS[maker.__name__] = maker
    return maker


def arrays(*shapes: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, ...]:
    """Normal numbers of about a fan-in scale."""
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=shape) / np.sqrt(max(shape[0], 1)) for shape in shapes)


def mlp(seed: int = 0, dim: int = DIM) -> dict[str, np.ndarray]:
    """Parameters of a perceptron with one hidden layer."""
    first, bias, second = arrays((dim, WIDTH), (WIDTH,), (WIDTH, dim), seed=seed)
    return {"first": first, "bias": bias, "second": second}


def apply(p: Any, x: Any) -> jax.Array:
    """The perceptron."""
    return jnp.tanh(x @ p["first"] + p["bias"]) @ p["second"]


def loss_of(p: Any, x: Any) -> jax.Array:
    """Mean squared error against the sine of what goes in."""
    return jnp.mean((apply(p, x) - jnp.sin(x)) ** 2)


def descend(p: Any, grads: Any, rate: Any = _RATE) -> Any:
    """A step of gradient descent."""
    return jax.tree.map(lambda w, g: w - rate * g, p, grads)


def batch(seed: int = 9, rows: int = BATCH, dim: int = DIM) -> np.ndarray:
    """Rows to train on."""
    return np.random.default_rng(seed).normal(size=(rows, dim))


@register
def gan() -> Any:
    """Two networks, each trained on a loss of both."""

    def step(state, x, z):
        def critic_loss(critic):
            return jnp.mean(apply(critic, apply(state["maker"], z)) - apply(critic, x))

        def maker_loss(maker):
            return -jnp.mean(apply(state["critic"], apply(maker, z)))

        critic_value, critic_grads = jax.value_and_grad(critic_loss)(state["critic"])
        maker_value, maker_grads = jax.value_and_grad(maker_loss)(state["maker"])
        critic, maker = descend(state["critic"], critic_grads), descend(state["maker"], maker_grads)
        return {"critic": critic, "maker": maker}, critic_value + maker_value

    return step, ({"critic": mlp(0), "maker": mlp(1)}, batch(), batch(3))


@register
def gan_in_turn() -> Any:
    """The second network is trained against the first one as just updated."""

    def step(critic, maker, x, z):
        value, grads = jax.value_and_grad(lambda c: jnp.mean(apply(c, apply(maker, z)) - apply(c, x)))(critic)
        new = descend(critic, grads)
        second, maker_grads = jax.value_and_grad(lambda m: -jnp.mean(apply(new, apply(m, z))))(maker)
        return new, descend(maker, maker_grads), value, second

    return step, (mlp(0), mlp(1), batch(), batch(3))


@register
def gradient_penalty() -> Any:
    """The loss holds the gradient of the network in its input (WGAN-GP)."""

    def step(critic, x):
        def loss(c):
            inner = jax.vmap(jax.grad(lambda row: jnp.sum(apply(c, row))))(x)
            return jnp.mean(apply(c, x)) + jnp.mean((jnp.sqrt(jnp.sum(inner**2, -1)) - 1) ** 2)

        value, grads = jax.value_and_grad(loss)(critic)
        return descend(critic, grads), value

    return step, (mlp(), batch())


@register
def sharpness_aware() -> Any:
    """The gradient at parameters that were moved along the gradient, applied to those before."""

    def step(p, x):
        grads = jax.grad(loss_of)(p, x)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        moved = jax.tree.map(lambda w, g: w + 0.05 * g / norm, p, grads)
        value, sharp = jax.value_and_grad(loss_of)(moved, x)
        return descend(p, sharp), value + loss_of(p, x)

    return step, (mlp(), batch())


@register
def anchored() -> Any:
    """Decay towards the initial parameters, in the loss and in the update (L2-SP)."""

    def step(p, start, x):
        def loss(p):
            away = sum(jnp.sum((a - b) ** 2) for a, b in zip(jax.tree.leaves(p), jax.tree.leaves(start), strict=True))
            return loss_of(p, x) + 1e-3 * away

        value, grads = jax.value_and_grad(loss)(p)
        return jax.tree.map(lambda w, s, g: w - _RATE * g - 1e-3 * (w - s), p, start, grads), value

    return step, (mlp(0), mlp(1), batch())


@register
def elastic() -> Any:
    """Decay towards earlier parameters by their importance, which is kept up to date (EWC)."""

    def step(state, x):
        def loss(p):
            away = jax.tree.map(lambda a, b, f: jnp.sum(f * (a - b) ** 2), p, state["old"], state["fisher"])
            return loss_of(p, x) + sum(jax.tree.leaves(away))

        value, grads = jax.value_and_grad(loss)(state["params"])
        own = jax.grad(loss_of)(state["params"], x)
        fisher = jax.tree.map(lambda f, g: 0.9 * f + 0.1 * g**2, state["fisher"], own)
        return {"params": descend(state["params"], grads), "old": state["old"], "fisher": fisher}, value

    return step, ({"params": mlp(0), "old": mlp(1), "fisher": mlp(2)}, batch())


@register
def distance_over_gradients() -> Any:
    """The step length is the distance from the initial parameters over the gradients so far (DoG)."""

    def step(state, x):
        value, grads = jax.value_and_grad(loss_of)(state["params"], x)
        away = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), state["params"], state["start"])
        farthest = jnp.maximum(state["farthest"], jnp.sqrt(sum(jax.tree.leaves(away))))
        total = state["total"] + sum(jnp.sum(g**2) for g in jax.tree.leaves(grads))
        params = descend(state["params"], grads, farthest / jnp.sqrt(total + 1e-8))
        return {**state, "params": params, "farthest": farthest, "total": total}, value

    scalars = {"farthest": np.float64(1e-3), "total": np.float64(0)}
    return step, ({"params": mlp(0), "start": mlp(1), **scalars}, batch())


@register
def teacher() -> Any:
    """A moving average of the parameters makes the targets (BYOL, mean teacher)."""

    def step(state, x):
        target = apply(state["teacher"], jnp.cos(x))
        value, grads = jax.value_and_grad(lambda p: jnp.mean((apply(p, x) - target) ** 2))(state["params"])
        params = descend(state["params"], grads)
        average = jax.tree.map(lambda t, p: 0.99 * t + 0.01 * p, state["teacher"], params)
        return {"params": params, "teacher": average}, value

    return step, ({"params": mlp(0), "teacher": mlp(1)}, batch())


@register
def inner_loop() -> Any:
    """A gradient through steps of gradient descent (MAML)."""

    def step(p, x, y):
        def outer(p):
            adapted = p
            for _ in range(2):
                adapted = descend(adapted, jax.grad(loss_of)(adapted, x), 0.1)
            return loss_of(adapted, y)

        value, grads = jax.value_and_grad(outer)(p)
        return descend(p, grads), value

    return step, (mlp(), batch(), batch(3))


@register
def inner_scan() -> Any:
    """The same with its inner steps in a loop."""

    def step(p, x, y):
        def outer(p):
            adapted, _ = lax.scan(lambda q, row: (descend(q, jax.grad(loss_of)(q, row), 0.1), None), p, x)
            return loss_of(adapted, y) + 1e-3 * jnp.sum(p["first"] ** 2)

        value, grads = jax.value_and_grad(outer)(p)
        return descend(p, grads), value

    return step, (mlp(), batch().reshape(2, BATCH // 2, DIM), batch(3))


@register
def learned_rate() -> Any:
    """The learning rate follows its own gradient through the update (hypergradient)."""

    def step(p, rate, x, y):
        grads = jax.grad(loss_of)(p, x)
        value, slope = jax.value_and_grad(lambda r: loss_of(descend(p, grads, r), y))(rate)
        rate = rate - 1e-3 * slope
        return descend(p, grads, rate), rate, value

    return step, (mlp(), np.float64(0.1), batch(), batch(3))


@register
def variance_reduced() -> Any:
    """Gradients at two sets of parameters on one batch (SVRG)."""

    def step(state, x):
        value, grads = jax.value_and_grad(loss_of)(state["params"], x)
        before = jax.grad(loss_of)(state["snapshot"], x)
        direction = jax.tree.map(lambda g, b, m: g - b + m, grads, before, state["mean"])
        return {**state, "params": descend(state["params"], direction)}, value

    return step, ({"params": mlp(0), "snapshot": mlp(1), "mean": mlp(2)}, batch())


@register
def looked_ahead() -> Any:
    """The gradient at parameters moved by the momentum, which the update reads as well (Nesterov)."""

    def step(p, velocity, x):
        ahead = jax.tree.map(lambda w, v: w + 0.9 * v, p, velocity)
        value, grads = jax.value_and_grad(loss_of)(ahead, x)
        velocity = jax.tree.map(lambda v, g: 0.9 * v - _RATE * g, velocity, grads)
        return jax.tree.map(jnp.add, p, velocity), velocity, value

    return step, (mlp(0), mlp(1), batch())


@register
def decay_first() -> Any:
    """What the update subtracts of the parameters is computed before the forward pass."""

    def step(p, x):
        decay = jax.tree.map(lambda w: 1e-3 * w / (1 + jnp.sum(w**2)), p)
        value, grads = jax.value_and_grad(loss_of)(p, x)
        return jax.tree.map(lambda w, d, g: w - d - _RATE * g, p, decay, grads), value

    return step, (mlp(), batch())


@register
def hessian_vector() -> Any:
    """A product of the Hessian with a random vector scales the update."""

    def step(p, probe, x):
        value, grads = jax.value_and_grad(loss_of)(p, x)
        _, curved = jax.jvp(jax.grad(lambda q: loss_of(q, x)), (p,), (probe,))
        return jax.tree.map(lambda w, g, h, v: w - _RATE * g / (1 + jnp.abs(h * v)), p, grads, curved, probe), value

    return step, (mlp(0), mlp(1), batch())


@register
def forward_gradient() -> Any:
    """A directional derivative in place of the backward pass."""

    def step(p, direction, x):
        value, slope = jax.jvp(lambda q: loss_of(q, x), (p,), (direction,))
        return jax.tree.map(lambda w, d: w - _RATE * slope * d, p, direction), value

    return step, (mlp(0), mlp(1), batch())


def _parts(x: Any, number: int = 3) -> list[Any]:
    size = BATCH // number
    return [x[k * size : (k + 1) * size] for k in range(number)]


@register
def summed_in_python() -> Any:
    """Gradients of micro-batches, added up by `sum`, which starts from zero."""

    def step(p, x):
        parts = [jax.grad(loss_of)(p, part) for part in _parts(x)]
        return descend(p, jax.tree.map(lambda *g: sum(g), *parts))

    return step, (mlp(), batch())


@register
def averaged_in_python() -> Any:
    """The same, averaged, moved by a constant and clipped."""

    def step(p, x):
        parts = [jax.grad(loss_of)(p, part) for part in _parts(x)]
        mean = jax.tree.map(lambda *g: jnp.clip(sum(g) / len(g) + 1e-3, -0.1, 0.1), *parts)
        return descend(p, mean)

    return step, (mlp(), batch())


@register
def weighted_in_python() -> Any:
    """Gradients of micro-batches with weights of their own, added to decayed parameters and zeros."""

    def step(p, x):
        total = jax.tree.map(lambda w: 0.01 * w, p)
        for k, part in enumerate(_parts(x)):
            total = jax.tree.map(lambda t, g, k=k: t + (k + 1) * (0.0 + g), total, jax.grad(loss_of)(p, part))
        return descend(p, total)

    return step, (mlp(), batch())


@register
def summed_in_a_scan() -> Any:
    """Gradients and losses of micro-batches, added up in a loop that starts from a constant."""

    def step(p, x):
        def add(carry, part):
            value, grads = jax.value_and_grad(loss_of)(p, part)
            return (carry[0] + value, jax.tree.map(jnp.add, carry[1], grads)), value

        start = jnp.float64(0.0), jax.tree.map(lambda w: jnp.full_like(w, 1e-3), p)
        (value, grads), values = jax.lax.scan(add, start, x.reshape(3, -1, DIM))
        return descend(p, grads), value, values

    return step, (mlp(), batch())
