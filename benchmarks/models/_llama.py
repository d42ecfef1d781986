"""A decoder-only transformer of Llama 3's architecture in stock Flax Linen: bf16 compute, f32 parameters.

Root-mean-square norms, rotary positions, grouped-query attention, SwiGLU (Grattafiori et al., "The Llama 3 Herd of
Models", arXiv:2407.21783, table 3).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._gpt import gpt_train_step as llama_train_step
from benchmarks.models._gpt import make_gpt_batch as make_llama_batch
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family

__all__ = ["LlamaConfig", "llama_train_step", "make_llama_batch", "make_llama_state"]

ROPE_BASE = 500_000.0
"""Base frequency of the rotary positions, as in table 3 of the paper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(Precision):
    """Sizes of a decoder and of its batch: `batch_size` sequences of `sequence_length` tokens per step.

    `ffn_widths` gives layers perceptrons of unequal widths, in turns; empty: all have `ffn_width`. `remat` puts each
    block under `jax.checkpoint`.
    """

    num_layers: int
    width: int
    num_heads: int
    ffn_width: int
    vocab_size: int
    batch_size: int
    sequence_length: int
    ffn_widths: tuple[int, ...] = ()
    remat: bool = True
    optimizer: str = "clipped-adamw"

    def ffn_width_of(self, layer: int) -> int:
        return self.ffn_widths[layer % len(self.ffn_widths)] if self.ffn_widths else self.ffn_width


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(DecoderConfig):
    """Sizes of a Llama; `num_kv_heads` heads of keys and values serve `num_heads` of queries."""

    num_kv_heads: int

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads


def rotate(x: jax.Array, base: float = ROPE_BASE) -> jax.Array:
    """Rotary positions of heads `[B, T, ..., D]`: halves of D are real and imaginary parts (Su et al. 2021)."""
    length, half = x.shape[1], x.shape[-1] // 2
    frequencies = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(length, dtype=jnp.float32)[:, None] * frequencies
    angles = angles.reshape(length, *(1,) * (x.ndim - 3), half)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    real, imaginary = x[..., :half], x[..., half:]
    return jnp.concatenate([real * cos - imaginary * sin, imaginary * cos + real * sin], axis=-1)


def attend(scores: jax.Array, v: jax.Array, subscripts: str, window: int = 0) -> jax.Array:
    """The sums of values `[B, S, ..., D]` that scores `[B, ..., T, S]` weigh; `subscripts` are einsum's.

    Tokens see those up to themselves, only the last `window` of these unless it is 0; softmax is in float32.
    """
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if window:
        seen &= jnp.triu(jnp.ones(scores.shape[-2:], bool), 1 - window)
    scores = jnp.where(
        seen, scores.astype(jnp.promote_types(scores.dtype, jnp.float32)), jnp.finfo(jnp.float32).min
    )
    return jnp.einsum(subscripts, jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)


class Attention(nn.Module):
    """Causal self-attention; groups of query heads share a head of keys and values (Ainslie et al. 2023)."""

    config: LlamaConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        kwargs = {"use_bias": False, **config.dtypes}
        groups, width = config.num_heads // config.num_kv_heads, config.head_width
        q = rotate(nn.DenseGeneral((config.num_kv_heads, groups, width), name="query", **kwargs)(x))
        k = rotate(nn.DenseGeneral((config.num_kv_heads, width), name="key", **kwargs)(x))
        v = nn.DenseGeneral((config.num_kv_heads, width), name="value", **kwargs)(x)
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k) * jnp.asarray(width**-0.5, q.dtype)
        mixed = attend(scores, v, "bkgts,bskd->btkgd")
        return nn.DenseGeneral(config.width, axis=(-3, -2, -1), name="out", **kwargs)(mixed)


def swiglu(x: jax.Array, ffn_width: int, dtypes: dict[str, str]) -> jax.Array:
    """The gated perceptron of a module's tokens `[B, T, D]` (Shazeer 2020); the module gets its projections."""
    kwargs = {"use_bias": False, **dtypes}
    gate = nn.silu(nn.Dense(ffn_width, name="gate", **kwargs)(x))
    h = gate * nn.Dense(ffn_width, name="up", **kwargs)(x)
    return nn.Dense(x.shape[-1], name="down", **kwargs)(h)


class Block(nn.Module):
    """Pre-norm attention and SwiGLU perceptron, each with a residual connection; `attention` is made of the config."""

    config: Any
    ffn_width: int
    attention: Callable[..., nn.Module] = Attention

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        x = x + self.attention(config, name="attention")(
            nn.RMSNorm(name="attention_norm", **config.dtypes)(x)
        )
        h = nn.RMSNorm(name="ffn_norm", **config.dtypes)(x)
        return x + swiglu(h, self.ffn_width, config.dtypes)


class Llama(nn.Module):
    """Tokens `[B, T]` to float32 logits `[B, T, V]`; the output projection has weights of its own unless `tied`."""

    config: Any
    attention: Callable[..., nn.Module] = Attention
    tied: bool = False
    block: Callable[..., nn.Module] = Block

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        config = self.config
        embed = nn.Embed(config.vocab_size, config.width, name="tokens", **config.dtypes)
        x = embed(tokens)
        block = nn.remat(self.block) if config.remat else self.block
        for layer in range(config.num_layers):
            x = block(config, config.ffn_width_of(layer), self.attention, name=f"block_{layer}")(x)
        x = nn.RMSNorm(name="norm", **config.dtypes)(x)
        logits_dtype = jnp.promote_types(config.dtype, jnp.float32)
        if self.tied:
            return embed.attend(x).astype(logits_dtype)
        head = nn.Dense(config.vocab_size, use_bias=False, name="head", **config.dtypes)
        return head(x).astype(logits_dtype)


def make_llama_state(config: LlamaConfig) -> tuple[TrainState]:
    tokens = jnp.zeros((1, config.sequence_length), jnp.int32)
    return (make_train_state(Llama(config), config.optimizer, tokens),)


_llama = family(LlamaConfig, make_llama_state, make_llama_batch, always(llama_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "llama-tiny": _llama(
        "2-layer Llama for tests",
        num_layers=2, width=64, num_heads=8, num_kv_heads=4, ffn_width=128, vocab_size=256, batch_size=16,
        sequence_length=32,
    ),
    "llama-1b": _llama(
        "TinyLlama shape, 1.1B parameters",
        num_layers=22, width=2048, num_heads=32, num_kv_heads=4, ffn_width=5632, vocab_size=32000, batch_size=32,
        sequence_length=2048, remat=False,
    ),
    "llama3-8b": _llama(
        "Llama 3 8B shape, blocks checkpointed",
        num_layers=32, width=4096, num_heads=32, num_kv_heads=8, ffn_width=14336, vocab_size=128256,
        batch_size=128, sequence_length=4096,
    ),
    "llama3-70b": _llama(
        "Llama 3 70B shape, blocks checkpointed",
        num_layers=80, width=8192, num_heads=64, num_kv_heads=8, ffn_width=28672, vocab_size=128256,
        batch_size=1024, sequence_length=4096,
    ),
}  # fmt: skip
