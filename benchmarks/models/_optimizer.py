"""The optimizers by name, and the TrainState around a Linen model."""

from collections.abc import Callable
from typing import Any

import jax
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

LEARNING_RATE = 3e-4
WEIGHT_DECAY = 0.1
MAX_GRADIENT_NORM = 1.0
SGD_LEARNING_RATE = 0.05
ACCUMULATED_STEPS = 2


def _clipped_adamw() -> optax.GradientTransformation:
    """AdamW behind clipping by the global gradient norm, the usual recipe for language models."""
    return optax.chain(
        optax.clip_by_global_norm(MAX_GRADIENT_NORM), optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    )


def _decays(params: Any) -> Any:
    """Weight decay for matrices, none for biases and scales."""
    return jax.tree.map(lambda p: p.ndim > 1, params)


def _scheduled_momentum() -> optax.GradientTransformation:
    """Nesterov momentum with decoupled decay on a warm-up and cosine schedule, the recipe of ResNets."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, SGD_LEARNING_RATE, warmup_steps=10, decay_steps=1000)
    return optax.chain(
        optax.add_decayed_weights(1e-4, mask=_decays), optax.sgd(schedule, momentum=0.9, nesterov=True)
    )


def _accumulating() -> optax.GradientTransformation:
    """AdamW that acts on the mean gradient of several steps."""
    return optax.MultiSteps(
        optax.adamw(LEARNING_RATE), every_k_schedule=ACCUMULATED_STEPS
    ).gradient_transformation()


OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(SGD_LEARNING_RATE),
    "sgd-momentum": lambda: optax.sgd(SGD_LEARNING_RATE, momentum=0.9),
    "momentum": _scheduled_momentum,
    "adamw": lambda: optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY),
    "masked-adamw": lambda: optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY, mask=_decays),
    "clipped-adamw": _clipped_adamw,
    "adagrad": lambda: optax.adagrad(SGD_LEARNING_RATE),
    "adafactor": lambda: optax.adafactor(LEARNING_RATE),
    "multi-steps": _accumulating,
}


def make_train_state(
    model: nn.Module, optimizer: str, *inputs: Any, state_class: type[TrainState] = TrainState, **fields: Any
) -> TrainState:
    """A TrainState with initial parameters; its other variables (statistics) become fields of their name."""
    variables = model.init(jax.random.key(0), *inputs)
    others = {name: value for name, value in variables.items() if name != "params"}
    return state_class.create(
        apply_fn=model.apply, params=variables["params"], tx=OPTIMIZERS[optimizer](), **others, **fields
    )
