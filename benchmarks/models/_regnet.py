"""A RegNetY (arXiv 2003.13678) in Flax Linen: bottlenecks with convolutions of groups of channels, channels weighed by
the content of the image, batch normalisation."""

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
class RegNetConfig(Precision):
    """Sizes of a RegNetY and of its batch of square images with three channels.

    Stage `i` has `stage_sizes[i]` blocks of `widths[i]` channels, in groups of `group_width`, and halves the images.
    """

    stage_sizes: tuple[int, ...]
    widths: tuple[int, ...]
    group_width: int
    stem_width: int
    image_size: int
    num_classes: int
    batch_size: int
    optimizer: str = "momentum"


class YBlock(nn.Module):
    """Convolutions of 1x1, 3x3 in groups, and 1x1 behind weights of channels, around a shortcut (figure 4)."""

    width: int
    group_width: int
    stride: int
    conv: Any
    norm: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        strides, groups = (self.stride,) * 2, self.width // self.group_width
        y = nn.relu(self.norm()(self.conv(self.width, (1, 1), name="reduce")(x)))
        y = self.conv(self.width, (3, 3), strides, feature_group_count=groups, name="grouped")(y)
        y = nn.relu(self.norm()(y))
        squeezed = y.mean(axis=(1, 2), keepdims=True)
        squeezed = nn.relu(self.conv(x.shape[-1] // 4, (1, 1), use_bias=True, name="squeeze")(squeezed))
        y = y * nn.sigmoid(self.conv(self.width, (1, 1), use_bias=True, name="excite")(squeezed))
        y = self.norm()(self.conv(self.width, (1, 1), name="expand")(y))
        if x.shape != y.shape:
            x = self.norm(name="norm_shortcut")(self.conv(self.width, (1, 1), strides, name="shortcut")(x))
        return nn.relu(x + y)


class RegNet(nn.Module):
    """Images `[B, H, W, 3]` to float32 logits `[B, num_classes]`."""

    config: RegNetConfig

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        config = self.config
        conv, norm = conv_and_norm(config.dtypes, train, momentum=0.9)
        x = nn.relu(norm()(conv(config.stem_width, (3, 3), (2, 2), name="stem")(images)))
        for stage, (size, width) in enumerate(zip(config.stage_sizes, config.widths, strict=True)):
            for block in range(size):
                name = f"stage_{stage}_block_{block}"
                x = YBlock(width, config.group_width, 2 if block == 0 else 1, conv, norm, name=name)(x)
        logits = nn.Dense(config.num_classes, **config.dtypes, name="head")(x.mean(axis=(1, 2)))
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_regnet_state(config: RegNetConfig) -> tuple[BatchNormTrainState]:
    return make_batch_norm_state(RegNet(config), config)


_regnet = family(RegNetConfig, make_regnet_state, make_image_batch, always(batch_norm_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "regnety-4gf": _regnet(
        "RegNetY-4GF, 21M parameters",
        stage_sizes=(2, 6, 12, 2), widths=(128, 192, 512, 1088), group_width=64, stem_width=32, image_size=224,
        num_classes=1000, batch_size=256,
    ),
    "regnet-tiny": _regnet(
        "RegNetY of two blocks for tests",
        stage_sizes=(1, 1), widths=(16, 32), group_width=8, stem_width=16, image_size=16, num_classes=16,
        batch_size=16,
    ),
}  # fmt: skip
