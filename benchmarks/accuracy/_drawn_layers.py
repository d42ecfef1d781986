"""Random models of attention, convolutions, recurrence, embeddings and experts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.accuracy._drawn_model import Draw, Model, Params, Regime, dense, dense_shapes, pick, shape


def attention(draw: Draw, regime: Regime) -> Model:
    heads, size = int(pick(draw, (4, 8, 16))), int(pick(draw, (32, 64, 128)))
    length = int(pick(draw, (128, 512, 1024)))
    layers, causal, width = int(draw.integers(1, 4)), bool(draw.integers(2)), heads * size
    batch = max(8, regime.batch // length)
    params = {f"{name}_{i}": shape((width, width), regime.param_dtype) for i in range(layers) for name in "qkvo"}

    def one(params: Params, i: int, x: Any) -> Any:
        def split(name: str) -> Any:
            return (x @ params[f"{name}_{i}"].astype(x.dtype)).reshape(batch, length, heads, size)

        scores = jnp.einsum("bqhd,bkhd->bhqk", split("q"), split("k")) / math.sqrt(size)
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), split("v")).reshape(batch, length, width)
        return x + mixed @ params[f"o_{i}"].astype(x.dtype)

    def apply(params: Params, x: Any) -> Any:
        for i in range(layers):
            x = one(params, i, x)
        return x

    traits = (f"{layers} layers, {heads} heads of {size}, {length} tokens", *(("causal",) if causal else ()))
    return Model(
        params=params, apply=apply, inputs=shape((batch, length, width), regime.dtype),
        outputs=(batch, length, width), traits=traits,
    )  # fmt: skip


def convolutions(draw: Draw, regime: Regime) -> Model:
    layers, image, window = int(draw.integers(1, 6)), int(pick(draw, (32, 56, 112))), int(pick(draw, (1, 3, 5)))
    channels = [int(pick(draw, (3, 32)))] + [int(pick(draw, (32, 64, 128, 256))) for _ in range(layers)]
    normed, strided = bool(draw.integers(2)), bool(draw.integers(2))
    batch = max(8, regime.batch // 32)
    params = {
        f"kernel_{i}": shape((window, window, a, b), regime.param_dtype)
        for i, (a, b) in enumerate(itertools.pairwise(channels))
    }

    def apply(params: Params, x: Any) -> Any:
        for i in range(layers):
            stride = (2, 2) if strided and i % 2 else (1, 1)
            x = jax.lax.conv_general_dilated(
                x, params[f"kernel_{i}"].astype(x.dtype), stride, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.standardize(x, axis=(0, 1, 2)) if normed else x
            x = regime.activation(x)
        return x.mean((1, 2))

    sizes = f"{image} x {image}, {'-'.join(map(str, channels))}, {window} x {window}"
    traits = (sizes, *(("normed",) if normed else ()))
    return Model(
        params=params, apply=apply, inputs=shape((batch, image, image, channels[0]), regime.dtype),
        outputs=(batch, channels[-1]), traits=traits,
    )  # fmt: skip


def recurrence(draw: Draw, regime: Regime) -> Model:
    width, length = int(pick(draw, (256, 512, 1024, 2048))), int(pick(draw, (16, 64, 128)))
    batch, gated = max(16, regime.batch // 16), bool(draw.integers(2))
    names = ("in", "state", "gate") if gated else ("in", "state")
    params = {name: shape((width, width), regime.param_dtype) for name in names}

    def apply(params: Params, x: Any) -> Any:
        cast = {name: value.astype(x.dtype) for name, value in params.items()}

        def cell(h: Any, step: Any) -> tuple[Any, Any]:
            new = jnp.tanh(step @ cast["in"] + h @ cast["state"])
            gate = jax.nn.sigmoid(step @ cast["gate"]) if gated else 1
            new = gate * new + (1 - gate) * h if gated else new
            return new, new

        return jax.lax.scan(cell, jnp.zeros((batch, width), x.dtype), x.swapaxes(0, 1))[1].swapaxes(0, 1)

    return Model(
        params=params, apply=apply, inputs=shape((batch, length, width), regime.dtype),
        outputs=(batch, length, width), traits=(f"{width} wide, {length} steps", *(("gated",) if gated else ())),
    )  # fmt: skip


def language(draw: Draw, regime: Regime) -> Model:
    vocabulary, width, length = int(pick(draw, (512, 8192, 50257))), int(pick(draw, (256, 512, 1024))), 128
    batch, tied = max(8, regime.batch // length), bool(draw.integers(2))
    params = {"table": shape((vocabulary, width), regime.param_dtype)}
    params |= dense_shapes("up", width, 4 * width, regime) | dense_shapes("down", 4 * width, width, regime)
    params |= {} if tied else {"head": shape((width, vocabulary), regime.param_dtype)}

    def apply(params: Params, tokens: Any) -> Any:
        x = params["table"][tokens].astype(regime.dtype)
        x = x + dense(params, "down", regime.activation(dense(params, "up", x, regime.dtype)), regime.dtype)
        head = params["table"].T if tied else params["head"]
        return x @ head.astype(regime.dtype)

    return Model(
        params=params, apply=apply, inputs=shape((batch, length), jnp.int32), outputs=(batch, length, vocabulary),
        traits=(f"vocabulary {vocabulary}, {width} wide", *(("tied",) if tied else ())),
    )  # fmt: skip


def transformer(draw: Draw, regime: Regime) -> Model:
    """Blocks of causal attention and two dense layers between an embedding and logits: scanned, recomputed perhaps, or
    unrolled."""
    depth, scanned = int(draw.integers(1, 5)), bool(draw.integers(2))
    heads, size = int(pick(draw, (4, 8))), int(pick(draw, (32, 64)))
    length, vocabulary = int(pick(draw, (64, 256))), int(pick(draw, (1000, 8192, 32000)))
    width, batch = heads * size, max(8, regime.batch // length)
    sizes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    blocks = {name: shape((depth, *dims), regime.param_dtype) for name, dims in sizes.items()}
    params = {"table": shape((vocabulary, width), regime.param_dtype), "blocks": blocks}
    causal = jnp.tril(jnp.ones((length, length), bool))

    def block(x: Any, weights: Params) -> tuple[Any, None]:
        y = jax.nn.standardize(x) @ weights["qkv"].astype(x.dtype)
        q, k, v = (part.reshape(batch, length, heads, size) for part in jnp.split(y, 3, axis=-1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(size)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(causal, scores, -1e9)), v)
        x = x + mixed.reshape(batch, length, width) @ weights["out"].astype(x.dtype)
        hidden = regime.activation(jax.nn.standardize(x) @ weights["up"].astype(x.dtype))
        return x + hidden @ weights["down"].astype(x.dtype), None

    def apply(params: Params, tokens: Any) -> Any:
        x = params["table"][tokens].astype(regime.dtype)
        if scanned:
            x, _ = jax.lax.scan(regime.in_loop(block), x, params["blocks"])
        else:
            for i in range(depth):
                x, _ = block(x, jax.tree.map(lambda stacked, i=i: stacked[i], params["blocks"]))
        return x @ params["table"].T.astype(regime.dtype)

    traits = (f"{depth} blocks, {heads} heads of {size}, {length} tokens of {vocabulary}",)
    return Model(
        params=params, apply=apply, inputs=shape((batch, length), jnp.int32), outputs=(batch, length, vocabulary),
        traits=(*traits, regime.trait(scanned)),
    )  # fmt: skip


def pooled(draw: Draw, regime: Regime) -> Model:
    """Convolutions with a bias and max pooling after each, and two dense layers."""
    layers, image, window = int(draw.integers(1, 4)), int(pick(draw, (32, 64))), int(pick(draw, (3, 5)))
    channels = [3] + [int(pick(draw, (32, 64, 128))) for _ in range(layers)]
    batch, hidden, classes = max(8, regime.batch // 32), int(pick(draw, (128, 1024))), int(pick(draw, (16, 1000)))
    flat = channels[-1] * (image >> layers) ** 2
    params = dense_shapes("hidden", flat, hidden, regime) | dense_shapes("classes", hidden, classes, regime)
    for i, (a, b) in enumerate(itertools.pairwise(channels)):
        params[f"kernel_{i}"] = shape((window, window, a, b), regime.param_dtype)
        params[f"shift_{i}"] = shape((b,), regime.param_dtype)

    def apply(params: Params, x: Any) -> Any:
        for i in range(layers):
            kernel = params[f"kernel_{i}"].astype(x.dtype)
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = regime.activation(x + params[f"shift_{i}"].astype(x.dtype))
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = regime.activation(dense(params, "hidden", x.reshape(batch, flat), regime.dtype))
        return dense(params, "classes", x, regime.dtype)

    return Model(
        params=params, apply=apply, inputs=shape((batch, image, image, 3), regime.dtype), outputs=(batch, classes),
        traits=(f"{image} x {image}, {'-'.join(map(str, channels))}, {window} x {window}, {hidden}-{classes}",),
    )  # fmt: skip


def experts(draw: Draw, regime: Regime) -> Model:
    """Tokens sent to experts of limited capacity by their largest gate."""
    count, width = int(pick(draw, (4, 8, 16))), int(pick(draw, (256, 512, 1024)))
    groups = max(8, regime.batch // 256)
    hidden, tokens = width * int(pick(draw, (2, 4))), 256
    capacity = 2 * tokens // count
    params = {
        "gate": shape((width, count), regime.param_dtype),
        "up": shape((count, width, hidden), regime.param_dtype),
        "down": shape((count, hidden, width), regime.param_dtype),
    }

    def apply(params: Params, x: Any) -> Any:
        gates = jax.nn.softmax((x @ params["gate"].astype(x.dtype)).astype(jnp.float32))
        chosen = jax.nn.one_hot(gates.argmax(-1), count)
        place = jnp.cumsum(chosen, axis=1) * chosen - 1
        sent = jax.nn.one_hot(place.max(-1).astype(jnp.int32), capacity)
        dispatch = (chosen[..., None] * sent[:, :, None, :]).astype(x.dtype)
        inside = jnp.einsum("gtec,gtd->egcd", dispatch, x)
        inner = regime.activation(jnp.einsum("egcd,edh->egch", inside, params["up"].astype(x.dtype)))
        made = jnp.einsum("egch,ehd->egcd", inner, params["down"].astype(x.dtype))
        weight = (dispatch * gates.max(-1)[..., None, None].astype(x.dtype)).astype(x.dtype)
        return x + jnp.einsum("gtec,egcd->gtd", weight, made)

    return Model(
        params=params, apply=apply, inputs=shape((groups, tokens, width), regime.dtype),
        outputs=(groups, tokens, width), traits=(f"{count} experts of {width}-{hidden}",),
    )  # fmt: skip
