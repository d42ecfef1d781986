"""A vision transformer (ViT, arXiv 2010.11929) in Flax Linen."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._gpt import Block, GPTConfig
from benchmarks.models._mlp import mlp_train_step
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, always, family


@dataclass(frozen=True, slots=True, kw_only=True)
class ViTConfig:
    """Sizes of a ViT and of its batch of square images with three channels."""

    num_layers: int
    width: int
    num_heads: int
    patch_size: int
    image_size: int
    num_classes: int
    batch_size: int
    optimizer: str = "clipped-adamw"
    dtype: str = "bfloat16"
    param_dtype: str = "float32"

    @property
    def block(self) -> GPTConfig:
        """Its layers are those of a GPT, without the causal mask."""
        return GPTConfig(
            num_layers=self.num_layers, width=self.width, num_heads=self.num_heads, vocab_size=0,
            batch_size=self.batch_size, sequence_length=0, dtype=self.dtype, param_dtype=self.param_dtype,
        )  # fmt: skip


class ViT(nn.Module):
    """Images `[B, H, W, 3]` to logits `[B, num_classes]`: patches, a class token, learned positions."""

    config: ViTConfig

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        config = self.config
        dtypes = config.block.dtypes
        patch = (config.patch_size, config.patch_size)
        x = nn.Conv(config.width, patch, strides=patch, padding="VALID", **dtypes, name="patches")(images)
        x = x.reshape(x.shape[0], -1, config.width)
        token = self.param("class_token", nn.initializers.zeros, (1, 1, config.width), config.param_dtype)
        x = jnp.concatenate(
            [jnp.broadcast_to(token, (x.shape[0], 1, config.width)).astype(x.dtype), x], axis=1
        )
        shape = (1, x.shape[1], config.width)
        positions = self.param("positions", nn.initializers.normal(0.02), shape, config.param_dtype)
        x = x + positions.astype(x.dtype)
        mask = jnp.ones((1, 1, x.shape[1], x.shape[1]), bool)
        for layer in range(config.num_layers):
            x = Block(config.block, name=f"block_{layer}")(x, mask)
        x = nn.LayerNorm(**dtypes)(x)[:, 0]
        logits = nn.Dense(config.num_classes, **dtypes, name="head")(x)
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_vit_state(config: ViTConfig) -> tuple[TrainState]:
    images = jnp.zeros((1, config.image_size, config.image_size, 3), config.param_dtype)
    return (make_train_state(ViT(config), config.optimizer, images),)


def make_image_batch(config: ViTConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Random images of two classes or more, told apart by their brightness; `inputs` and `labels`."""
    label_key, noise_key = jax.random.split(key)
    labels = jax.random.randint(label_key, (config.batch_size,), 0, config.num_classes, jnp.int32)
    shape = (config.batch_size, config.image_size, config.image_size, 3)
    noise = jax.random.normal(noise_key, shape, config.param_dtype)
    brightness = (labels / config.num_classes).astype(config.param_dtype)
    return {"inputs": noise + brightness[:, None, None, None], "labels": labels}


_vit = family(ViTConfig, make_vit_state, make_image_batch, always(mlp_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "vit-b16": _vit(
        "ViT-B/16, 86M parameters",
        num_layers=12, width=768, num_heads=12, patch_size=16, image_size=224, num_classes=1000,
        batch_size=256,
    ),
    "vit-l16": _vit(
        "ViT-L/16, 304M parameters",
        num_layers=24, width=1024, num_heads=16, patch_size=16, image_size=224, num_classes=1000,
        batch_size=256,
    ),
    "vit-tiny": _vit(
        "2-layer ViT for tests",
        num_layers=2, width=64, num_heads=4, patch_size=4, image_size=16, num_classes=16, batch_size=16,
    ),
}  # fmt: skip
