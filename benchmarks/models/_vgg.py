"""A VGG (arXiv 1409.1556) in Flax Linen: convolutions of 3x3, poolings, three dense layers. Without dropout."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._mlp import mlp_train_step
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family
from benchmarks.models._vit import make_image_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class VGGConfig(Precision):
    """Sizes of a VGG and of its batch of square images; stage `i` has `stage_sizes[i]` convolutions of `widths[i]`."""

    stage_sizes: tuple[int, ...]
    widths: tuple[int, ...]
    dense_width: int
    image_size: int
    num_classes: int
    batch_size: int
    optimizer: str = "momentum"


class VGG(nn.Module):
    """Images `[B, H, W, 3]` to float32 logits `[B, num_classes]`."""

    config: VGGConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        for stage, (size, width) in enumerate(zip(config.stage_sizes, config.widths)):
            for layer in range(size):
                x = nn.relu(nn.Conv(width, (3, 3), **dtypes, name=f"stage_{stage}_{layer}")(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(x.shape[0], -1)
        for layer in range(2):
            x = nn.relu(nn.Dense(config.dense_width, **dtypes, name=f"dense_{layer}")(x))
        logits = nn.Dense(config.num_classes, **dtypes, name="head")(x)
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_vgg_state(config: VGGConfig) -> tuple[TrainState]:
    images = jnp.zeros((1, config.image_size, config.image_size, 3), config.param_dtype)
    return (make_train_state(VGG(config), config.optimizer, images),)


_vgg = family(VGGConfig, make_vgg_state, make_image_batch, always(mlp_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "vgg16": _vgg(
        "VGG-16, 138M parameters",
        stage_sizes=(2, 2, 3, 3, 3), widths=(64, 128, 256, 512, 512), dense_width=4096, image_size=224,
        num_classes=1000, batch_size=256,
    ),
    "vgg-tiny": _vgg(
        "VGG of two stages for tests",
        stage_sizes=(1, 1), widths=(16, 32), dense_width=64, image_size=16, num_classes=16, batch_size=16,
    ),
}  # fmt: skip
