"""Inception-v3 (arXiv 1512.00567) with batch normalisation, its statistics in the state, in Flax Linen.

Channels and shapes as in torchvision's `inception_v3`, without the auxiliary classifier.
"""

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

Piece = tuple[int, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class InceptionConfig(Precision):
    """Sizes of the batch of square images with three channels; `num_blocks` of the three kinds of mixed blocks."""

    image_size: int
    num_classes: int
    batch_size: int
    num_blocks: tuple[int, int, int] = (3, 4, 2)
    optimizer: str = "momentum"


_WIDTHS_17 = (128, 160, 160, 192)
"""Channels inside the blocks of the 17 x 17 grid."""
_POOL_WIDTHS_35 = (32, 64, 64)
"""Channels after pooling in the blocks of the 35 x 35 grid."""


class Inception(nn.Module):
    """Images `[B, H, W, 3]` to logits `[B, num_classes]`."""

    config: InceptionConfig

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        config = self.config
        plain, norm = conv_and_norm(config.dtypes, train, momentum=0.9, epsilon=1e-3)

        def conv(
            x: jax.Array, width: int, size: tuple[int, int], stride: int = 1, padding: str = "SAME"
        ) -> Any:
            return nn.relu(norm()(plain(width, size, (stride, stride), padding=padding)(x)))

        def chain(x: jax.Array, *pieces: Piece) -> jax.Array:
            for width, size in pieces:
                x = conv(x, width, size)
            return x

        def pooled(x: jax.Array, width: int) -> jax.Array:
            return conv(nn.avg_pool(x, (3, 3), padding="SAME"), width, (1, 1))

        def halved(x: jax.Array) -> jax.Array:
            return nn.max_pool(x, (3, 3), (2, 2))

        def down(x: jax.Array, width: int) -> jax.Array:
            return conv(x, width, (3, 3), 2, "VALID")

        def stem(x: jax.Array) -> jax.Array:
            x = conv(down(x, 32), 32, (3, 3), padding="VALID")
            x = conv(halved(conv(x, 64, (3, 3))), 80, (1, 1))
            return halved(conv(x, 192, (3, 3), padding="VALID"))

        def mixed_35(x: jax.Array, pool_width: int) -> jax.Array:
            fives, threes = ((48, (1, 1)), (64, (5, 5))), ((64, (1, 1)), (96, (3, 3)), (96, (3, 3)))
            parts = [conv(x, 64, (1, 1)), chain(x, *fives), chain(x, *threes), pooled(x, pool_width)]
            return jnp.concatenate(parts, axis=-1)

        def mixed_17(x: jax.Array, width: int) -> jax.Array:
            short = ((width, (1, 1)), (width, (1, 7)), (192, (7, 1)))
            long = ((width, (1, 1)), (width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7)))
            parts = [conv(x, 192, (1, 1)), chain(x, *short), chain(x, *long), pooled(x, 192)]
            return jnp.concatenate(parts, axis=-1)

        def mixed_8(x: jax.Array) -> jax.Array:
            short, long = conv(x, 384, (1, 1)), chain(x, (448, (1, 1)), (384, (3, 3)))
            forks = [conv(y, 384, size) for y in (short, long) for size in ((1, 3), (3, 1))]
            return jnp.concatenate([conv(x, 320, (1, 1)), *forks, pooled(x, 192)], axis=-1)

        x = stem(images)
        for width in _POOL_WIDTHS_35[: config.num_blocks[0]]:
            x = mixed_35(x, width)
        threes = chain(x, (64, (1, 1)), (96, (3, 3)))
        x = jnp.concatenate([down(x, 384), down(threes, 96), halved(x)], axis=-1)
        for width in _WIDTHS_17[: config.num_blocks[1]]:
            x = mixed_17(x, width)
        sevens = chain(x, (192, (1, 1)), (192, (1, 7)), (192, (7, 1)))
        x = jnp.concatenate([down(conv(x, 192, (1, 1)), 320), down(sevens, 192), halved(x)], axis=-1)
        for _ in range(config.num_blocks[2]):
            x = mixed_8(x)
        logits = nn.Dense(config.num_classes, **config.dtypes)(x.mean(axis=(1, 2)))
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_inception_state(config: InceptionConfig) -> tuple[BatchNormTrainState]:
    return make_batch_norm_state(Inception(config), config)


_inception = family(InceptionConfig, make_inception_state, make_image_batch, always(batch_norm_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "inception-v3": _inception(
        "Inception-v3, 24M parameters", image_size=299, num_classes=1000, batch_size=256,
    ),
}  # fmt: skip
