"""A decoder-only transformer with DeepSeek-V2's attention (arXiv 2405.04434, section 2.1) in Flax Linen.

Keys and values are made of one narrow latent, and one rotary key is shared by all heads. Perceptrons are dense, as in
the first layer of DeepSeek-V2-Lite.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._llama import rotate
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeekConfig(Precision):
    """Sizes of a model and of its batch: `batch_size` sequences of `sequence_length` tokens per step.

    A head's queries and keys have `head_width` channels without and `rotary_width` with positions, its values
    `head_width`; keys and values come of a latent of `latent_width`.
    """

    num_layers: int
    width: int
    num_heads: int
    head_width: int
    rotary_width: int
    latent_width: int
    ffn_width: int
    vocab_size: int
    batch_size: int
    sequence_length: int
    optimizer: str = "clipped-adamw"


class LatentAttention(nn.Module):
    """Causal self-attention whose keys and values are made of a latent."""

    config: DeepSeekConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        kwargs = {"use_bias": False, **config.dtypes}
        heads, head, rotary = config.num_heads, config.head_width, config.rotary_width
        q = nn.DenseGeneral((heads, head + rotary), name="query", **kwargs)(x)
        q = jnp.concatenate([q[..., :head], rotate(q[..., head:])], axis=-1)
        latent, shared = jnp.split(
            nn.Dense(config.latent_width + rotary, name="latent", **kwargs)(x), [config.latent_width], axis=-1
        )
        latent = nn.RMSNorm(name="norm", **config.dtypes)(latent)
        k, v = jnp.split(nn.DenseGeneral((heads, 2 * head), name="key_value", **kwargs)(latent), 2, axis=-1)
        shared = jnp.broadcast_to(rotate(shared[:, :, None]), (*k.shape[:-1], rotary))
        k = jnp.concatenate([k, shared], axis=-1)
        scores = jnp.einsum("bthd,bshd->bhts", q, k) * jnp.asarray((head + rotary) ** -0.5, q.dtype)
        causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        scores = jnp.where(causal, scores.astype(jnp.float32), jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        mixed = jnp.einsum("bhts,bshd->bthd", weights, v)
        return nn.DenseGeneral(config.width, axis=(-2, -1), name="out", **kwargs)(mixed)


class Block(nn.Module):
    """Pre-norm attention and SwiGLU perceptron, each with a residual connection."""

    config: DeepSeekConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        kwargs = {"use_bias": False, **config.dtypes}
        x = x + LatentAttention(config, name="attention")(nn.RMSNorm(**config.dtypes)(x))
        h = nn.RMSNorm(**config.dtypes)(x)
        h = nn.silu(nn.Dense(config.ffn_width, name="gate", **kwargs)(h)) * nn.Dense(
            config.ffn_width, name="up", **kwargs
        )(h)
        return x + nn.Dense(config.width, name="down", **kwargs)(h)


class DeepSeek(nn.Module):
    """Tokens `[B, T]` to float32 logits `[B, T, V]`; the output projection has weights of its own."""

    config: DeepSeekConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        config = self.config
        x = nn.Embed(config.vocab_size, config.width, name="tokens", **config.dtypes)(tokens)
        for layer in range(config.num_layers):
            x = Block(config, name=f"block_{layer}")(x)
        x = nn.RMSNorm(name="norm", **config.dtypes)(x)
        logits = nn.Dense(config.vocab_size, use_bias=False, name="head", **config.dtypes)(x)
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_deepseek_state(config: DeepSeekConfig) -> tuple[TrainState]:
    tokens = jnp.zeros((1, config.sequence_length), jnp.int32)
    return (make_train_state(DeepSeek(config), config.optimizer, tokens),)
