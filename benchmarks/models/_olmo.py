"""The Llama with OLMo 2's attention and norms (arXiv 2501.00656) in Flax Linen.

Queries and keys are normalised whole, before they are split into heads and rotated; norms stand behind attention and
perceptron, and none before them. Without the loss that keeps the softmax's sum small.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._llama import DecoderConfig, Llama, attend, rotate, swiglu
from benchmarks.models._optimizer import make_train_state


@dataclass(frozen=True, slots=True, kw_only=True)
class OlmoConfig(DecoderConfig):
    """Sizes of a model; every head of queries has keys and values of its own."""

    remat: bool = False


class WholeNormedAttention(nn.Module):
    """Causal self-attention; one norm spans the queries of all heads, another their keys."""

    config: OlmoConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        kwargs = {"use_bias": False, **config.dtypes}
        heads = (config.num_heads, config.width // config.num_heads)
        q = nn.RMSNorm(name="query_norm", **config.dtypes)(nn.Dense(config.width, name="query", **kwargs)(x))
        k = nn.RMSNorm(name="key_norm", **config.dtypes)(nn.Dense(config.width, name="key", **kwargs)(x))
        q, k = (rotate(y.reshape(*x.shape[:2], *heads)) for y in (q, k))
        v = nn.DenseGeneral(heads, name="value", **kwargs)(x)
        scores = jnp.einsum("bthd,bshd->bhts", q, k) * jnp.asarray(heads[1] ** -0.5, q.dtype)
        mixed = attend(scores, v, "bhts,bshd->bthd")
        return nn.DenseGeneral(config.width, axis=(-2, -1), name="out", **kwargs)(mixed)


class PostNormBlock(nn.Module):
    """Attention and SwiGLU perceptron, each with a norm behind it and a residual connection around both."""

    config: OlmoConfig
    ffn_width: int
    attention: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtypes = self.config.dtypes
        h = self.attention(self.config, name="attention")(x)
        x = x + nn.RMSNorm(name="attention_norm", **dtypes)(h)
        return x + nn.RMSNorm(name="ffn_norm", **dtypes)(swiglu(x, self.ffn_width, dtypes))


def make_olmo_state(config: OlmoConfig) -> tuple[TrainState]:
    tokens = jnp.zeros((1, config.sequence_length), jnp.int32)
    model = Llama(config, WholeNormedAttention, block=PostNormBlock)
    return (make_train_state(model, config.optimizer, tokens),)
