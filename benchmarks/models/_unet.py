"""A diffusion U-Net (arXiv 2006.11239) in Flax Linen: group norms, skips, attention at the coarsest level."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family

NUM_STEPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class UNetConfig(Precision):
    """Sizes of a U-Net and of its batch of square images with three channels.

    The width of level `i` is `width * widths[i]`, its resolution half of the one before; `optimizer` is a name in
    `OPTIMIZERS`.
    """

    width: int
    widths: tuple[int, ...]
    image_size: int
    batch_size: int
    num_groups: int = 8
    optimizer: str = "clipped-adamw"


class ResidualBlock(nn.Module):
    """Two normalised convolutions around a shortcut; the noise level is added between them."""

    config: UNetConfig
    width: int

    @nn.compact
    def __call__(self, x: jax.Array, level: jax.Array) -> jax.Array:
        dtypes, groups = self.config.dtypes, self.config.num_groups
        h = nn.Conv(self.width, (3, 3), **dtypes)(nn.silu(nn.GroupNorm(groups, **dtypes)(x)))
        h = h + nn.Dense(self.width, **dtypes)(nn.silu(level))[:, None, None, :]
        h = nn.Conv(self.width, (3, 3), **dtypes)(nn.silu(nn.GroupNorm(groups, **dtypes)(h)))
        return h + (x if x.shape == h.shape else nn.Conv(self.width, (1, 1), **dtypes, name="shortcut")(x))


class UNet(nn.Module):
    """Noisy images `[B, H, W, 3]` and their noise levels `[B]` to the noise `[B, H, W, 3]`."""

    config: UNetConfig

    @nn.compact
    def __call__(self, images: jax.Array, levels: jax.Array) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        frequencies = jnp.exp(-jnp.arange(config.width // 2) / config.width * 18.4)
        angles = levels[:, None] * frequencies
        level = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        level = nn.Dense(4 * config.width, **dtypes)(nn.silu(nn.Dense(4 * config.width, **dtypes)(level)))
        x, skips = nn.Conv(config.width, (3, 3), **dtypes)(images), []
        for i, factor in enumerate(config.widths):
            x = ResidualBlock(config, config.width * factor)(x, level)
            skips.append(x)
            if i + 1 < len(config.widths):
                x = nn.Conv(config.width * factor, (3, 3), (2, 2), **dtypes)(x)
        tokens = nn.GroupNorm(config.num_groups, **dtypes)(x).reshape(x.shape[0], -1, x.shape[-1])
        x = x + nn.MultiHeadDotProductAttention(num_heads=4, **dtypes)(tokens).reshape(x.shape)
        for i, factor in reversed(list(enumerate(config.widths))):
            x = ResidualBlock(config, config.width * factor)(jnp.concatenate([x, skips[i]], axis=-1), level)
            if i > 0:
                shape = (x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3])
                x = nn.Conv(config.width * config.widths[i - 1], (3, 3), **dtypes)(
                    jax.image.resize(x, shape, "nearest")
                )
        x = nn.silu(nn.GroupNorm(config.num_groups, **dtypes)(x))
        return nn.Conv(3, (3, 3), **dtypes)(x).astype(jnp.promote_types(config.dtype, jnp.float32))


def unet_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One optimizer step on the squared error of the predicted noise."""
    keep = jnp.cos(batch["levels"] / NUM_STEPS * jnp.pi / 2)[:, None, None, None]
    noisy = keep * batch["images"] + jnp.sqrt(1 - keep**2) * batch["noise"]

    def loss_fn(params: Any) -> jax.Array:
        return jnp.mean((state.apply_fn({"params": params}, noisy, batch["levels"]) - batch["noise"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def make_unet_state(config: UNetConfig) -> tuple[TrainState]:
    images = jnp.zeros((1, config.image_size, config.image_size, 3), config.param_dtype)
    return (make_train_state(UNet(config), config.optimizer, images, jnp.zeros((1,), config.param_dtype)),)


def make_unet_batch(config: UNetConfig, key: jax.Array) -> dict[str, jax.Array]:
    image_key, noise_key, level_key = jax.random.split(key, 3)
    shape = (config.batch_size, config.image_size, config.image_size, 3)
    return {
        "images": jax.random.normal(image_key, shape, config.param_dtype),
        "noise": jax.random.normal(noise_key, shape, config.param_dtype),
        "levels": jax.random.uniform(level_key, shape[:1], config.param_dtype, 0, NUM_STEPS),
    }


_unet = family(UNetConfig, make_unet_state, make_unet_batch, always(unet_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "unet": _unet(
        "diffusion U-Net of 4 levels, 24M parameters",
        width=128, widths=(1, 2, 2, 4), image_size=64, batch_size=128,
    ),
    "unet-tiny": _unet(
        "diffusion U-Net of 2 levels for tests", width=16, widths=(1, 2), image_size=8, batch_size=16,
    ),
}  # fmt: skip
