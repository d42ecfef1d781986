"""An EfficientNet (arXiv 1905.11946) in Flax Linen: depthwise convolutions between two of 1x1, channels weighed by what
the image holds, batch normalisation. Without dropout."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.models._batch_norm import (
    BatchNormTrainState,
    batch_norm_train_step,
    conv_and_norm,
    make_batch_norm_state,
)
from benchmarks.models._spec import ModelSpec, Precision, always, family
from benchmarks.models._vit import make_image_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Equal blocks but for the first, which has the stride; `expand` times as many channels inside as come."""

    expand: int
    width: int
    num_blocks: int
    stride: int
    kernel_size: int


def stages_of(*sizes: tuple[int, int, int, int, int]) -> tuple[Stage, ...]:
    return tuple(
        Stage(expand=expand, width=width, num_blocks=blocks, stride=stride, kernel_size=kernel)
        for expand, width, blocks, stride, kernel in sizes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficientNetConfig(Precision):
    """Sizes of an EfficientNet and of its batch of square images with three channels."""

    stages: tuple[Stage, ...]
    stem_width: int
    head_width: int
    image_size: int
    num_classes: int
    batch_size: int
    optimizer: str = "momentum"


class InvertedBottleneck(nn.Module):
    """Images `[B, H, W, D]`: expanded, convolved channel by channel, weighed, projected; added where shapes allow.

    `inner` channels are convolved, expanded to where fewer come; their weights are made of `squeezed` channels, and
    they have none if that is 0.
    """

    inner: int
    width: int
    kernel_size: int
    stride: int
    squeezed: int
    conv: Any
    norm: Any
    activation: Callable[..., jax.Array] = nn.swish
    squeeze_activation: Callable[..., jax.Array] = nn.swish
    gate: Callable[..., jax.Array] = nn.sigmoid

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h, inner = x, self.inner
        if inner > x.shape[-1]:
            h = self.activation(self.norm()(self.conv(inner, (1, 1), name="expand")(h)))
        kernel, strides = (self.kernel_size,) * 2, (self.stride,) * 2
        h = self.conv(inner, kernel, strides, feature_group_count=inner, name="depthwise")(h)
        h = self.activation(self.norm()(h))
        if self.squeezed:
            h = h * self._weights(h)
        h = self.norm()(self.conv(self.width, (1, 1), name="project")(h))
        return x + h if x.shape == h.shape else h

    def _weights(self, x: jax.Array) -> jax.Array:
        """Of each image's channels `[B, 1, 1, D]`."""
        squeeze = self.conv(self.squeezed, (1, 1), use_bias=True, name="squeeze")
        excite = self.conv(x.shape[-1], (1, 1), use_bias=True, name="excite")
        squeezed = self.squeeze_activation(squeeze(x.mean(axis=(1, 2), keepdims=True)))
        return self.gate(excite(squeezed))


class EfficientNet(nn.Module):
    """Images `[B, H, W, 3]` to float32 logits `[B, num_classes]`."""

    config: EfficientNetConfig

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        config = self.config
        conv, norm = conv_and_norm(config.dtypes, train, momentum=0.99, epsilon=1e-3)
        x = nn.swish(norm()(conv(config.stem_width, (3, 3), (2, 2), name="stem")(images)))
        for number, stage in enumerate(config.stages):
            for block in range(stage.num_blocks):
                stride = stage.stride if block == 0 else 1
                came = x.shape[-1]
                x = InvertedBottleneck(
                    stage.expand * came, stage.width, stage.kernel_size, stride, came // 4, conv, norm,
                    name=f"stage_{number}_block_{block}",
                )(x)  # fmt: skip
        x = nn.swish(norm()(conv(config.head_width, (1, 1), name="head")(x)))
        logits = nn.Dense(config.num_classes, **config.dtypes, name="classes")(x.mean(axis=(1, 2)))
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_efficientnet_state(config: EfficientNetConfig) -> tuple[BatchNormTrainState]:
    return make_batch_norm_state(EfficientNet(config), config)


_efficientnet = family(
    EfficientNetConfig, make_efficientnet_state, make_image_batch, always(batch_norm_train_step)
)

CONFIGS: dict[str, ModelSpec] = {
    "efficientnet-b0": _efficientnet(
        "EfficientNet-B0, 5.3M parameters",
        stages=stages_of(
            (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
            (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
        ),
        stem_width=32, head_width=1280, image_size=224, num_classes=1000, batch_size=256,
    ),
    "efficientnet-tiny": _efficientnet(
        "EfficientNet of two blocks for tests",
        stages=stages_of((1, 16, 1, 1, 3), (2, 16, 1, 1, 3)),
        stem_width=16, head_width=32, image_size=16, num_classes=16, batch_size=16,
    ),
}  # fmt: skip
