"""A plain perceptron classifier in Flax Linen, all of one dtype: the smallest real train step."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, family


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPConfig:
    """`num_layers` dense layers of `width` inputs and outputs, the last one onto `num_classes`.

    `optimizer` is a name in `OPTIMIZERS`; `num_microbatches` parts of the batch are taken one after the other in a
    `lax.scan`, their gradients added.
    """

    num_layers: int
    width: int
    num_classes: int
    batch_size: int
    optimizer: str = "clipped-adamw"
    num_microbatches: int = 1
    dtype: str = "float32"


class MLP(nn.Module):
    """Inputs `[B, width]` to logits `[B, num_classes]`."""

    config: MLPConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        for _ in range(config.num_layers - 1):
            x = nn.relu(nn.Dense(config.width, param_dtype=config.dtype)(x))
        return nn.Dense(config.num_classes, param_dtype=config.dtype)(x)


def _loss_and_grads(state: TrainState, batch: Any) -> tuple[jax.Array, Any]:
    def loss_fn(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, batch["inputs"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

    return jax.value_and_grad(loss_fn)(state.params)


def mlp_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One optimizer step on cross entropy; `batch` holds `inputs` `[B, width]` and int32 `labels` `[B]`."""
    loss, grads = _loss_and_grads(state, batch)
    return state.apply_gradients(grads=grads), loss


def make_mlp_step(config: MLPConfig) -> Any:
    """`mlp_train_step`, or the same over microbatches."""
    if config.num_microbatches == 1:
        return mlp_train_step

    def accumulating_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
        parts = jax.tree.map(lambda x: x.reshape(config.num_microbatches, -1, *x.shape[1:]), batch)

        def add(total: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, _loss_and_grads(state, part)), None

        zero = jax.tree.map(jnp.zeros_like, (jnp.zeros((), config.dtype), state.params))
        total, _ = jax.lax.scan(add, zero, parts)
        loss, grads = jax.tree.map(lambda x: x / config.num_microbatches, total)
        return state.apply_gradients(grads=grads), loss

    return accumulating_train_step


def make_mlp_state(config: MLPConfig) -> tuple[TrainState]:
    return (make_train_state(MLP(config), config.optimizer, jnp.zeros((1, config.width), config.dtype)),)


def make_mlp_batch(config: MLPConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Random inputs, and labels that a perceptron can learn."""
    inputs = jax.random.normal(key, (config.batch_size, config.width), config.dtype)
    return {
        "inputs": inputs,
        "labels": jnp.argmax(inputs[:, : config.num_classes], axis=-1).astype(jnp.int32),
    }


_mlp = family(MLPConfig, make_mlp_state, make_mlp_batch, make_mlp_step)

CONFIGS: dict[str, ModelSpec] = {
    "mlp": _mlp(
        "4-layer perceptron, 4M parameters", num_layers=4, width=1024, num_classes=1024, batch_size=4096
    ),
    "mlp-huge-last": _mlp(
        "4-layer perceptron onto 262,144 classes, 1.1B parameters",
        num_layers=4, width=4096, num_classes=262144, batch_size=4096, optimizer="adamw",
    ),
    "mlp-tiny": _mlp("3-layer perceptron for tests", num_layers=3, width=128, num_classes=16, batch_size=32),
}  # fmt: skip
