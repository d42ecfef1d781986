"""A Swin transformer (arXiv 2103.14030) in Flax Linen: attention in windows that shift, patches that merge."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._mlp import mlp_train_step
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family
from benchmarks.models._vit import make_image_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class SwinConfig(Precision):
    """Sizes of a Swin transformer and of its batch of square images; stage `i` has `depths[i]` blocks of
    `num_heads[i]` heads, and a width of `width * 2**i`; windows are of `window**2` patches."""

    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    width: int
    window: int
    patch_size: int
    image_size: int
    num_classes: int
    batch_size: int
    optimizer: str = "clipped-adamw"


def _into_windows(x: jax.Array, window: int) -> jax.Array:
    """Images `[B, H, W, D]` to windows `[B, N, window**2, D]`."""
    batch, height, width, depth = x.shape
    x = x.reshape(batch, height // window, window, width // window, window, depth)
    return x.swapaxes(2, 3).reshape(batch, -1, window**2, depth)


def _out_of_windows(x: jax.Array, window: int, side: int) -> jax.Array:
    batch, _, _, depth = x.shape
    x = x.reshape(batch, side // window, side // window, window, window, depth)
    return x.swapaxes(2, 3).reshape(batch, side, side, depth)


def _relative_places(window: int) -> np.ndarray:
    """`[window**2, window**2]` rows of the table of biases, one for each difference of two places."""
    y, x = np.divmod(np.arange(window**2), window)
    down, right = y[:, None] - y[None] + window - 1, x[:, None] - x[None] + window - 1
    return down * (2 * window - 1) + right


def _are_neighbours(side: int, window: int, shift: int) -> np.ndarray:
    """`[N, window**2, window**2]`: which patches of a shifted window lay beside each other before the shift."""
    region = np.zeros((side, side), np.int32)
    for i, rows in enumerate((slice(-window), slice(-window, -shift), slice(-shift, None))):
        for j, columns in enumerate((slice(-window), slice(-window, -shift), slice(-shift, None))):
            region[rows, columns] = 3 * i + j
    parts = (
        region.reshape(side // window, window, side // window, window).swapaxes(1, 2).reshape(-1, window**2)
    )
    return parts[:, :, None] == parts[:, None, :]


class WindowAttention(nn.Module):
    """Windows `[B, N, T, D]`: attention within each, with a bias for each difference of two places."""

    config: SwinConfig
    num_heads: int

    @nn.compact
    def __call__(self, x: jax.Array, mask: np.ndarray | None) -> jax.Array:
        dtypes, (*_, depth) = self.config.dtypes, x.shape
        qkv = nn.DenseGeneral((3, self.num_heads, depth // self.num_heads), **dtypes, name="qkv")(x)
        query, key, value = jnp.moveaxis(qkv, -3, 0)
        scores = jnp.einsum("bnqhd,bnkhd->bnhqk", query, key) * (depth // self.num_heads) ** -0.5
        shape = ((2 * self.config.window - 1) ** 2, self.num_heads)
        table = self.param("bias", nn.initializers.normal(0.02), shape, self.config.param_dtype)
        bias = table[_relative_places(self.config.window)]
        scores = scores + jnp.moveaxis(bias, -1, 0).astype(scores.dtype)
        if mask is not None:
            scores = jnp.where(mask[:, None], scores, jnp.finfo(scores.dtype).min)
        h = jnp.einsum("bnhqk,bnkhd->bnqhd", nn.softmax(scores), value)
        return nn.DenseGeneral(depth, axis=(-2, -1), **dtypes, name="out")(h)


class SwinBlock(nn.Module):
    """Images of patches `[B, H, W, D]`: attention in windows, shifted by `shift` patches, and a perceptron."""

    config: SwinConfig
    num_heads: int
    shift: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config, dtypes, side, depth = self.config, self.config.dtypes, x.shape[1], x.shape[-1]
        h, mask = nn.LayerNorm(**dtypes)(x), None
        if self.shift:
            h = jnp.roll(h, (-self.shift, -self.shift), (1, 2))
            mask = _are_neighbours(side, config.window, self.shift)
        h = WindowAttention(config, self.num_heads, name="attention")(_into_windows(h, config.window), mask)
        h = _out_of_windows(h, config.window, side)
        x = x + (jnp.roll(h, (self.shift, self.shift), (1, 2)) if self.shift else h)
        h = nn.gelu(nn.Dense(4 * depth, **dtypes)(nn.LayerNorm(**dtypes)(x)))
        return x + nn.Dense(depth, **dtypes)(h)


class PatchMerging(nn.Module):
    """`[B, H, W, D]` to `[B, H/2, W/2, 2 D]`: four patches become one."""

    config: SwinConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtypes, (batch, side, _, depth) = self.config.dtypes, x.shape
        x = x.reshape(batch, side // 2, 2, side // 2, 2, depth).swapaxes(2, 3)
        x = nn.LayerNorm(**dtypes)(x.reshape(batch, side // 2, side // 2, 4 * depth))
        return nn.Dense(2 * depth, use_bias=False, **dtypes)(x)


class Swin(nn.Module):
    """Images `[B, H, W, 3]` to float32 logits `[B, num_classes]`."""

    config: SwinConfig

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        config, dtypes, patch = self.config, self.config.dtypes, (self.config.patch_size,) * 2
        x = nn.Conv(config.width, patch, patch, padding="VALID", **dtypes, name="patches")(images)
        x = nn.LayerNorm(**dtypes, name="patches_norm")(x)
        for stage, (depth, num_heads) in enumerate(zip(config.depths, config.num_heads)):
            if stage > 0:
                x = PatchMerging(config, name=f"merging_{stage}")(x)
            for block in range(depth):
                is_shifted = block % 2 == 1 and x.shape[1] > config.window
                shift = config.window // 2 if is_shifted else 0
                x = SwinBlock(config, num_heads, shift, name=f"stage_{stage}_block_{block}")(x)
        x = nn.LayerNorm(**dtypes, name="norm")(x).mean(axis=(1, 2))
        logits = nn.Dense(config.num_classes, **dtypes, name="head")(x)
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_swin_state(config: SwinConfig) -> tuple[TrainState]:
    images = jnp.zeros((1, config.image_size, config.image_size, 3), config.param_dtype)
    return (make_train_state(Swin(config), config.optimizer, images),)


_swin = family(SwinConfig, make_swin_state, make_image_batch, always(mlp_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "swin-t": _swin(
        "Swin-T, 28M parameters",
        depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24), width=96, window=7, patch_size=4, image_size=224,
        num_classes=1000, batch_size=256,
    ),
    "swin-tiny": _swin(
        "Swin transformer of two stages for tests",
        depths=(2, 1), num_heads=(2, 4), width=32, window=4, patch_size=4, image_size=32, num_classes=16,
        batch_size=16,
    ),
}  # fmt: skip
