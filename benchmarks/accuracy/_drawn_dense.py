"""Random models of dense layers: perceptrons, equal layers, autoencoders, regressions, factorisations."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.accuracy._drawn_model import Draw, Model, Params, Regime, dense, dense_shapes, pick, shape


def perceptron(draw: Draw, regime: Regime) -> Model:
    widths = [int(pick(draw, (256, 512, 784, 1024, 2048, 4096, 8192))) for _ in range(int(draw.integers(2, 7)))]
    pairs = list(itertools.pairwise(widths))
    params = {k: v for i, (a, b) in enumerate(pairs) for k, v in dense_shapes(f"dense_{i}", a, b, regime).items()}

    def apply(params: Params, x: Any) -> Any:
        for i in range(len(pairs)):
            x = dense(params, f"dense_{i}", x, regime.dtype)
            x = regime.activation(x) if i + 1 < len(pairs) else x
        return x

    return Model(
        params=params, apply=apply, inputs=shape((regime.batch, widths[0]), regime.dtype),
        outputs=(regime.batch, widths[-1]), traits=("-".join(map(str, widths)),),
    )  # fmt: skip


def stack(draw: Draw, regime: Regime) -> Model:
    """Equal residual layers, scanned, recomputed perhaps, or unrolled."""
    depth, width, scanned = int(draw.integers(2, 9)), int(pick(draw, (512, 1024, 2048, 4096))), bool(draw.integers(2))
    hidden = width * int(pick(draw, (1, 2, 4)))
    normed = bool(draw.integers(2))
    params = {
        "up": shape((depth, width, hidden), regime.param_dtype),
        "down": shape((depth, hidden, width), regime.param_dtype),
    }

    def layer(x: Any, up: Any, down: Any) -> Any:
        h = jax.nn.standardize(x) if normed else x
        return x + regime.activation(h @ up.astype(x.dtype)) @ down.astype(x.dtype)

    def apply(params: Params, x: Any) -> Any:
        if scanned:
            of_trip = regime.in_loop(layer)
            return jax.lax.scan(lambda x, p: (of_trip(x, p["up"], p["down"]), None), x, params)[0]
        for i in range(depth):
            x = layer(x, params["up"][i], params["down"][i])
        return x

    traits = (f"{depth} x {width}-{hidden}", regime.trait(scanned), *(("normed",) if normed else ()))
    return Model(
        params=params, apply=apply, inputs=shape((regime.batch, width), regime.dtype),
        outputs=(regime.batch, width), traits=traits,
    )  # fmt: skip


def autoencoder(draw: Draw, regime: Regime) -> Model:
    outer, inner, code = int(pick(draw, (784, 3072, 4096, 12288))), int(pick(draw, (512, 1024, 2048))), 64
    sizes = {"in": (outer, inner), "code": (inner, code), "out": (code, inner), "pixels": (inner, outer)}
    params = {k: v for name, (a, b) in sizes.items() for k, v in dense_shapes(name, a, b, regime).items()}

    def apply(params: Params, x: Any) -> Any:
        for name in sizes:
            x = dense(params, name, x, regime.dtype)
            x = regime.activation(x) if name != "pixels" else x
        return x

    return Model(
        params=params, apply=apply, inputs=shape((regime.batch, outer), regime.dtype),
        outputs=(regime.batch, outer), traits=(f"{outer}-{inner}-{code}",),
    )  # fmt: skip


def regression(draw: Draw, regime: Regime) -> Model:
    features, classes = int(pick(draw, (784, 4096, 16384, 65536))), int(pick(draw, (128, 1024, 8192, 32768)))
    return Model(
        params=dense_shapes("weights", features, classes, regime),
        apply=lambda params, x: dense(params, "weights", x, regime.dtype),
        inputs=shape((regime.batch, features), regime.dtype), outputs=(regime.batch, classes),
        traits=(f"{features}-{classes}",),
    )  # fmt: skip


def factorisation(draw: Draw, regime: Regime) -> Model:
    rows, rank = int(pick(draw, (8192, 65536, 262144))), int(pick(draw, (64, 256, 512)))
    params = {"rows": shape((rows, rank), regime.param_dtype), "mix": shape((rank, rank), regime.param_dtype)}

    def apply(params: Params, ids: Any) -> Any:
        return regime.activation(params["rows"][ids].astype(regime.dtype)) @ params["mix"].astype(regime.dtype)

    return Model(
        params=params, apply=apply, inputs=shape((regime.batch,), jnp.int32), outputs=(regime.batch, rank),
        traits=(f"{rows} rows of {rank}",),
    )  # fmt: skip
