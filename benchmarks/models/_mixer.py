"""An MLP-Mixer (arXiv 2105.01601) in Flax Linen: perceptrons over patches and over channels in turn."""

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
class MixerConfig(Precision):
    """Sizes of a Mixer and of its batch of square images; `tokens_width` and `mlp_width` are of its perceptrons."""

    num_layers: int
    width: int
    tokens_width: int
    mlp_width: int
    patch_size: int
    image_size: int
    num_classes: int
    batch_size: int
    optimizer: str = "clipped-adamw"


class Perceptron(nn.Module):
    """Two layers over the last dimension, back to its size."""

    width: int
    config: MixerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h = nn.gelu(nn.Dense(self.width, **self.config.dtypes)(x))
        return nn.Dense(x.shape[-1], **self.config.dtypes)(h)


class MixerBlock(nn.Module):
    """Patches `[B, T, D]` mixed over T, then over D, each behind a norm and added."""

    config: MixerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        h = jnp.swapaxes(nn.LayerNorm(**config.dtypes)(x), 1, 2)
        x = x + jnp.swapaxes(Perceptron(config.tokens_width, config, name="tokens")(h), 1, 2)
        h = nn.LayerNorm(**config.dtypes)(x)
        return x + Perceptron(config.mlp_width, config, name="channels")(h)


class Mixer(nn.Module):
    """Images `[B, H, W, 3]` to float32 logits `[B, num_classes]`."""

    config: MixerConfig

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        config, patch = self.config, (self.config.patch_size,) * 2
        x = nn.Conv(config.width, patch, strides=patch, padding="VALID", **config.dtypes, name="patches")(
            images
        )
        x = x.reshape(x.shape[0], -1, config.width)
        for layer in range(config.num_layers):
            x = MixerBlock(config, name=f"block_{layer}")(x)
        x = nn.LayerNorm(**config.dtypes)(x).mean(axis=1)
        logits = nn.Dense(config.num_classes, **config.dtypes, name="head")(x)
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_mixer_state(config: MixerConfig) -> tuple[TrainState]:
    images = jnp.zeros((1, config.image_size, config.image_size, 3), config.param_dtype)
    return (make_train_state(Mixer(config), config.optimizer, images),)


_mixer = family(MixerConfig, make_mixer_state, make_image_batch, always(mlp_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "mixer-b16": _mixer(
        "MLP-Mixer-B/16, 60M parameters",
        num_layers=12, width=768, tokens_width=384, mlp_width=3072, patch_size=16, image_size=224,
        num_classes=1000, batch_size=256,
    ),
}  # fmt: skip
