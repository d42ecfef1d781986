"""Models in several forms, for `benchmarks.quality.references`: a plain one first, and steps that accumulate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Case = tuple[Callable[..., Any], tuple[Any, ...]]
Loss = Callable[..., jax.Array]


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def momentum(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A step of gradient descent with momentum."""

    def step(params: Any, slots: Any, *data: Any) -> Any:
        slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, jax.grad(loss)(params, *data))
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, slots), slots

    return step


def _convolutional(numbers: str) -> Callable[..., jax.Array]:
    def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
        dims = (numbers, "HWIO", numbers)
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims)

    return lambda p, x: jnp.mean(conv(jax.nn.relu(conv(x, p["a"])), p["b"]) ** 2)


def _rolled(p: Any, x: jax.Array) -> jax.Array:
    """A recurrent network over time-major tokens."""

    def cell(h: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(now @ p["w"] + h @ p["u"])
        return h, h

    return jnp.mean(jax.lax.scan(cell, jnp.zeros(x.shape[1:]), x)[1] ** 2)


def _attention(order: str) -> Callable[..., jax.Array]:
    """One attention layer; ``order`` is that of batch and tokens."""
    keys = order.replace("t", "s")

    def loss(p: Any, x: jax.Array) -> jax.Array:
        q, k, v = (jnp.einsum(f"{order}d,dhk->{order}hk", x, p[name]) for name in "qkv")
        weights = jax.nn.softmax(jnp.einsum(f"{order}hk,{keys}hk->bhts", q, k))
        mixed = jnp.einsum(f"bhts,{keys}hk->{order}hk", weights, v)
        return jnp.mean(jnp.einsum(f"{order}hk,hkd->{order}d", mixed, p["o"]) ** 2)

    return loss


def _layer(w: Any, x: jax.Array) -> jax.Array:
    return x + jax.nn.relu(x @ w["up"]) @ w["down"]


def _unrolled(remat: bool) -> Callable[..., jax.Array]:
    def loss(layers: Any, x: jax.Array) -> jax.Array:
        for w in layers:
            x = (jax.checkpoint(_layer) if remat else _layer)(w, x)
        return jnp.mean(x**2)

    return loss


def _scanned(remat: bool) -> Callable[..., jax.Array]:
    layer = jax.checkpoint(_layer) if remat else _layer
    return lambda layers, x: jnp.mean(jax.lax.scan(lambda h, w: (layer(w, h), None), x, layers)[0] ** 2)


def _stacked(layers: int, width: int, tokens: int, remat: bool) -> Iterator[tuple[str, Case]]:
    one = {"up": floats(width, 4 * width), "down": floats(4 * width, width)}
    stack = {name: floats(layers, *leaf.shape) for name, leaf in one.items()}
    x = floats(tokens, width)
    yield "unrolled", (momentum(_unrolled(remat)), ([one] * layers, [one] * layers, x))
    yield "scanned", (momentum(_scanned(remat)), (stack, stack, x))


def _mlp(p: Any, x: jax.Array) -> jax.Array:
    return jnp.mean((jax.nn.relu(x @ p["up"]) @ p["down"]) ** 2)


def variants() -> dict[str, dict[str, Case]]:
    """Model -> its forms, the plain one first."""
    kernels = {"a": floats(3, 3, 64, 64), "b": floats(3, 3, 64, 64)}
    cell = {"w": floats(1024, 1024), "u": floats(1024, 1024)}
    heads = {**{name: floats(1024, 16, 64) for name in "qkv"}, "o": floats(16, 64, 1024)}
    dense = {"up": floats(1024, 4096), "down": floats(4096, 1024)}

    def case(loss: Callable[..., jax.Array], params: Any, *data: Any) -> Case:
        return momentum(loss), (params, params, *data)

    def features_first(p: Any, x: jax.Array) -> jax.Array:
        return jnp.mean((p["down"].T @ jax.nn.relu(p["up"].T @ x)) ** 2)

    def mapped(p: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(_rolled, (None, 0))(p, x))

    return {
        "convolutions": {
            "NHWC": case(_convolutional("NHWC"), kernels, floats(256, 112, 112, 64)),
            "CHWN": case(_convolutional("CHWN"), kernels, floats(64, 112, 112, 256)),
        },
        "recurrent": {
            "batch first": case(lambda p, x: _rolled(p, x.swapaxes(0, 1)), cell, floats(4096, 64, 1024)),
            "time first": case(_rolled, cell, floats(64, 4096, 1024)),
            "vmap": case(mapped, cell, floats(4096, 64, 1024)),
        },
        "attention": {
            "batch first": case(_attention("bt"), heads, floats(64, 512, 1024)),
            "time first": case(_attention("tb"), heads, floats(512, 64, 1024)),
        },
        "perceptron": {
            "batch first": case(_mlp, dense, floats(8192, 1024)),
            "features first": case(features_first, dense, floats(1024, 8192)),
        },
        "8 layers": dict(_stacked(8, 2048, 8192, remat=False)),
        "8 layers, remat": dict(_stacked(8, 2048, 8192, remat=True)),
        "13B": dict(_stacked(40, 5120, 65536, remat=True)),
    }


def descent(gradients: Callable[..., Any]) -> Callable[..., Any]:
    return lambda p, *data: jax.tree.map(lambda p, g: p - 0.1 * g, p, gradients(p, *data))


def _added(p: Any, loss: Callable[..., jax.Array], batches: jax.Array) -> Any:
    def add(g: Any, x: jax.Array) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, g, jax.grad(loss)(p, x)), None

    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, p), batches)[0]


