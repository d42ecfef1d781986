"""A DenseNet (arXiv 1608.06993) with batch normalisation, its statistics in the state, in Flax Linen."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.models._batch_norm import (
    BatchNormTrainState,
    batch_norm_train_step,
    conv_and_norm,
    make_batch_norm_state,
    stem,
)
from benchmarks.models._spec import ModelSpec, Precision, always, family
from benchmarks.models._vit import make_image_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseNetConfig(Precision):
    """Sizes of a DenseNet and of its batch of square images with three channels.

    `blocks[i]` layers in block `i`, each adds `growth` channels, through `4 * growth` in between; `width` before them.
    """

    blocks: tuple[int, ...]
    growth: int
    width: int
    image_size: int
    num_classes: int
    batch_size: int
    optimizer: str = "momentum"


class DenseNet(nn.Module):
    """Images `[B, H, W, 3]` to logits `[B, num_classes]`."""

    config: DenseNetConfig

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        config = self.config
        conv, norm = conv_and_norm(config.dtypes, train, momentum=0.9)
        x = stem(conv, norm, config.width, images)
        for block, num_layers in enumerate(config.blocks):
            if block:
                x = conv(x.shape[-1] // 2, (1, 1))(nn.relu(norm()(x)))
                x = nn.avg_pool(x, (2, 2), strides=(2, 2))
            for _ in range(num_layers):
                h = conv(4 * config.growth, (1, 1))(nn.relu(norm()(x)))
                h = conv(config.growth, (3, 3))(nn.relu(norm()(h)))
                x = jnp.concatenate([x, h], axis=-1)
        x = nn.relu(norm()(x)).mean(axis=(1, 2))
        logits = nn.Dense(config.num_classes, **config.dtypes)(x)
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_densenet_state(config: DenseNetConfig) -> tuple[BatchNormTrainState]:
    return make_batch_norm_state(DenseNet(config), config)


_densenet = family(DenseNetConfig, make_densenet_state, make_image_batch, always(batch_norm_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "densenet121": _densenet(
        "DenseNet-121, 8M parameters",
        blocks=(6, 12, 24, 16), growth=32, width=64, image_size=224, num_classes=1000, batch_size=256,
    ),
    "densenet-tiny": _densenet(
        "DenseNet of two blocks for tests",
        blocks=(1, 2), growth=8, width=16, image_size=32, num_classes=16, batch_size=16,
    ),
}  # fmt: skip
