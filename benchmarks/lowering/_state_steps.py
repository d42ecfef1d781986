"""More steps for `STEPS`: state in unusual forms, loops around updates, outputs that are not what they replace."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.lowering._steps import (
    BATCH,
    DIM,
    WIDTH,
    apply,
    arrays,
    batch,
    descend,
    loss_of,
    mlp,
    register,
)


@register
def tied() -> Any:
    """One table is looked up in, multiplied with as it is, and transposed."""

    def step(p, tokens):
        def loss(p):
            hidden = jnp.tanh(p["table"][tokens] @ p["mix"])
            logits = hidden @ p["table"].T
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)
            return -jnp.mean(picked) + 1e-3 * jnp.sum(p["table"] ** 2)

        value, grads = jax.value_and_grad(loss)(p)
        return descend(p, grads), value

    table, mix = arrays((48, DIM), (DIM, DIM))
    return step, ({"table": table, "mix": mix}, np.arange(BATCH * 2).reshape(BATCH, 2) % 48)


@register
def many_steps() -> Any:
    """Several updates in one call, in a loop; the parameters are read after it too."""

    def step(p, momentum, x):
        def one(carry, rows):
            p, m = carry
            value, grads = jax.value_and_grad(loss_of)(p, rows)
            m = jax.tree.map(lambda a, g: 0.9 * a + g, m, grads)
            return (descend(p, m), m), value

        (new, momentum), values = lax.scan(one, (p, momentum), x)
        moved = sum(jnp.sum((a - b) ** 2) for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(p), strict=True))
        return new, momentum, values, moved

    return step, (mlp(0), mlp(1), batch().reshape(3, BATCH // 3, DIM))


@register
def accumulated() -> Any:
    """Gradients are added up in a loop over parts of the batch, and clipped by their norm."""

    def step(p, x):
        def one(total, rows):
            value, grads = jax.value_and_grad(loss_of)(p, rows)
            return jax.tree.map(jnp.add, total, grads), value

        total, values = lax.scan(one, jax.tree.map(jnp.zeros_like, p), x)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(total)))
        return descend(p, total, 0.01 / jnp.maximum(norm, 1.0)), jnp.mean(values)

    return step, (mlp(), batch().reshape(2, BATCH // 2, DIM))


@register
def target_network() -> Any:
    """A copy of the parameters makes targets, and is replaced every fourth step (DQN)."""

    def step(state, x, actions):
        best = jnp.max(apply(state["target"], jnp.cos(x)), -1)

        def loss(p):
            chosen = jnp.take_along_axis(apply(p, x), actions[:, None], 1)[:, 0]
            return jnp.mean((chosen - best) ** 2)

        value, grads = jax.value_and_grad(loss)(state["params"])
        params, count = descend(state["params"], grads), state["count"] + 1
        target = lax.cond(count % 4 == 0, lambda: params, lambda: state["target"])
        return {"params": params, "target": target, "count": count}, value

    state = {"params": mlp(0), "target": mlp(1), "count": np.int32(3)}
    return step, (state, batch(), np.arange(BATCH) % DIM)


@register
def spectral() -> Any:
    """A weight is divided by its norm, of which a power iteration is part of the state."""

    def step(p, u, x):
        v = p["first"] @ u
        v = v / jnp.linalg.norm(v)
        new = p["first"].T @ v
        new = lax.stop_gradient(new / jnp.linalg.norm(new))

        def loss(p):
            sigma = lax.stop_gradient(v) @ p["first"] @ new
            return loss_of({**p, "first": p["first"] / sigma}, x)

        value, grads = jax.value_and_grad(loss)(p)
        return descend(p, grads), new, value

    return step, (mlp(), np.ones(WIDTH) / WIDTH, batch())


@register
def running_statistics() -> Any:
    """Means and variances over the batch are read in the forward pass, the backward pass and the state's update."""

    def step(p, stats, x):
        def loss(p):
            hidden = x @ p["first"]
            mean, var = hidden.mean(0), hidden.var(0)
            normed = (hidden - mean) / jnp.sqrt(var + 1e-3) * (1 + p["bias"])
            return jnp.mean((jnp.tanh(normed) @ p["second"] - x) ** 2), (mean, var)

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(p)
        stats = jax.tree.map(lambda s, n: 0.9 * s + 0.1 * n, stats, new)
        return descend(p, grads), stats, value

    return step, (mlp(), (np.zeros(WIDTH), np.ones(WIDTH)), batch())


