"""A decoder-only transformer (GPT-2's architecture) in stock Flax Linen: bf16 compute, f32 parameters."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import abstract_state


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """Sizes of a GPT and of its batch: `batch_size` sequences of `sequence_length` tokens per step.

    `tied` shares the token embedding with the output projection, as GPT-2 does. `remat` puts each block under
    `flax.linen.remat` (`jax.checkpoint`): its activations are computed again in the backward pass.
    """

    num_layers: int
    width: int
    num_heads: int
    vocab_size: int
    batch_size: int
    sequence_length: int
    mlp_factor: int = 4
    tied: bool = True
    remat: bool = False


class Block(nn.Module):
    """Pre-norm attention and perceptron, each with a residual connection."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        config = self.config
        h = nn.LayerNorm(dtype=jnp.bfloat16)(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=config.num_heads, dtype=jnp.bfloat16)(h, mask=mask)
        h = nn.LayerNorm(dtype=jnp.bfloat16)(x)
        h = nn.gelu(nn.Dense(config.mlp_factor * config.width, dtype=jnp.bfloat16)(h))
        return x + nn.Dense(config.width, dtype=jnp.bfloat16)(h)


class GPT(nn.Module):
    """Tokens `[B, T]` to float32 logits `[B, T, V]`; learned positions."""

    config: GPTConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        config = self.config
        embed = nn.Embed(config.vocab_size, config.width, dtype=jnp.bfloat16, name="tokens")
        positions = nn.Embed(config.sequence_length, config.width, dtype=jnp.bfloat16, name="positions")
        x = embed(tokens) + positions(jnp.arange(tokens.shape[1]))
        mask = nn.make_causal_mask(tokens)
        block = nn.remat(Block) if config.remat else Block
        for layer in range(config.num_layers):
            x = block(config, name=f"block_{layer}")(x, mask)
        x = nn.LayerNorm(dtype=jnp.bfloat16)(x)
        if config.tied:
            return embed.attend(x).astype(jnp.float32)
        head = nn.Dense(config.vocab_size, use_bias=False, dtype=jnp.bfloat16, name="head")
        return head(x).astype(jnp.float32)


def gpt_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One AdamW step on next-token cross entropy; `batch["tokens"]` is int32 `[B, T + 1]`."""
    inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]

    def loss_fn(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, inputs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def abstract_gpt_args(config: GPTConfig) -> tuple[TrainState, dict[str, jax.ShapeDtypeStruct]]:
    """`(state, batch)` of `jax.ShapeDtypeStruct` for `gpt_train_step`."""
    inputs = jax.ShapeDtypeStruct((config.batch_size, config.sequence_length), jnp.int32)
    tokens = jax.ShapeDtypeStruct((config.batch_size, config.sequence_length + 1), jnp.int32)
    return abstract_state(GPT(config), inputs), {"tokens": tokens}
