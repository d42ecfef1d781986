"""A masked autoencoder (MAE, arXiv 2111.06377) in Flax Linen: a ViT of few patches, and a decoder of the others."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._gpt import Block, GPTConfig
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family
from benchmarks.models._transformer import fixed_positions

_VARIANCE_FLOOR = 1e-6
"""Added to the variance of a patch's pixels, as the authors' program does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MAEConfig(Precision):
    """Sizes of a masked autoencoder and of its batch of square images with three channels.

    The encoder, `num_layers` of `width`, sees `num_visible` patches of an image; the decoder all of them.
    """

    num_layers: int
    width: int
    num_heads: int
    decoder_layers: int
    decoder_width: int
    decoder_heads: int
    patch_size: int
    image_size: int
    num_visible: int
    batch_size: int
    optimizer: str = "masked-adamw"

    @property
    def num_patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2


class Stack(nn.Module):
    """Layers of a ViT over tokens `[B, T, D]`, and the norm behind them."""

    config: MAEConfig
    num_layers: int
    num_heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        block = GPTConfig(
            num_layers=self.num_layers, width=x.shape[-1], num_heads=self.num_heads, vocab_size=0,
            batch_size=self.config.batch_size, sequence_length=0, **self.config.dtypes,
        )  # fmt: skip
        for layer in range(self.num_layers):
            x = Block(block, name=f"block_{layer}")(x, None)
        return nn.LayerNorm(**self.config.dtypes, name="norm")(x)


def grid_positions(side: int, width: int) -> np.ndarray:
    """Sines and cosines `[side^2, D]` of the column of a patch, then of its row."""
    line = fixed_positions(side, width // 2)
    return np.concatenate([np.tile(line, (side, 1)), np.repeat(line, side, axis=0)], axis=1)


class MAE(nn.Module):
    """Images `[B, H, W, 3]` and noise `[B, N]` to float32 pixels `[B, N, P]` of patches and which are masked `[B, N]`.

    The encoder sees a class token and the patches of least noise (section 3).
    """

    config: MAEConfig

    @nn.compact
    def __call__(self, images: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        config = self.config
        order = jnp.argsort(noise, axis=1)
        rank = jnp.argsort(order, axis=1)
        x = self._encoded(images, order[:, : config.num_visible])
        return self._decoded(x, rank), rank >= config.num_visible

    def _encoded(self, images: jax.Array, visible: jax.Array) -> jax.Array:
        """`[B, 1 + num_visible, D]`, the class token first."""
        config, patch = self.config, (self.config.patch_size,) * 2
        x = nn.Conv(config.width, patch, patch, padding="VALID", **config.dtypes, name="patches")(images)
        side = x.shape[1]
        x = x.reshape(x.shape[0], -1, config.width) + jnp.asarray(grid_positions(side, config.width), x.dtype)
        x = jnp.take_along_axis(x, visible[..., None], axis=1)
        x = jnp.concatenate([self._token("class_token", x.shape[0], 1, config.width), x], axis=1)
        return Stack(config, config.num_layers, config.num_heads, name="encoder")(x)

    def _decoded(self, x: jax.Array, rank: jax.Array) -> jax.Array:
        """Pixels of each patch; mask tokens stand for those that were not seen."""
        config, dtypes, (batch, num_patches) = self.config, self.config.dtypes, rank.shape
        x = nn.Dense(config.decoder_width, **dtypes, name="join")(x)
        masks = self._token("mask_token", batch, num_patches - config.num_visible, config.decoder_width)
        patches = jnp.take_along_axis(jnp.concatenate([x[:, 1:], masks], axis=1), rank[..., None], axis=1)
        patches += jnp.asarray(grid_positions(math.isqrt(num_patches), config.decoder_width), x.dtype)
        x = jnp.concatenate([x[:, :1], patches], axis=1)
        x = Stack(config, config.decoder_layers, config.decoder_heads, name="decoder")(x)
        pixels = nn.Dense(config.patch_size**2 * 3, **dtypes, name="head")(x)[:, 1:]
        return pixels.astype(jnp.promote_types(config.dtype, jnp.float32))

    def _token(self, name: str, batch: int, count: int, width: int) -> jax.Array:
        """`count` times the same learned token in each sequence."""
        token = self.param(name, nn.initializers.normal(0.02), (1, 1, width), self.config.param_dtype)
        return jnp.broadcast_to(token.astype(self.config.dtype), (batch, count, width))


def normalised_patches(images: jax.Array, side: int) -> jax.Array:
    """The pixels `[B, side^2, P]` of an image's patches, each patch of mean 0 and variance 1 (section 3)."""
    batch, size = images.shape[0], images.shape[1] // side
    x = images.reshape(batch, side, size, side, size, 3)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, side**2, -1)
    variance = x.var(axis=-1, keepdims=True, ddof=1)
    return (x - x.mean(axis=-1, keepdims=True)) / jnp.sqrt(variance + _VARIANCE_FLOOR)


def mae_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One optimizer step on the squared error of masked pixels; `images` `[B, H, W, 3]` and `noise` `[B, N]`."""
    targets = normalised_patches(batch["images"], math.isqrt(batch["noise"].shape[1]))

    def loss_fn(params: Any) -> jax.Array:
        predicted, masked = state.apply_fn({"params": params}, batch["images"], batch["noise"])
        errors = jnp.mean((predicted - targets) ** 2, axis=-1)
        return jnp.sum(errors * masked) / jnp.sum(masked)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def make_mae_state(config: MAEConfig) -> tuple[TrainState]:
    images = jnp.zeros((1, config.image_size, config.image_size, 3), config.param_dtype)
    noise = jnp.zeros((1, config.num_patches), config.param_dtype)
    return (make_train_state(MAE(config), config.optimizer, images, noise),)


def make_mae_batch(config: MAEConfig, key: jax.Array) -> dict[str, jax.Array]:
    image_key, noise_key = jax.random.split(key)
    shape = (config.batch_size, config.image_size, config.image_size, 3)
    return {
        "images": jax.random.normal(image_key, shape, config.param_dtype),
        "noise": jax.random.uniform(noise_key, (config.batch_size, config.num_patches), config.param_dtype),
    }


_mae = family(MAEConfig, make_mae_state, make_mae_batch, always(mae_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "mae-b16": _mae(
        "masked autoencoder of a ViT-B/16, 112M parameters",
        num_layers=12, width=768, num_heads=12, decoder_layers=8, decoder_width=512, decoder_heads=16,
        patch_size=16, image_size=224, num_visible=49, batch_size=512,
    ),
    "mae-tiny": _mae(
        "masked autoencoder of one layer on each side for tests",
        num_layers=1, width=32, num_heads=4, decoder_layers=1, decoder_width=16, decoder_heads=2, patch_size=4,
        image_size=16, num_visible=4, batch_size=16,
    ),
}  # fmt: skip