@register
def stacked_layers() -> Any:
    """Layers in a loop over stacked parameters, which decay towards where they began."""

    def step(p, start, x):
        def loss(p):
            out, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, p)
            return jnp.mean((out - x) ** 2) + 1e-3 * jnp.sum((p - start) ** 2)

        value, grads = jax.value_and_grad(loss)(p)
        return p - 0.01 * grads - 1e-3 * (p - start), value, jnp.max(jnp.abs(p - start))

    one, other = arrays((3, DIM, DIM), (3, DIM, DIM))
    return step, (one, other, batch())


@register
def checkpointed() -> Any:
    """A rematerialised block, read again by an anchor and by the update."""

    def step(p, start, x):
        block = jax.checkpoint(apply)

        def loss(p):
            return jnp.mean((block(p, block(p, x)) - x) ** 2) + jnp.sum((p["first"] - start["first"]) ** 2)

        value, grads = jax.value_and_grad(loss)(p)
        return jax.tree.map(lambda w, s, g: w - 0.01 * g + 1e-3 * s, p, start, grads), value

    return step, (mlp(0), mlp(1), batch())


@register
def epochs() -> Any:
    """Old and new parameters on shuffled parts of one batch, several times over (PPO)."""

    def step(p, x, key):
        old = apply(p, x)

        def one(p, key):
            rows = jax.random.permutation(jax.random.wrap_key_data(key), BATCH)[: BATCH // 2]

            def loss(q):
                ratio = jnp.exp(jnp.sum(apply(q, x[rows]) - old[rows], -1))
                return jnp.mean(jnp.minimum(ratio, jnp.clip(ratio, 0.8, 1.2)))

            value, grads = jax.value_and_grad(loss)(p)
            return descend(p, grads), value

        return lax.scan(one, p, key)

    return step, (mlp(), batch(), np.arange(6, dtype=np.uint32).reshape(3, 2))


@register
def contrast_queue() -> Any:
    """Keys of a moving average enter a queue that the loss reads (MoCo)."""

    def step(state, x):
        keys = apply(state["average"], jnp.cos(x))

        def loss(p):
            logits = apply(p, x) @ jnp.concatenate([keys, state["queue"]]).T
            return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(logits)))

        value, grads = jax.value_and_grad(loss)(state["params"])
        params = descend(state["params"], grads)
        queue = lax.dynamic_update_slice_in_dim(state["queue"], keys, state["place"], 0)
        average = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, state["average"], params)
        place = (state["place"] + BATCH) % (2 * BATCH)
        return {"params": params, "average": average, "queue": queue, "place": place}, value

    state = {"params": mlp(0), "average": mlp(1), "queue": batch(5, 2 * BATCH), "place": np.int32(0)}
    return step, (state, batch())


@register
def conjugate_gradient() -> Any:
    """A natural gradient by conjugate gradients: a loop of products with the Gauss-Newton matrix."""

    def step(p, x):
        value, grads = jax.value_and_grad(loss_of)(p, x)

        def product(v):
            _, tangent = jax.jvp(lambda q: apply(q, x), (p,), (v,))
            _, pull = jax.vjp(lambda q: apply(q, x), p)
            return jax.tree.map(lambda a, b: a / BATCH + b, pull(tangent)[0], v)

        direction, _ = jax.scipy.sparse.linalg.cg(product, grads, maxiter=3)
        return descend(p, direction), value

    return step, (mlp(), batch())


