"""A BERT (arXiv 1810.04805) in Flax Linen: masked tokens predicted from both sides; bf16 compute, f32 parameters."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family

NUM_SEGMENTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BERTConfig(Precision):
    """Sizes of a BERT and of its batch: in each of `batch_size` sequences `num_predictions` tokens are masked.

    `optimizer` is a name in `OPTIMIZERS`.
    """

    num_layers: int
    width: int
    num_heads: int
    vocab_size: int
    batch_size: int
    sequence_length: int
    num_predictions: int
    mlp_factor: int = 4
    optimizer: str = "clipped-adamw"


class PostNormBlock(nn.Module):
    """Attention and perceptron, each added to its input and then normalised."""

    config: BERTConfig

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        config = self.config
        h = nn.MultiHeadDotProductAttention(num_heads=config.num_heads, **config.dtypes)(x, mask=mask)
        x = nn.LayerNorm(**config.dtypes)(x + h)
        h = nn.gelu(nn.Dense(config.mlp_factor * config.width, **config.dtypes)(x))
        return nn.LayerNorm(**config.dtypes)(x + nn.Dense(config.width, **config.dtypes)(h))


class BERT(nn.Module):
    """Tokens and segments `[B, T]`, their mask `[B, T]` and positions `[B, P]` to logits `[B, P, V]`."""

    config: BERTConfig

    @nn.compact
    def __call__(
        self, tokens: jax.Array, segments: jax.Array, mask: jax.Array, positions: jax.Array
    ) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        embed = nn.Embed(config.vocab_size, config.width, **dtypes, name="tokens")
        places = nn.Embed(config.sequence_length, config.width, **dtypes, name="positions")
        kinds = nn.Embed(NUM_SEGMENTS, config.width, **dtypes, name="segments")
        x = embed(tokens) + places(jnp.arange(tokens.shape[1])) + kinds(segments)
        x = nn.LayerNorm(**dtypes)(x)
        for layer in range(config.num_layers):
            x = PostNormBlock(config, name=f"block_{layer}")(x, nn.make_attention_mask(mask, mask))
        x = jax.vmap(lambda row, wanted: row[wanted])(x, positions)
        x = nn.LayerNorm(**dtypes)(nn.gelu(nn.Dense(config.width, **dtypes, name="transform")(x)))
        bias = self.param("bias", nn.initializers.zeros, (config.vocab_size,), config.param_dtype)
        return embed.attend(x).astype(jnp.promote_types(config.dtype, jnp.float32)) + bias


def bert_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One optimizer step on the cross entropy of the masked tokens, whose true values are `batch["labels"]`."""
    inputs = batch["tokens"], batch["segments"], batch["mask"], batch["positions"]

    def loss_fn(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, *inputs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def make_bert_state(config: BERTConfig) -> tuple[TrainState]:
    tokens = jnp.zeros((1, config.sequence_length), jnp.int32)
    positions = jnp.zeros((1, config.num_predictions), jnp.int32)
    inputs = tokens, tokens, tokens > 0, positions
    return (make_train_state(BERT(config), config.optimizer, *inputs),)


def make_bert_batch(config: BERTConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Random pairs of segments, cut at random lengths; token 0 stands where one is to be predicted."""
    token_key, place_key, length_key = jax.random.split(key, 3)
    shape = (config.batch_size, config.sequence_length)
    tokens = jax.random.randint(token_key, shape, 1, config.vocab_size, jnp.int32)
    positions = jnp.argsort(jax.random.uniform(place_key, shape), axis=1)[:, : config.num_predictions]
    labels = jnp.take_along_axis(tokens, positions, axis=1)
    lengths = jax.random.randint(length_key, (config.batch_size, 1), shape[1] // 2, shape[1] + 1)
    places = jnp.arange(shape[1])
    rows = jnp.arange(config.batch_size)[:, None]
    return {
        "tokens": tokens.at[rows, positions].set(0),
        "segments": (places >= lengths // 2).astype(jnp.int32),
        "mask": places < lengths,
        "positions": positions.astype(jnp.int32),
        "labels": labels,
    }


_bert = family(BERTConfig, make_bert_state, make_bert_batch, always(bert_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "bert-large": _bert(
        "BERT-large, 335M parameters, masked tokens",
        num_layers=24, width=1024, num_heads=16, vocab_size=30528, batch_size=64, sequence_length=512,
        num_predictions=80,
    ),
    "bert-tiny": _bert(
        "2-layer BERT for tests",
        num_layers=2, width=64, num_heads=4, vocab_size=256, batch_size=16, sequence_length=32, num_predictions=8,
    ),
}  # fmt: skip
