"""A decoder-only transformer of Gemma 2's architecture (arXiv 2408.00118, section 2) in Flax Linen.

Every second layer attends to a window; scores and logits are capped by a tanh; norms stand before and behind attention
and the GeGLU perceptron; the tokens' embedding is the output projection.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._gpt import gpt_train_step, make_gpt_batch
from benchmarks.models._llama import DecoderConfig, attend, rotate
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, always, family


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaConfig(DecoderConfig):
    """Sizes of a model; `num_kv_heads` heads of keys and values serve `num_heads` of queries, of `head_width` channels.

    Layers of even numbers attend to the last `window` tokens. Caps are in units of scores and of logits.
    """

    num_kv_heads: int
    head_width: int
    window: int
    score_cap: float = 50.0
    logit_cap: float = 30.0
    remat: bool = False


def _capped(x: jax.Array, cap: float) -> jax.Array:
    return cap * jnp.tanh(x / cap)


class Attention(nn.Module):
    """Causal self-attention; over a window of tokens, or over all if `window` is 0."""

    config: GemmaConfig
    window: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        kwargs = {"use_bias": False, **config.dtypes}
        kv_heads, width = config.num_kv_heads, config.head_width
        q = rotate(
            nn.DenseGeneral((kv_heads, config.num_heads // kv_heads, width), name="query", **kwargs)(x)
        )
        k = rotate(nn.DenseGeneral((kv_heads, width), name="key", **kwargs)(x))
        v = nn.DenseGeneral((kv_heads, width), name="value", **kwargs)(x)
        scores = jnp.einsum("btkgd,bskd->bkgts", q * width**-0.5, k)
        scores = _capped(scores.astype(jnp.float32), config.score_cap)
        mixed = attend(scores, v, "bkgts,bskd->btkgd", self.window)
        return nn.DenseGeneral(config.width, axis=(-3, -2, -1), name="out", **kwargs)(mixed)


class Block(nn.Module):
    """Attention and GeGLU perceptron, each between two norms and with a residual connection."""

    config: GemmaConfig
    layer: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config, width = self.config, self.config.ffn_width_of(self.layer)
        kwargs = {"use_bias": False, **config.dtypes}
        window = 0 if self.layer % 2 else config.window
        h = Attention(config, window, name="attention")(
            nn.RMSNorm(name="before_attention", **config.dtypes)(x)
        )
        x = x + nn.RMSNorm(name="behind_attention", **config.dtypes)(h)
        h = nn.RMSNorm(name="before_ffn", **config.dtypes)(x)
        gate = nn.gelu(nn.Dense(width, name="gate", **kwargs)(h), approximate=True)
        h = nn.Dense(config.width, name="down", **kwargs)(gate * nn.Dense(width, name="up", **kwargs)(h))
        return x + nn.RMSNorm(name="behind_ffn", **config.dtypes)(h)


class Gemma(nn.Module):
    """Tokens `[B, T]` to float32 logits `[B, T, V]`."""

    config: GemmaConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        config = self.config
        embed = nn.Embed(config.vocab_size, config.width, name="tokens", **config.dtypes)
        x = embed(tokens) * jnp.asarray(config.width**0.5, config.dtype)
        block = nn.remat(Block) if config.remat else Block
        for layer in range(config.num_layers):
            x = block(config, layer, name=f"block_{layer}")(x)
        logits = embed.attend(nn.RMSNorm(name="norm", **config.dtypes)(x))
        return _capped(logits.astype(jnp.promote_types(config.dtype, jnp.float32)), config.logit_cap)


def make_gemma_state(config: GemmaConfig) -> tuple[TrainState]:
    tokens = jnp.zeros((1, config.sequence_length), jnp.int32)
    return (make_train_state(Gemma(config), config.optimizer, tokens),)


_gemma = family(GemmaConfig, make_gemma_state, make_gpt_batch, always(gpt_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "gemma2-2b": _gemma(
        "Gemma 2 2B shape, 2.6B parameters",
        num_layers=26, width=2304, num_heads=8, num_kv_heads=4, head_width=256, ffn_width=9216, vocab_size=256000,
        window=4096, batch_size=64, sequence_length=8192,
    ),
    "gemma-tiny": _gemma(
        "2-layer Gemma for tests",
        num_layers=2, width=32, num_heads=4, num_kv_heads=2, head_width=8, ffn_width=64, vocab_size=64, window=4,
        batch_size=16, sequence_length=8,
    ),
}  # fmt: skip
