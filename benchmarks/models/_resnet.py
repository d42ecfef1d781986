"""A ResNet (arXiv 1512.03385) with batch normalisation, its statistics in the state, in Flax Linen."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import make_train_state


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetConfig:
    """Sizes of a ResNet of bottleneck blocks and of its batch of square images with three channels.

    `stage_sizes` blocks per stage, whose width doubles from `width` on and whose resolution halves. `widen` times as
    wide are the inner convolutions of a block (Wide-ResNet-50-2, arXiv 1605.07146, has 2).
    """

    stage_sizes: tuple[int, ...]
    width: int
    image_size: int
    num_classes: int
    batch_size: int
    widen: int = 1
    optimizer: str = "momentum"
    dtype: str = "bfloat16"
    param_dtype: str = "float32"


class BottleneckBlock(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1, each normalised, around a shortcut that is projected where shapes differ."""

    width: int
    stride: int
    widen: int
    conv: Any
    norm: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        strides = (self.stride, self.stride)
        inner = self.widen * self.width
        y = nn.relu(self.norm()(self.conv(inner, (1, 1))(x)))
        y = nn.relu(self.norm()(self.conv(inner, (3, 3), strides)(y)))
        y = self.norm()(self.conv(4 * self.width, (1, 1))(y))
        if x.shape != y.shape:
            x = self.norm(name="norm_shortcut")(
                self.conv(4 * self.width, (1, 1), strides, name="shortcut")(x)
            )
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Images `[B, H, W, 3]` to logits `[B, num_classes]`."""

    config: ResNetConfig

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        config = self.config
        dtypes: dict[str, Any] = {"dtype": config.dtype, "param_dtype": config.param_dtype}
        conv = functools.partial(nn.Conv, use_bias=False, **dtypes)
        norm = functools.partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, **dtypes)
        x = nn.relu(norm()(conv(config.width, (7, 7), (2, 2))(images)))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for stage, num_blocks in enumerate(config.stage_sizes):
            for block in range(num_blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = BottleneckBlock(config.width * 2**stage, stride, config.widen, conv, norm)(x)
        logits = nn.Dense(config.num_classes, **dtypes)(x.mean(axis=(1, 2)))
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


class BatchNormTrainState(TrainState):
    """With the running statistics of the batch normalisation."""

    batch_stats: Any


def resnet_train_step(state: BatchNormTrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One optimizer step on cross entropy; `inputs` `[B, H, W, 3]` and int32 `labels` `[B]`."""

    def loss_fn(params: Any) -> tuple[jax.Array, Any]:
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, updates = state.apply_fn(variables, batch["inputs"], True, mutable=["batch_stats"])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()
        return loss, updates["batch_stats"]

    (loss, batch_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), loss


def resnet_eval_step(state: BatchNormTrainState, batch: dict[str, Any]) -> dict[str, jax.Array]:
    """Loss and accuracy with the running statistics; the state is only read."""
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    logits = state.apply_fn(variables, batch["inputs"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()
    return {"loss": loss, "accuracy": (jnp.argmax(logits, axis=-1) == batch["labels"]).mean()}


def make_resnet_state(config: ResNetConfig) -> tuple[BatchNormTrainState]:
    return make_batch_norm_state(ResNet(config), config)


def make_batch_norm_state(model: nn.Module, config: Any) -> tuple[BatchNormTrainState]:
    """Of a model of square images; `config` has `image_size`, `optimizer` and `param_dtype`."""
    images = jnp.zeros((1, config.image_size, config.image_size, 3), config.param_dtype)
    state = make_train_state(model, config.optimizer, images, state_class=BatchNormTrainState)
    # Flax makes the first statistics float32 whatever the parameters are; those that follow are not.
    statistics = jax.tree.map(lambda x: x.astype(config.param_dtype), state.batch_stats)  # pyright: ignore
    return (state.replace(batch_stats=statistics),)