@register
def lagrangian() -> Any:
    """Descent in the parameters, ascent in the multipliers of constraints on the examples."""

    def step(p, multipliers, x):
        def loss(p, m):
            errors = jnp.mean((apply(p, x) - jnp.sin(x)) ** 2, -1)
            return jnp.mean(errors) + jnp.sum(m * (errors - 0.1))

        value, (grads, up) = jax.value_and_grad(loss, (0, 1))(p, multipliers)
        return descend(p, grads), jnp.maximum(multipliers + 0.1 * up, 0), value

    return step, (mlp(), np.abs(batch(4)[:, 0]), batch())


@register
def equilibrium() -> Any:
    """A fixed point, found in a loop of unknown length, with its implicit gradient."""

    def step(p, x):
        def fixed(w, x):
            def unchanged(carry):
                return (jnp.max(jnp.abs(carry[0] - carry[1])) > 1e-9) & (carry[2] < 30)

            start = jnp.tanh(x)
            z, _, _ = lax.while_loop(
                unchanged, lambda c: (jnp.tanh(0.3 * c[0] @ w + x), c[0], c[2] + 1), (start, 0 * start, 0)
            )
            return z

        def loss(p):
            z = lax.stop_gradient(fixed(p["w"], x))
            z = jnp.tanh(0.3 * z @ p["w"] + x)  # one step of the fixed point carries the gradient
            return jnp.mean((z @ p["out"] - x) ** 2)

        value, grads = jax.value_and_grad(loss)(p)
        return descend(p, grads), value

    w, out = arrays((DIM, DIM), (DIM, DIM))
    return step, ({"w": w, "out": out}, batch())


@register
def transposed_state() -> Any:
    """Square parameters come back transposed, and two of them change places."""

    def step(p, x):
        value, grads = jax.value_and_grad(lambda p: jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"] - x) ** 2))(p)
        return {"a": (p["b"] - 0.01 * grads["b"]).T, "b": p["a"] - 0.01 * grads["a"].T}, value

    a, b = arrays((DIM, DIM), (DIM, DIM))
    return step, ({"a": a, "b": b}, batch())


@register
def returned_twice() -> Any:
    """A value is returned twice, an argument as it came, and a sum in two forms."""

    def step(p, frozen, x):
        value, grads = jax.value_and_grad(loss_of)(p, x)
        new = descend(p, grads)
        total = jnp.sum(grads["first"] ** 2)
        return new, frozen, new["first"], grads["first"].sum(0), frozen["first"].T, total, value + total

    return step, (mlp(0), mlp(1), batch())


@register
def dropped_out() -> Any:
    """A random key is part of the state; one mask is read in both passes and by the update."""

    def step(p, key, x):
        key, used = jax.random.split(jax.random.wrap_key_data(key))
        mask = jax.random.bernoulli(used, 0.8, (BATCH, WIDTH))

        def loss(p):
            return jnp.mean((mask * jnp.tanh(x @ p["first"]) @ p["second"] - x) ** 2)

        value, grads = jax.value_and_grad(loss)(p)
        kept = mask.mean(0)
        return {**descend(p, grads), "bias": p["bias"] * kept}, jax.random.key_data(key), value

    return step, (mlp(), np.array([1, 2], np.uint32), batch())


@register
def per_example() -> Any:
    """A gradient of each example, clipped by its own norm before the sum (DP-SGD)."""

    def step(p, x):
        grads = jax.vmap(lambda row: jax.grad(loss_of)(p, row))(x)
        squares = sum(jnp.sum(g.reshape(BATCH, -1) ** 2, -1) for g in jax.tree.leaves(grads))
        scale = jnp.minimum(1.0, 0.1 / jnp.sqrt(squares))
        clipped = jax.tree.map(lambda g: jnp.tensordot(scale, g, 1) / BATCH, grads)
        return descend(p, clipped), loss_of(p, x)

    return step, (mlp(), batch())


@register
def inference() -> Any:
    """Frozen parameters, read by two heads."""

    def step(p, x):
        hidden = apply(p, x)
        return jax.nn.softmax(hidden), jnp.argmax(hidden @ p["first"], -1)

    return step, (mlp(), batch())
