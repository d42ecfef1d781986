"""A diffusion transformer (DiT, arXiv 2212.09748) in Flax Linen: norms modulated by noise level and class."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family

NUM_STEPS = 1000
_FREQUENCIES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DiTConfig(Precision):
    """Sizes of a DiT and of its batch of square latents with `channels` channels."""

    num_layers: int
    width: int
    num_heads: int
    patch_size: int
    latent_size: int
    channels: int
    num_classes: int
    batch_size: int
    optimizer: str = "clipped-adamw"


def _modulated(x: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
    return x * (1 + scale[:, None]) + shift[:, None]


class DiTBlock(nn.Module):
    """Tokens `[B, T, D]` under a condition `[B, D]`: attention and a perceptron, each shifted, scaled and gated."""

    config: DiTConfig

    @nn.compact
    def __call__(self, x: jax.Array, condition: jax.Array) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        modulation = nn.Dense(
            6 * config.width, kernel_init=nn.initializers.zeros, **dtypes, name="modulation"
        )
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = jnp.split(
            modulation(nn.silu(condition)), 6, axis=-1
        )
        h = _modulated(nn.LayerNorm(use_scale=False, use_bias=False, **dtypes)(x), shift, scale)
        h = nn.MultiHeadDotProductAttention(num_heads=config.num_heads, **dtypes, name="attention")(h)
        x = x + gate[:, None] * h
        h = _modulated(nn.LayerNorm(use_scale=False, use_bias=False, **dtypes)(x), mlp_shift, mlp_scale)
        h = nn.Dense(config.width, **dtypes)(nn.gelu(nn.Dense(4 * config.width, **dtypes)(h)))
        return x + mlp_gate[:, None] * h


class DiT(nn.Module):
    """Noisy latents `[B, H, W, C]`, noise levels `[B]` and classes `[B]` to the float32 noise `[B, H, W, C]`."""

    config: DiTConfig

    @nn.compact
    def __call__(self, latents: jax.Array, levels: jax.Array, classes: jax.Array) -> jax.Array:
        config, dtypes, patch = self.config, self.config.dtypes, (self.config.patch_size,) * 2
        angles = levels[:, None] * jnp.exp(-jnp.arange(_FREQUENCIES // 2) / (_FREQUENCIES // 2) * 9.2)
        level = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1).astype(config.dtype)
        level = nn.Dense(config.width, **dtypes)(nn.silu(nn.Dense(config.width, **dtypes)(level)))
        condition = level + nn.Embed(config.num_classes, config.width, **dtypes, name="classes")(classes)
        x = nn.Conv(config.width, patch, patch, padding="VALID", **dtypes, name="patches")(latents)
        side = x.shape[1]
        x = x.reshape(x.shape[0], -1, config.width)
        positions = self.param("positions", nn.initializers.normal(0.02), x.shape[1:], config.param_dtype)
        x = x + positions.astype(x.dtype)
        for layer in range(config.num_layers):
            x = DiTBlock(config, name=f"block_{layer}")(x, condition)
        shift, scale = jnp.split(
            nn.Dense(2 * config.width, **dtypes, name="modulation")(nn.silu(condition)), 2, -1
        )
        x = _modulated(nn.LayerNorm(use_scale=False, use_bias=False, **dtypes)(x), shift, scale)
        x = nn.Dense(config.patch_size**2 * config.channels, **dtypes, name="head")(x)
        x = x.reshape(-1, side, side, config.patch_size, config.patch_size, config.channels)
        noise = x.transpose(0, 1, 3, 2, 4, 5).reshape(latents.shape)
        return noise.astype(jnp.promote_types(config.dtype, jnp.float32))


def dit_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One optimizer step on the squared error of the predicted noise."""
    keep = jnp.cos(batch["levels"] / NUM_STEPS * jnp.pi / 2)[:, None, None, None]
    noisy = keep * batch["latents"] + jnp.sqrt(1 - keep**2) * batch["noise"]

    def loss_fn(params: Any) -> jax.Array:
        predicted = state.apply_fn({"params": params}, noisy, batch["levels"], batch["classes"])
        return jnp.mean((predicted - batch["noise"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def make_dit_state(config: DiTConfig) -> tuple[TrainState]:
    latents = jnp.zeros((1, config.latent_size, config.latent_size, config.channels), config.param_dtype)
    levels, classes = jnp.zeros((1,), config.param_dtype), jnp.zeros((1,), jnp.int32)
    return (make_train_state(DiT(config), config.optimizer, latents, levels, classes),)


def make_dit_batch(config: DiTConfig, key: jax.Array) -> dict[str, jax.Array]:
    latent_key, noise_key, level_key, class_key = jax.random.split(key, 4)
    shape = (config.batch_size, config.latent_size, config.latent_size, config.channels)
    return {
        "latents": jax.random.normal(latent_key, shape, config.param_dtype),
        "noise": jax.random.normal(noise_key, shape, config.param_dtype),
        "levels": jax.random.uniform(level_key, shape[:1], config.param_dtype, 0, NUM_STEPS),
        "classes": jax.random.randint(class_key, shape[:1], 0, config.num_classes),
    }


_dit = family(DiTConfig, make_dit_state, make_dit_batch, always(dit_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "dit-b4": _dit(
        "DiT-B/4, diffusion transformer of 130M parameters",
        num_layers=12, width=768, num_heads=12, patch_size=4, latent_size=32, channels=4, num_classes=1000,
        batch_size=512,
    ),
    "dit-tiny": _dit(
        "2-layer diffusion transformer for tests",
        num_layers=2, width=64, num_heads=4, patch_size=2, latent_size=8, channels=4, num_classes=16, batch_size=16,
    ),
}  # fmt: skip
