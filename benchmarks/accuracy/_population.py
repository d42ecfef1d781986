"""Train steps drawn at random: plain pieces in many sizes, unlike the models of the registry.

A seed draws a family (perceptron, factorisation, attention, convolutions, recurrence, ...), its depth and widths, an
activation, a loss, an optimizer from plain SGD up, parameters and activations in float32 or bfloat16, whether equal
layers are scanned, and a batch. Nothing is allocated: arguments are shapes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Draw = np.random.Generator
Params = dict[str, Any]
Apply = Callable[[Params, Any], Any]

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: jnp.maximum(x, 0),
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus,
    "square": jnp.square,
}
OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(1e-3),
    "momentum": lambda: optax.sgd(1e-3, momentum=0.9),
    "nesterov": lambda: optax.sgd(1e-3, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-3),
    "adamw": lambda: optax.adamw(1e-3, weight_decay=0.1),
    "clipped adamw": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "rmsprop": lambda: optax.rmsprop(1e-3),
    "lion": lambda: optax.lion(1e-4),
    "adafactor": lambda: optax.adafactor(1e-3),
}
LOSSES = ("mean squares", "sum of squares", "cross entropy", "logistic", "absolute")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A step with the shapes of its arguments.

    Attributes:
      seed: draws the same step in every process.
      family: the kind of model.
      traits: what else was drawn, in words.
      step: (params, optimizer state, batch) -> (params, optimizer state, loss).
      args: shapes of its arguments.
    """

    seed: int
    family: str
    traits: tuple[str, ...]
    step: Callable[..., Any]
    args: tuple[Any, ...]

    @property
    def name(self) -> str:
        return f"{self.seed}: {self.family}, {', '.join(self.traits)}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of one family: shapes of its parameters, its function of parameters and input, and its two ends."""

    params: Params
    apply: Apply
    inputs: jax.ShapeDtypeStruct
    outputs: tuple[int, ...]
    traits: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """Sizes and dtypes that all families draw from.

    Attributes:
      batch: examples; dtype: of activations; param_dtype: of parameters.
    """

    batch: int
    dtype: Any
    param_dtype: Any
    activation: Callable[[Any], Any]
    bias: bool


def _shape(dims: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(dims), dtype)


def _pick(draw: Draw, options: Sequence[Any]) -> Any:
    return options[int(draw.integers(len(options)))]


def _dense(params: Params, name: str, x: Any, dtype: Any) -> Any:
    y = x @ params[name].astype(dtype)
    return y + params[f"{name}_bias"].astype(dtype) if f"{name}_bias" in params else y


def _dense_shapes(name: str, rows: int, columns: int, regime: Regime) -> Params:
    shapes = {name: _shape((rows, columns), regime.param_dtype)}
    return {**shapes, f"{name}_bias": _shape((columns,), regime.param_dtype)} if regime.bias else shapes


def _perceptron(draw: Draw, regime: Regime) -> Model:
    widths = [int(_pick(draw, (256, 512, 784, 1024, 2048, 4096, 8192))) for _ in range(int(draw.integers(2, 7)))]
    pairs = list(itertools.pairwise(widths))
    params = {k: v for i, (a, b) in enumerate(pairs) for k, v in _dense_shapes(f"dense_{i}", a, b, regime).items()}

    def apply(params: Params, x: Any) -> Any:
        for i in range(len(pairs)):
            x = _dense(params, f"dense_{i}", x, regime.dtype)
            x = regime.activation(x) if i + 1 < len(pairs) else x
        return x

    return Model(
        params=params, apply=apply, inputs=_shape((regime.batch, widths[0]), regime.dtype),
        outputs=(regime.batch, widths[-1]), traits=("-".join(map(str, widths)),),
    )  # fmt: skip


def _stack(draw: Draw, regime: Regime) -> Model:
    """Equal residual layers, scanned or unrolled."""
    depth, width, scanned = int(draw.integers(2, 9)), int(_pick(draw, (512, 1024, 2048, 4096))), bool(draw.integers(2))
    hidden = width * int(_pick(draw, (1, 2, 4)))
    normed = bool(draw.integers(2))
    params = {
        "up": _shape((depth, width, hidden), regime.param_dtype),
        "down": _shape((depth, hidden, width), regime.param_dtype),
    }

    def layer(x: Any, up: Any, down: Any) -> Any:
        h = jax.nn.standardize(x) if normed else x
        return x + regime.activation(h @ up.astype(x.dtype)) @ down.astype(x.dtype)

    def apply(params: Params, x: Any) -> Any:
        if scanned:
            return jax.lax.scan(lambda x, p: (layer(x, p["up"], p["down"]), None), x, params)[0]
        for i in range(depth):
            x = layer(x, params["up"][i], params["down"][i])
        return x

    traits = (f"{depth} x {width}-{hidden}", "scanned" if scanned else "unrolled", *(("normed",) if normed else ()))
    return Model(
        params=params, apply=apply, inputs=_shape((regime.batch, width), regime.dtype),
        outputs=(regime.batch, width), traits=traits,
    )  # fmt: skip


