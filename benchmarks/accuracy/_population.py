"""Train steps drawn at random: plain pieces in many sizes, unlike the models of the registry.

A seed draws a family (perceptron, factorisation, attention, convolutions, recurrence, ...), its depth and widths, an
activation, a loss, an optimizer from plain SGD up, parameters and activations in float32 or bfloat16, whether equal
layers are scanned, and a batch. Nothing is allocated: arguments are shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.accuracy import _drawn_dense as dense
from benchmarks.accuracy import _drawn_layers as layers
from benchmarks.accuracy._drawn_model import Draw, Model, Params, Regime, pick, shape

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
      traits: the other draws, in words.
      step: (params, optimizer state, batch) -> (params, optimizer state, loss).
      args: shapes of its arguments.
      num_classes: integers of the batch are smaller.
    """

    seed: int
    family: str
    traits: tuple[str, ...]
    step: Callable[..., Any]
    args: tuple[Any, ...]
    num_classes: int

    @property
    def name(self) -> str:
        return f"{self.seed}: {self.family}, {', '.join(self.traits)}"


FAMILIES: dict[str, Callable[[Draw, Regime], Model]] = {
    "perceptron": dense.perceptron,
    "stack": dense.stack,
    "autoencoder": dense.autoencoder,
    "regression": dense.regression,
    "factorisation": dense.factorisation,
    "attention": layers.attention,
    "convolutions": layers.convolutions,
    "recurrence": layers.recurrence,
    "language": layers.language,
    "transformer": layers.transformer,
    "pooled": layers.pooled,
    "experts": layers.experts,
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
    precision = pick(draw, ("float32", "float32", "bfloat16 activations", "bfloat16"))
    activation, optimizer, loss = pick(draw, list(ACTIVATIONS)), pick(draw, list(OPTIMIZERS)), pick(draw, LOSSES)
    regime = Regime(
        batch=int(2 ** draw.integers(9, 17)),
        dtype=jnp.float32 if precision == "float32" else jnp.bfloat16,
        param_dtype=jnp.bfloat16 if precision == "bfloat16" else jnp.float32,
        activation=ACTIVATIONS[activation],
        bias=bool(draw.integers(2)),
        recomputed=bool(draw.spawn(1)[0].integers(2)),  # leaves the draws that follow as they are without it
    )
    model, update = FAMILIES[family](draw, regime), OPTIMIZERS[optimizer]()

    def step(params: Params, state: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(
            lambda params: _loss(loss, model.apply(params, batch["inputs"]), batch["targets"])
        )(params)
        updates, state = update.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    labels = loss == "cross entropy"
    targets = shape(model.outputs[:-1] if labels else model.outputs, jnp.int32 if labels else jnp.float32)
    traits = (*model.traits, precision, activation, loss, optimizer, f"batch {regime.batch}")
    state = jax.eval_shape(update.init, model.params)
    args = (model.params, state, {"inputs": model.inputs, "targets": targets})
    return Drawn(seed=seed, family=family, traits=traits, step=step, args=args, num_classes=model.outputs[-1])
