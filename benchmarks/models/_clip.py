"""CLIP (arXiv 2103.00020) in Flax Linen: a tower for images and one for texts, with a contrastive loss."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family

_FIRST_SCALE = 2.6593  # the logarithm of 1 / 0.07


@dataclass(frozen=True, slots=True, kw_only=True)
class CLIPConfig(Precision):
    """Sizes of both towers, of `num_layers` each, and of a batch of square images and texts."""

    num_layers: int
    image_width: int
    text_width: int
    head_width: int
    patch_size: int
    image_size: int
    vocab_size: int
    num_tokens: int
    embedding: int
    batch_size: int
    optimizer: str = "clipped-adamw"


class Block(nn.Module):
    """Attention and a perceptron with a fast GELU: each behind a norm and added."""

    config: CLIPConfig

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        dtypes, width = self.config.dtypes, x.shape[-1]
        num_heads = width // self.config.head_width
        attention = nn.MultiHeadDotProductAttention(num_heads=num_heads, **dtypes, name="attention")
        x = x + attention(nn.LayerNorm(**dtypes)(x), mask=mask)
        h = nn.Dense(4 * width, **dtypes)(nn.LayerNorm(**dtypes)(x))
        return x + nn.Dense(width, **dtypes)(h * nn.sigmoid(1.702 * h))


class CLIP(nn.Module):
    """Images `[B, H, W, 3]` and texts `[B, T]` to float32 similarities `[B, B]`, scaled."""

    config: CLIPConfig

    @nn.compact
    def __call__(self, images: jax.Array, texts: jax.Array) -> jax.Array:
        features = [self._of_images(images), self._of_texts(texts)]
        wide = jnp.promote_types(self.config.dtype, jnp.float32)
        image, text = (
            f / jnp.linalg.norm(f, axis=-1, keepdims=True) for f in (f.astype(wide) for f in features)
        )
        scale = self.param("scale", nn.initializers.constant(_FIRST_SCALE), (), self.config.param_dtype)
        return jnp.exp(scale).astype(wide) * image @ text.T

    def _of_images(self, images: jax.Array) -> jax.Array:
        config, dtypes, width = self.config, self.config.dtypes, self.config.image_width
        patch = (config.patch_size, config.patch_size)
        x = nn.Conv(width, patch, patch, padding="VALID", use_bias=False, **dtypes, name="patches")(images)
        x = x.reshape(x.shape[0], -1, width)
        first = self.param("class", nn.initializers.normal(0.02), (width,), config.param_dtype).astype(
            x.dtype
        )
        x = jnp.concatenate([jnp.broadcast_to(first, (x.shape[0], 1, width)), x], axis=1)
        x = nn.LayerNorm(**dtypes, name="norm_before")(x + self._positions("image_positions", *x.shape[1:]))
        for layer in range(config.num_layers):
            x = Block(config, name=f"image_{layer}")(x, None)
        x = nn.LayerNorm(**dtypes, name="norm_after")(x[:, 0])
        return nn.Dense(config.embedding, use_bias=False, **dtypes, name="of_image")(x)

    def _of_texts(self, texts: jax.Array) -> jax.Array:
        config, dtypes, width = self.config, self.config.dtypes, self.config.text_width
        x = nn.Embed(config.vocab_size, width, **dtypes, name="tokens")(texts)
        x = x + self._positions("text_positions", *x.shape[1:])
        for layer in range(config.num_layers):
            x = Block(config, name=f"text_{layer}")(x, nn.make_causal_mask(texts))
        x = nn.LayerNorm(**dtypes, name="norm_text")(x)
        last = jnp.argmax(texts, axis=-1)  # the end of a text has the highest number
        x = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
        return nn.Dense(config.embedding, use_bias=False, **dtypes, name="of_text")(x)

    def _positions(self, name: str, length: int, width: int) -> jax.Array:
        table = self.param(name, nn.initializers.normal(0.02), (length, width), self.config.param_dtype)
        return table.astype(self.config.dtype)


def clip_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One optimizer step on the cross entropy of images given texts, and of texts given images."""

    def loss_fn(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, batch["images"], batch["texts"])
        pairs = jnp.arange(logits.shape[0])
        losses = (
            optax.softmax_cross_entropy_with_integer_labels(side, pairs).mean() for side in (logits, logits.T)
        )
        return sum(losses, jnp.zeros((), logits.dtype)) / 2

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def make_clip_state(config: CLIPConfig) -> tuple[TrainState]:
    images = jnp.zeros((1, config.image_size, config.image_size, 3), config.param_dtype)
    texts = jnp.zeros((1, config.num_tokens), jnp.int32)
    return (make_train_state(CLIP(config), config.optimizer, images, texts),)


def make_clip_batch(config: CLIPConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Random images, and random texts that end where they end with the highest number."""
    image_key, text_key = jax.random.split(key)
    shape = (config.batch_size, config.image_size, config.image_size, 3)
    texts = jax.random.randint(
        text_key, (config.batch_size, config.num_tokens), 0, config.vocab_size - 1, jnp.int32
    )
    return {
        "images": jax.random.normal(image_key, shape, config.param_dtype),
        "texts": texts.at[:, -1].set(config.vocab_size - 1),
    }


_clip = family(CLIPConfig, make_clip_state, make_clip_batch, always(clip_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "clip-b32": _clip(
        "CLIP of a ViT-B/32, 151M parameters",
        num_layers=12, image_width=768, text_width=512, head_width=64, patch_size=32, image_size=224,
        vocab_size=49408, num_tokens=77, embedding=512, batch_size=512,
    ),
    "clip-tiny": _clip(
        "CLIP of one layer for tests",
        num_layers=1, image_width=32, text_width=32, head_width=16, patch_size=8, image_size=16, vocab_size=64,
        num_tokens=8, embedding=16, batch_size=16,
    ),
}  # fmt: skip
