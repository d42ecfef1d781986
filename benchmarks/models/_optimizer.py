"""The optimizer that all benchmark models share, and the TrainState around it."""

from typing import Any

import jax
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

LEARNING_RATE = 3e-4
WEIGHT_DECAY = 0.1
MAX_GRADIENT_NORM = 1.0


def optimizer() -> optax.GradientTransformation:
    """AdamW behind clipping by the global gradient norm, the usual recipe for language models."""
    return optax.chain(
        optax.clip_by_global_norm(MAX_GRADIENT_NORM), optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    )


def abstract_state(model: nn.Module, *inputs: Any) -> TrainState:
    """The TrainState of `model` with `jax.ShapeDtypeStruct` leaves: initialised under `jax.eval_shape`."""
    tx = optimizer()

    def init(*values: Any) -> TrainState:
        params = model.init(jax.random.key(0), *values)["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    return jax.eval_shape(init, *inputs)