def _autoencoder(draw: Draw, regime: Regime) -> Model:
    outer, inner, code = int(_pick(draw, (784, 3072, 4096, 12288))), int(_pick(draw, (512, 1024, 2048))), 64
    sizes = {"in": (outer, inner), "code": (inner, code), "out": (code, inner), "pixels": (inner, outer)}
    params = {k: v for name, (a, b) in sizes.items() for k, v in _dense_shapes(name, a, b, regime).items()}

    def apply(params: Params, x: Any) -> Any:
        for name in sizes:
            x = _dense(params, name, x, regime.dtype)
            x = regime.activation(x) if name != "pixels" else x
        return x

    return Model(
        params=params, apply=apply, inputs=_shape((regime.batch, outer), regime.dtype),
        outputs=(regime.batch, outer), traits=(f"{outer}-{inner}-{code}",),
    )  # fmt: skip


def _regression(draw: Draw, regime: Regime) -> Model:
    features, classes = int(_pick(draw, (784, 4096, 16384, 65536))), int(_pick(draw, (128, 1024, 8192, 32768)))
    return Model(
        params=_dense_shapes("weights", features, classes, regime),
        apply=lambda params, x: _dense(params, "weights", x, regime.dtype),
        inputs=_shape((regime.batch, features), regime.dtype), outputs=(regime.batch, classes),
        traits=(f"{features}-{classes}",),
    )  # fmt: skip


def _factorisation(draw: Draw, regime: Regime) -> Model:
    rows, rank = int(_pick(draw, (8192, 65536, 262144))), int(_pick(draw, (64, 256, 512)))
    params = {"rows": _shape((rows, rank), regime.param_dtype), "mix": _shape((rank, rank), regime.param_dtype)}

    def apply(params: Params, ids: Any) -> Any:
        return regime.activation(params["rows"][ids].astype(regime.dtype)) @ params["mix"].astype(regime.dtype)

    return Model(
        params=params, apply=apply, inputs=_shape((regime.batch,), jnp.int32), outputs=(regime.batch, rank),
        traits=(f"{rows} rows of {rank}",),
    )  # fmt: skip


def _attention(draw: Draw, regime: Regime) -> Model:
    heads, size = int(_pick(draw, (4, 8, 16))), int(_pick(draw, (32, 64, 128)))
    length = int(_pick(draw, (128, 512, 1024)))
    layers, causal, width = int(draw.integers(1, 4)), bool(draw.integers(2)), heads * size
    batch = max(8, regime.batch // length)
    params = {f"{name}_{i}": _shape((width, width), regime.param_dtype) for i in range(layers) for name in "qkvo"}

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
        params=params, apply=apply, inputs=_shape((batch, length, width), regime.dtype),
        outputs=(batch, length, width), traits=traits,
    )  # fmt: skip


