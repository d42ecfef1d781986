"""Whisper (arXiv 2212.04356) in Flax Linen: an encoder of spectrograms behind two convolutions, a decoder of text."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._gpt import next_token_loss
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family

_FURTHEST = 10000


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperConfig(Precision):
    """Sizes of a Whisper of `num_layers` on each side, and of its batch of spectrograms and texts."""

    num_layers: int
    width: int
    num_heads: int
    vocab_size: int
    num_frames: int
    num_features: int
    num_tokens: int
    batch_size: int
    optimizer: str = "clipped-adamw"


def _sinusoids(length: int, width: int) -> np.ndarray:
    """`[T, D]`: sines of positions at wavelengths up to the furthest, then cosines."""
    rates = np.exp(-np.log(_FURTHEST) / (width // 2 - 1) * np.arange(width // 2))
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


class Attention(nn.Module):
    """Queries `[B, T, D]` to `memory` `[B, S, D]`; keys have no bias."""

    config: WhisperConfig

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array, mask: jax.Array | None) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        heads = (config.num_heads, config.width // config.num_heads)
        query = nn.DenseGeneral(heads, **dtypes, name="query")(x)
        key = nn.DenseGeneral(heads, use_bias=False, **dtypes, name="key")(memory)
        value = nn.DenseGeneral(heads, **dtypes, name="value")(memory)
        h = nn.dot_product_attention(query, key, value, mask=mask, dtype=config.dtype)
        return nn.DenseGeneral(config.width, axis=(-2, -1), **dtypes, name="output")(h)


class Layer(nn.Module):
    """Self-attention, attention to `memory` where there is one, a perceptron: each behind a norm and added."""

    config: WhisperConfig

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None, memory: jax.Array | None = None) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        h = nn.LayerNorm(**dtypes)(x)
        x = x + Attention(config, name="self")(h, h, mask)
        if memory is not None:
            x = x + Attention(config, name="cross")(nn.LayerNorm(**dtypes)(x), memory, None)
        h = nn.gelu(nn.Dense(4 * config.width, **dtypes)(nn.LayerNorm(**dtypes)(x)), approximate=False)
        return x + nn.Dense(config.width, **dtypes)(h)


class Whisper(nn.Module):
    """Spectrograms `[B, T, F]` and tokens `[B, S]` to float32 logits `[B, S, V]`."""

    config: WhisperConfig

    @nn.compact
    def __call__(self, frames: jax.Array, tokens: jax.Array) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        x = nn.gelu(nn.Conv(config.width, (3,), padding=1, **dtypes)(frames), approximate=False)
        x = nn.gelu(nn.Conv(config.width, (3,), (2,), padding=1, **dtypes)(x), approximate=False)
        x = x + jnp.asarray(_sinusoids(x.shape[1], config.width), config.dtype)
        for layer in range(config.num_layers):
            x = Layer(config, name=f"encoder_{layer}")(x, None)
        memory = nn.LayerNorm(**dtypes, name="encoder_norm")(x)
        embed = nn.Embed(config.vocab_size, config.width, **dtypes, name="tokens")
        shape = (config.num_tokens, config.width)
        positions = self.param("positions", nn.initializers.normal(0.02), shape, config.param_dtype)
        x = embed(tokens) + positions.astype(config.dtype)
        for layer in range(config.num_layers):
            x = Layer(config, name=f"decoder_{layer}")(x, nn.make_causal_mask(tokens), memory)
        x = nn.LayerNorm(**dtypes, name="decoder_norm")(x)
        return embed.attend(x).astype(jnp.promote_types(config.dtype, jnp.float32))


def whisper_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One optimizer step on the cross entropy of `labels` `[B, S]`, given `frames` `[B, T, F]` and `tokens`."""

    def loss_fn(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, batch["frames"], batch["tokens"])
        return next_token_loss(logits, batch["labels"])

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def make_whisper_state(config: WhisperConfig) -> tuple[TrainState]:
    frames = jnp.zeros((1, config.num_frames, config.num_features), config.param_dtype)
    tokens = jnp.zeros((1, config.num_tokens), jnp.int32)
    return (make_train_state(Whisper(config), config.optimizer, frames, tokens),)


def make_whisper_batch(config: WhisperConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Random spectrograms and texts; the tokens are the labels moved on by one, 0 first."""
    frame_key, label_key = jax.random.split(key)
    shape = (config.batch_size, config.num_frames, config.num_features)
    labels = jax.random.randint(
        label_key, (config.batch_size, config.num_tokens), 1, config.vocab_size, jnp.int32
    )
    return {
        "frames": jax.random.normal(frame_key, shape, config.param_dtype),
        "tokens": jnp.pad(labels[:, :-1], ((0, 0), (1, 0))),
        "labels": labels,
    }


_whisper = family(WhisperConfig, make_whisper_state, make_whisper_batch, always(whisper_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "whisper-base": _whisper(
        "Whisper base, 72M parameters",
        num_layers=6, width=512, num_heads=8, vocab_size=51865, num_frames=3000, num_features=80, num_tokens=448,
        batch_size=64,
    ),
    "whisper-tiny": _whisper(
        "1-layer Whisper for tests",
        num_layers=1, width=32, num_heads=4, vocab_size=16, num_frames=16, num_features=8, num_tokens=8,
        batch_size=16,
    ),
}  # fmt: skip
