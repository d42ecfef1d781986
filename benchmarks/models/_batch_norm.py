"""What convolutional networks with batch normalisation share: their steps, state and layers, in Flax Linen."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import make_train_state

Layer = Callable[..., Any]
"""Makes a Flax module."""


class BatchNormTrainState(TrainState):
    """With the running statistics of the batch normalisation."""

    batch_stats: Any


def batch_norm_train_step(state: BatchNormTrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One optimizer step on cross entropy; `inputs` `[B, H, W, 3]` and int32 `labels` `[B]`."""

    def loss_fn(params: Any) -> tuple[jax.Array, Any]:
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, updates = state.apply_fn(variables, batch["inputs"], True, mutable=["batch_stats"])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()
        return loss, updates["batch_stats"]

    (loss, batch_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), loss


def batch_norm_eval_step(state: BatchNormTrainState, batch: dict[str, Any]) -> dict[str, jax.Array]:
    """Loss and accuracy with the running statistics; the state is only read."""
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    logits = state.apply_fn(variables, batch["inputs"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()
    return {"loss": loss, "accuracy": (jnp.argmax(logits, axis=-1) == batch["labels"]).mean()}


def make_batch_norm_state(model: nn.Module, config: Any) -> tuple[BatchNormTrainState]:
    """Of a model of square images; `config` has `image_size`, `optimizer` and `param_dtype`."""
    images = jnp.zeros((1, config.image_size, config.image_size, 3), config.param_dtype)
    state = make_train_state(model, config.optimizer, images, state_class=BatchNormTrainState)
    # Flax makes the first statistics float32 whatever the parameters are; those that follow are not.
    statistics = jax.tree.map(lambda x: x.astype(config.param_dtype), state.batch_stats)  # pyright: ignore
    return (state.replace(batch_stats=statistics),)


def conv_and_norm(dtypes: dict[str, str], train: bool, **norm: Any) -> tuple[Layer, Layer]:
    """Convolutions without bias, and batch normalisation, of the batch's own statistics if `train`, with `norm`."""
    conv = functools.partial(nn.Conv, use_bias=False, **dtypes)  # pyright: ignore
    return conv, functools.partial(nn.BatchNorm, use_running_average=not train, **dtypes, **norm)


def stem(conv: Layer, norm: Layer, width: int, images: jax.Array) -> jax.Array:
    """`[B, H, W, 3]` to `[B, H/4, W/4, width]`: a convolution of 7x7 and max pooling (arXiv 1512.03385, table 1)."""
    x = nn.relu(norm()(conv(width, (7, 7), (2, 2))(images)))
    return nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
