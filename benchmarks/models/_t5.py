"""T5 (arXiv 1910.10683; gated as in version 1.1, arXiv 2002.05202) in Flax Linen: bf16 compute, f32 parameters."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family
from benchmarks.models._transformer import make_transformer_batch, transformer_train_step

_BUCKETS, _FURTHEST = 32, 128
"""Of relative positions (section 2.1): beyond the furthest they share one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Config(Precision):
    """Sizes of an encoder and decoder of `num_layers` each, and of a batch of pairs of `sequence_length` tokens."""

    num_layers: int
    width: int
    num_heads: int
    mlp_width: int
    vocab_size: int
    batch_size: int
    sequence_length: int
    optimizer: str = "adamw"


def relative_buckets(length: int, *, is_causal: bool) -> np.ndarray:
    """Bucket `[T, T]` of the distance from query to key: exact when near, logarithmic up to the furthest."""
    distance = np.arange(length)[None, :] - np.arange(length)[:, None]
    count, first = _BUCKETS, np.zeros_like(distance)
    if is_causal:
        distance = np.maximum(-distance, 0)
    else:
        count //= 2
        first, distance = np.where(distance > 0, count, 0), np.abs(distance)
    exact = count // 2
    share = np.log(np.maximum(distance, 1) / exact) / np.log(_FURTHEST / exact)
    far = np.minimum(exact + (share * (count - exact)).astype(np.int32), count - 1)
    return (first + np.where(distance < exact, distance, far)).astype(np.int32)


class Attention(nn.Module):
    """Queries `[B, T, D]` to `memory` `[B, S, D]`, without biases and scale; `bias` is added to the scores."""

    config: T5Config

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array, bias: jax.Array | None) -> jax.Array:
        config = self.config
        heads = (config.num_heads, config.width // config.num_heads)

        def project(x: jax.Array, name: str) -> jax.Array:
            return nn.DenseGeneral(heads, use_bias=False, **config.dtypes, name=name)(x)

        scores = jnp.einsum("bqhd,bkhd->bhqk", project(x, "query"), project(memory, "key")).astype(
            jnp.float32
        )
        weights = jax.nn.softmax(scores if bias is None else scores + bias).astype(config.dtype)
        h = jnp.einsum("bhqk,bkhd->bqhd", weights, project(memory, "value"))
        return nn.DenseGeneral(config.width, axis=(-2, -1), use_bias=False, **config.dtypes, name="output")(h)


class Layer(nn.Module):
    """Self-attention, attention to `memory` where there is one, a gated perceptron: each behind a norm and added."""

    config: T5Config

    @nn.compact
    def __call__(self, x: jax.Array, bias: jax.Array, memory: jax.Array | None = None) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        h = nn.RMSNorm(**dtypes)(x)
        x = x + Attention(config, name="self")(h, h, bias)
        if memory is not None:
            x = x + Attention(config, name="cross")(nn.RMSNorm(**dtypes)(x), memory, None)
        h = nn.RMSNorm(**dtypes)(x)
        gate = nn.gelu(nn.Dense(config.mlp_width, use_bias=False, **dtypes, name="gate")(h))
        h = gate * nn.Dense(config.mlp_width, use_bias=False, **dtypes, name="up")(h)
        return x + nn.Dense(config.width, use_bias=False, **dtypes, name="down")(h)


class T5(nn.Module):
    """Tokens of source and target `[B, T]` to float32 logits `[B, T, V]`."""

    config: T5Config

    @nn.compact
    def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
        config, length = self.config, source.shape[1]
        embed = nn.Embed(config.vocab_size, config.width, **config.dtypes, name="tokens")

        def biases(name: str, *, is_causal: bool) -> jax.Array:
            table = nn.Embed(_BUCKETS, config.num_heads, param_dtype=config.param_dtype, name=name)
            near = table(relative_buckets(length, is_causal=is_causal)).transpose(2, 0, 1)[None]
            return jnp.where(nn.make_causal_mask(target[:1]), near, -1e9) if is_causal else near

        memory, bias = embed(source), biases("encoder_positions", is_causal=False)
        for layer in range(config.num_layers):
            memory = Layer(config, name=f"encoder_{layer}")(memory, bias)
        memory = nn.RMSNorm(**config.dtypes, name="encoder_norm")(memory)
        x, bias = embed(target), biases("decoder_positions", is_causal=True)
        for layer in range(config.num_layers):
            x = Layer(config, name=f"decoder_{layer}")(x, bias, memory)
        x = nn.RMSNorm(**config.dtypes, name="decoder_norm")(x)
        logits = nn.Dense(config.vocab_size, use_bias=False, **config.dtypes, name="head")(x)
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_t5_state(config: T5Config) -> tuple[TrainState]:
    tokens = jnp.zeros((1, config.sequence_length), jnp.int32)
    return (make_train_state(T5(config), config.optimizer, tokens, tokens),)


_t5 = family(T5Config, make_t5_state, make_transformer_batch, always(transformer_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "t5-base": _t5(
        "T5 1.1 base, 12 layers on each side, 248M parameters",
        num_layers=12, width=768, num_heads=12, mlp_width=2048, vocab_size=32128, batch_size=64,
        sequence_length=512,
    ),
}  # fmt: skip
