"""A decoder-only transformer of GPT-NeoX's architecture (arXiv 2204.06745), as Pythia has it, in Flax Linen.

Attention and perceptron read the same stream and are added to it together; one projection makes queries, keys and
values; a part of each head is rotated (arXiv 2304.01373, table 1 and appendix).
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._gpt import gpt_train_step, make_gpt_batch
from benchmarks.models._llama import attend, rotate
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family


@dataclass(frozen=True, slots=True, kw_only=True)
class NeoXConfig(Precision):
    """Sizes of a GPT-NeoX and of its batch; `rotary_width` channels of each head are rotated."""

    num_layers: int
    width: int
    num_heads: int
    rotary_width: int
    vocab_size: int
    batch_size: int
    sequence_length: int
    optimizer: str = "clipped-adamw"


class Attention(nn.Module):
    """Causal attention of `[B, T, D]`; the positions of one projection are split into three parts of each head."""

    config: NeoXConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        width, rotary = config.width // config.num_heads, config.rotary_width
        qkv = nn.Dense(3 * config.width, name="query_key_value", **config.dtypes)(x)
        qkv = qkv.reshape(*x.shape[:2], config.num_heads, 3 * width)
        q, k, v = jnp.split(qkv, 3, axis=-1)
        q = jnp.concatenate([rotate(q[..., :rotary]), q[..., rotary:]], axis=-1)
        k = jnp.concatenate([rotate(k[..., :rotary]), k[..., rotary:]], axis=-1)
        scores = jnp.einsum("bthd,bshd->bhts", q, k) * jnp.asarray(width**-0.5, q.dtype)
        mixed = attend(scores, v, "bhts,bshd->bthd")
        return nn.Dense(config.width, name="dense", **config.dtypes)(mixed.reshape(x.shape))


class Block(nn.Module):
    """Attention and perceptron side by side, each behind a norm of its own."""

    config: NeoXConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtypes, width = self.config.dtypes, self.config.width
        mixed = Attention(self.config, name="attention")(nn.LayerNorm(name="input_norm", **dtypes)(x))
        h = nn.Dense(4 * width, name="up", **dtypes)(nn.LayerNorm(name="post_attention_norm", **dtypes)(x))
        return x + mixed + nn.Dense(width, name="down", **dtypes)(nn.gelu(h, approximate=False))


class NeoX(nn.Module):
    """Tokens `[B, T]` to float32 logits `[B, T, V]`; the output projection has weights of its own."""

    config: NeoXConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        x = nn.Embed(config.vocab_size, config.width, name="tokens", **dtypes)(tokens)
        for layer in range(config.num_layers):
            x = Block(config, name=f"block_{layer}")(x)
        x = nn.LayerNorm(name="norm", **dtypes)(x)
        logits = nn.Dense(config.vocab_size, use_bias=False, name="head", **dtypes)(x)
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_neox_state(config: NeoXConfig) -> tuple[TrainState]:
    tokens: Any = jnp.zeros((1, config.sequence_length), jnp.int32)
    return (make_train_state(NeoX(config), config.optimizer, tokens),)


_neox = family(NeoXConfig, make_neox_state, make_gpt_batch, always(gpt_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "pythia-410m": _neox(
        "Pythia 410M (GPT-NeoX), 405M parameters",
        num_layers=24, width=1024, num_heads=16, rotary_width=16, vocab_size=50304, batch_size=32,
        sequence_length=2048,
    ),
    "neox-tiny": _neox(
        "1-layer GPT-NeoX for tests",
        num_layers=1, width=32, num_heads=4, rotary_width=4, vocab_size=64, batch_size=16, sequence_length=8,
    ),
}  # fmt: skip
