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

from benchmarks.models._gpt import gpt_train_step, make_gpt_batch
from benchmarks.models._llama import DecoderConfig, Llama, attend, rotate, swiglu
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, always, family


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


_olmo = family(OlmoConfig, make_olmo_state, make_gpt_batch, always(gpt_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "olmo2-1b": _olmo(
        "OLMo 2 1B, 1.5B parameters",
        num_layers=16, width=2048, num_heads=16, ffn_width=8192, vocab_size=100352, batch_size=32,
        sequence_length=1024,
    ),
    "olmo-tiny": _olmo(
        "1-layer OLMo 2 for tests",
        num_layers=1, width=32, num_heads=4, ffn_width=64, vocab_size=64, batch_size=16, sequence_length=8,
    ),
}  # fmt: skip