def _convolutions(draw: Draw, regime: Regime) -> Model:
    layers, image, window = int(draw.integers(1, 6)), int(_pick(draw, (32, 56, 112))), int(_pick(draw, (1, 3, 5)))
    channels = [int(_pick(draw, (3, 32)))] + [int(_pick(draw, (32, 64, 128, 256))) for _ in range(layers)]
    normed, strided = bool(draw.integers(2)), bool(draw.integers(2))
    batch = max(8, regime.batch // 32)
    params = {
        f"kernel_{i}": _shape((window, window, a, b), regime.param_dtype)
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
        params=params, apply=apply, inputs=_shape((batch, image, image, channels[0]), regime.dtype),
        outputs=(batch, channels[-1]), traits=traits,
    )  # fmt: skip


def _recurrence(draw: Draw, regime: Regime) -> Model:
    width, length = int(_pick(draw, (256, 512, 1024, 2048))), int(_pick(draw, (16, 64, 128)))
    batch, gated = max(16, regime.batch // 16), bool(draw.integers(2))
    names = ("in", "state", "gate") if gated else ("in", "state")
    params = {name: _shape((width, width), regime.param_dtype) for name in names}

    def apply(params: Params, x: Any) -> Any:
        cast = {name: value.astype(x.dtype) for name, value in params.items()}

        def cell(h: Any, step: Any) -> tuple[Any, Any]:
            new = jnp.tanh(step @ cast["in"] + h @ cast["state"])
            gate = jax.nn.sigmoid(step @ cast["gate"]) if gated else 1
            new = gate * new + (1 - gate) * h if gated else new
            return new, new

        return jax.lax.scan(cell, jnp.zeros((batch, width), x.dtype), x.swapaxes(0, 1))[1].swapaxes(0, 1)

    return Model(
        params=params, apply=apply, inputs=_shape((batch, length, width), regime.dtype),
        outputs=(batch, length, width), traits=(f"{width} wide, {length} steps", *(("gated",) if gated else ())),
    )  # fmt: skip


def _language(draw: Draw, regime: Regime) -> Model:
    vocabulary, width, length = int(_pick(draw, (512, 8192, 50257))), int(_pick(draw, (256, 512, 1024))), 128
    batch, tied = max(8, regime.batch // length), bool(draw.integers(2))
    params = {"table": _shape((vocabulary, width), regime.param_dtype)}
    params |= _dense_shapes("up", width, 4 * width, regime) | _dense_shapes("down", 4 * width, width, regime)
    params |= {} if tied else {"head": _shape((width, vocabulary), regime.param_dtype)}

    def apply(params: Params, tokens: Any) -> Any:
        x = params["table"][tokens].astype(regime.dtype)
        x = x + _dense(params, "down", regime.activation(_dense(params, "up", x, regime.dtype)), regime.dtype)
        head = params["table"].T if tied else params["head"]
        return x @ head.astype(regime.dtype)

    return Model(
        params=params, apply=apply, inputs=_shape((batch, length), jnp.int32), outputs=(batch, length, vocabulary),
        traits=(f"vocabulary {vocabulary}, {width} wide", *(("tied",) if tied else ())),
    )  # fmt: skip


FAMILIES: dict[str, Callable[[Draw, Regime], Model]] = {
    "perceptron": _perceptron,
    "stack": _stack,
    "autoencoder": _autoencoder,
    "regression": _regression,
    "factorisation": _factorisation,
    "attention": _attention,
    "convolutions": _convolutions,
    "recurrence": _recurrence,
    "language": _language,
}


def _loss(name: str, scores: Any, target: Any) -> Any:
    scores = scores.astype(jnp.float32)
    if name == "cross entropy":
        return optax.softmax_cross_entropy_with_integer_labels(scores, target).mean()
    if name == "logistic":
        return optax.sigmoid_binary_cross_entropy(scores, target).mean()
    error = scores - target
    return {"mean squares": lambda: jnp.mean(error**2), "sum of squares": lambda: jnp.sum(error**2)}.get(
        name, lambda: jnp.mean(jnp.abs(error))
    )()


def draw_step(seed: int) -> Drawn:
    """The step of a seed; families take turns, so that any run of seeds holds all of them."""
    draw = np.random.default_rng(seed)
    family = list(FAMILIES)[seed % len(FAMILIES)]
    precision = _pick(draw, ("float32", "float32", "bfloat16 activations", "bfloat16"))
    activation, optimizer, loss = _pick(draw, list(ACTIVATIONS)), _pick(draw, list(OPTIMIZERS)), _pick(draw, LOSSES)
    regime = Regime(
        batch=int(2 ** draw.integers(9, 17)),
        dtype=jnp.float32 if precision == "float32" else jnp.bfloat16,
        param_dtype=jnp.bfloat16 if precision == "bfloat16" else jnp.float32,
        activation=ACTIVATIONS[activation],
        bias=bool(draw.integers(2)),
    )
    model, update = FAMILIES[family](draw, regime), OPTIMIZERS[optimizer]()

    def step(params: Params, state: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(
            lambda params: _loss(loss, model.apply(params, batch["inputs"]), batch["targets"])
        )(params)
        updates, state = update.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    labels = loss == "cross entropy"
    targets = _shape(model.outputs[:-1] if labels else model.outputs, jnp.int32 if labels else jnp.float32)
    traits = (*model.traits, precision, activation, loss, optimizer, f"batch {regime.batch}")
    state = jax.eval_shape(update.init, model.params)
    args = (model.params, state, {"inputs": model.inputs, "targets": targets})
    return Drawn(seed=seed, family=family, traits=traits, step=step, args=args)
