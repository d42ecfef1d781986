"""A plain perceptron classifier in Flax Linen, all float32: the smallest real train step."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import abstract_state


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPConfig:
    """`num_layers` dense layers of `width` inputs and outputs, the last one onto `num_classes`."""

    num_layers: int
    width: int
    num_classes: int
    batch_size: int


class MLP(nn.Module):
    """Inputs `[B, width]` to logits `[B, num_classes]`."""

    config: MLPConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.config.num_layers - 1):
            x = nn.relu(nn.Dense(self.config.width)(x))
        return nn.Dense(self.config.num_classes)(x)


def mlp_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One AdamW step on cross entropy; `batch` holds `inputs` `[B, width]` and int32 `labels` `[B]`."""

    def loss_fn(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, batch["inputs"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def abstract_mlp_args(config: MLPConfig) -> tuple[TrainState, dict[str, jax.ShapeDtypeStruct]]:
    """`(state, batch)` of `jax.ShapeDtypeStruct` for `mlp_train_step`."""
    inputs = jax.ShapeDtypeStruct((config.batch_size, config.width), jnp.float32)
    labels = jax.ShapeDtypeStruct((config.batch_size,), jnp.int32)
    return abstract_state(MLP(config), inputs), {"inputs": inputs, "labels": labels}
