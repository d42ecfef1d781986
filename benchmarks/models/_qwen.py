"""The Llama with Qwen3's attention (arXiv 2505.09388, section 2) in Flax Linen.

Queries and keys are normalised head by head, a head's width does not follow from the model's, and the tokens' embedding
is the output projection.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._gpt import gpt_train_step, make_gpt_batch
from benchmarks.models._llama import DecoderConfig, Llama, attend, rotate
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, always, family

ROPE_BASE = 1_000_000.0
"""Base frequency of the rotary positions (section 3.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenConfig(DecoderConfig):
    """Sizes of a model; `num_kv_heads` heads of keys and values serve `num_heads` of queries, each of `head_width`."""

    num_kv_heads: int
    head_width: int
    remat: bool = False


class NormedAttention(nn.Module):
    """Causal self-attention of groups of query heads; each head's queries and keys are normalised, then rotated."""

    config: QwenConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        kwargs = {"use_bias": False, **config.dtypes}
        kv_heads, width = config.num_kv_heads, config.head_width
        q = nn.DenseGeneral((kv_heads, config.num_heads // kv_heads, width), name="query", **kwargs)(x)
        k = nn.DenseGeneral((kv_heads, width), name="key", **kwargs)(x)
        v = nn.DenseGeneral((kv_heads, width), name="value", **kwargs)(x)
        q = rotate(nn.RMSNorm(name="query_norm", **config.dtypes)(q), ROPE_BASE)
        k = rotate(nn.RMSNorm(name="key_norm", **config.dtypes)(k), ROPE_BASE)
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k) * jnp.asarray(width**-0.5, q.dtype)
        mixed = attend(scores, v, "bkgts,bskd->btkgd")
        return nn.DenseGeneral(config.width, axis=(-3, -2, -1), name="out", **kwargs)(mixed)


def make_qwen_state(config: QwenConfig) -> tuple[TrainState]:
    tokens = jnp.zeros((1, config.sequence_length), jnp.int32)
    return (make_train_state(Llama(config, NormedAttention, tied=True), config.optimizer, tokens),)


_qwen = family(QwenConfig, make_qwen_state, make_gpt_batch, always(gpt_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "qwen3-0.6b": _qwen(
        "Qwen3 0.6B, 596M parameters",
        num_layers=28, width=1024, num_heads=16, num_kv_heads=8, head_width=128, ffn_width=3072, vocab_size=151936,
        batch_size=32, sequence_length=1024,
    ),
    "qwen-tiny": _qwen(
        "1-layer Qwen3 for tests",
        num_layers=1, width=32, num_heads=4, num_kv_heads=2, head_width=16, ffn_width=64, vocab_size=64,
        batch_size=16, sequence_length=8,
    ),
}  # fmt: skip
