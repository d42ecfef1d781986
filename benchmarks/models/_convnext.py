"""A ConvNeXt (arXiv 2201.03545) in Flax Linen: depthwise convolutions, layer norms, scaled residuals."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._mlp import mlp_train_step
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family
from benchmarks.models._vit import make_image_batch

_FIRST_SCALE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvNeXtConfig(Precision):
    """Sizes of a ConvNeXt and of its batch of square images; stage `i` has `stage_sizes[i]` blocks of `widths[i]`."""

    stage_sizes: tuple[int, ...]
    widths: tuple[int, ...]
    image_size: int
    num_classes: int
    batch_size: int
    optimizer: str = "clipped-adamw"


class ConvNeXtBlock(nn.Module):
    """Images `[B, H, W, D]`: a 7x7 convolution of each channel, a perceptron over channels, added with a scale."""

    config: ConvNeXtConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtypes, width = self.config.dtypes, x.shape[-1]
        h = nn.Conv(width, (7, 7), feature_group_count=width, **dtypes, name="depthwise")(x)
        h = nn.gelu(nn.Dense(4 * width, **dtypes)(nn.LayerNorm(**dtypes)(h)))
        h = nn.Dense(width, **dtypes)(h)
        scale = self.param("scale", nn.initializers.constant(_FIRST_SCALE), (width,), self.config.param_dtype)
        return x + scale.astype(h.dtype) * h


class ConvNeXt(nn.Module):
    """Images `[B, H, W, 3]` to float32 logits `[B, num_classes]`."""

    config: ConvNeXtConfig

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        x = nn.Conv(config.widths[0], (4, 4), (4, 4), padding="VALID", **dtypes, name="patches")(images)
        x = nn.LayerNorm(**dtypes, name="patches_norm")(x)
        for stage, (size, width) in enumerate(zip(config.stage_sizes, config.widths)):
            if stage > 0:
                x = nn.LayerNorm(**dtypes, name=f"norm_{stage}")(x)
                x = nn.Conv(width, (2, 2), (2, 2), padding="VALID", **dtypes, name=f"downsample_{stage}")(x)
            for block in range(size):
                x = ConvNeXtBlock(config, name=f"stage_{stage}_block_{block}")(x)
        x = nn.LayerNorm(**dtypes, name="norm")(x.mean(axis=(1, 2)))
        logits = nn.Dense(config.num_classes, **dtypes, name="head")(x)
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_convnext_state(config: ConvNeXtConfig) -> tuple[TrainState]:
    images = jnp.zeros((1, config.image_size, config.image_size, 3), config.param_dtype)
    return (make_train_state(ConvNeXt(config), config.optimizer, images),)


_convnext = family(ConvNeXtConfig, make_convnext_state, make_image_batch, always(mlp_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "convnext-t": _convnext(
        "ConvNeXt-T, 29M parameters",
        stage_sizes=(3, 3, 9, 3), widths=(96, 192, 384, 768), image_size=224, num_classes=1000, batch_size=256,
    ),
    "convnext-tiny": _convnext(
        "ConvNeXt of three blocks for tests",
        stage_sizes=(1, 1, 1), widths=(16, 32, 64), image_size=32, num_classes=16, batch_size=16,
    ),
}  # fmt: skip