def accumulations(
    loss: Callable[..., jax.Array], params: Any, k: int, batch: Sequence[int]
) -> dict[str, Case]:
    """The step over ``k`` micro-batches, cut in several ways."""
    size, *rest = batch
    part = size // k

    def reshaped(p: Any, x: jax.Array) -> Any:
        return _added(p, loss, x.reshape(k, part, *rest))

    def sliced(p: Any, x: jax.Array) -> Any:
        def add(i: Any, g: Any) -> Any:
            return jax.tree.map(
                jnp.add, g, jax.grad(loss)(p, jax.lax.dynamic_slice_in_dim(x, i * part, part))
            )

        return jax.lax.fori_loop(0, k, add, jax.tree.map(jnp.zeros_like, p))

    def stacked(p: Any, x: jax.Array) -> Any:
        return _added(p, loss, x)

    def in_python(p: Any, x: jax.Array) -> Any:
        parts = [jax.grad(loss)(p, x[i * part : (i + 1) * part]) for i in range(k)]
        return jax.tree.map(lambda *g: sum(g), *parts)

    def nested(p: Any, x: jax.Array) -> Any:
        def add(g: Any, x: jax.Array) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, g, _added(p, loss, x)), None

        zeros = jax.tree.map(jnp.zeros_like, p)
        return jax.lax.scan(add, zeros, x.reshape(2, k // 2, part, *rest))[0]

    whole = floats(*batch)
    forms = {
        "reshape": (descent(reshaped), (params, whole)),
        "slices": (descent(sliced), (params, whole)),
        "stacked": (descent(stacked), (params, floats(k, part, *rest))),
        "Python": (descent(in_python), (params, whole)),
    }
    return forms | ({"nested": (descent(nested), (params, whole))} if k > 2 else {})


def accumulated() -> dict[str, tuple[Loss, Any, tuple[int, ...]]]:
    """Model -> loss, parameters and shape of the batch, for `accumulations`."""
    return {
        "convolutions": (
            _convolutional("NHWC"),
            {"a": floats(3, 3, 64, 64), "b": floats(3, 3, 64, 64)},
            (256, 112, 112, 64),
        ),
        "perceptron": (_mlp, {"up": floats(1024, 4096), "down": floats(4096, 1024)}, (8192, 1024)),
        "layers": (
            _unrolled(remat=False),
            [{"up": floats(2048, 8192), "down": floats(8192, 2048)}] * 4,
            (8192, 2048),
        ),
    }
