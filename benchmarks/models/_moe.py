"""A transformer with mixtures of experts (GShard, arXiv 2006.16668) in Flax Linen: top-2 gates, dispatch by einsum."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._gpt import make_gpt_batch, next_token_loss
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, family

EXPERTS_PER_TOKEN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig(Precision):
    """Sizes of a decoder-only transformer in which every `moe_every`-th perceptron is `num_experts` of them.

    An expert takes `capacity_factor` times its even share of each sequence's tokens; tokens beyond it pass unchanged.
    `balance_weight` is the weight of the loss that keeps experts equally busy. `optimizer` is a name in `OPTIMIZERS`.
    """

    num_layers: int
    width: int
    num_heads: int
    vocab_size: int
    batch_size: int
    sequence_length: int
    num_experts: int = 8
    moe_every: int = 2
    capacity_factor: float = 1.25
    mlp_factor: int = 4
    balance_weight: float = 0.01
    optimizer: str = "clipped-adamw"

    @property
    def capacity(self) -> int:
        """Tokens of a sequence that one expert takes, C."""
        share = EXPERTS_PER_TOKEN * self.sequence_length / self.num_experts
        return math.ceil(self.capacity_factor * share)


def top_two(gates: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """The share that each token takes from each expert's slots (GShard, algorithm 1, without random dispatch).

    Args:
      gates: probabilities `[B, T, E]`.
      capacity: slots of an expert per sequence, C.

    Returns:
      Weights `[B, T, E, C]`, 0 where a token found no slot, and the scalar that is 1 when experts are equally busy.
    """
    num_experts = gates.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(gates, axis=-1), num_experts, dtype=gates.dtype)
    second = jax.nn.one_hot(jnp.argmax(gates * (1 - first), axis=-1), num_experts, dtype=gates.dtype)
    balance = num_experts * jnp.mean(jnp.sum(jnp.mean(gates, axis=1) * jnp.mean(first, axis=1), axis=-1))
    place_first = jnp.cumsum(first, axis=1) * first - first
    place_second = (jnp.cumsum(second, axis=1) + jnp.sum(first, axis=1, keepdims=True)) * second - second
    chosen = gates * (first + second)
    chosen = chosen / jnp.sum(chosen, axis=-1, keepdims=True)
    places = (place_first + place_second).astype(jnp.int32)  # beyond the capacity: no slot, a row of zeros
    return chosen[..., None] * jax.nn.one_hot(places, capacity, dtype=gates.dtype), balance


class Experts(nn.Module):
    """Activations `[B, T, D]` through the two best of E perceptrons each; and how unevenly they are used."""

    config: MoEConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        config = self.config
        hidden = config.mlp_factor * config.width
        init = nn.initializers.lecun_normal(batch_axis=(0,))
        up = self.param("up", init, (config.num_experts, config.width, hidden), config.param_dtype)
        down = self.param("down", init, (config.num_experts, hidden, config.width), config.param_dtype)
        router = nn.Dense(config.num_experts, use_bias=False, **config.dtypes, name="router")
        logits = router(x).astype(jnp.promote_types(config.dtype, jnp.float32))
        weights, balance = top_two(jax.nn.softmax(logits), config.capacity)
        dispatch = (weights > 0).astype(x.dtype)
        taken = jnp.einsum("btec,btd->ebcd", dispatch, x)
        h = nn.gelu(jnp.einsum("ebcd,edh->ebch", taken, up.astype(x.dtype)))
        h = jnp.einsum("ebch,ehd->ebcd", h, down.astype(x.dtype))
        return jnp.einsum("btec,ebcd->btd", weights.astype(x.dtype), h), balance


class MoEBlock(nn.Module):
    """Pre-norm attention and perceptron, or experts, each with a residual connection."""

    config: MoEConfig
    experts: bool

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        config = self.config
        h = nn.LayerNorm(**config.dtypes)(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=config.num_heads, **config.dtypes)(h, mask=mask)
        h = nn.LayerNorm(**config.dtypes)(x)
        if self.experts:
            h, balance = Experts(config, name="experts")(h)
            return x + h, balance
        h = nn.gelu(nn.Dense(config.mlp_factor * config.width, **config.dtypes)(h))
        return x + nn.Dense(config.width, **config.dtypes)(h), jnp.zeros((), x.dtype)


class MoE(nn.Module):
    """Tokens `[B, T]` to logits `[B, T, V]`, and the mean over the layers of how unevenly experts are used."""

    config: MoEConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        config, dtypes = self.config, self.config.dtypes
        embed = nn.Embed(config.vocab_size, config.width, **dtypes, name="tokens")
        positions = nn.Embed(config.sequence_length, config.width, **dtypes, name="positions")
        x = embed(tokens) + positions(jnp.arange(tokens.shape[1]))
        mask = nn.make_causal_mask(tokens)
        balances = []
        for layer in range(config.num_layers):
            experts = layer % config.moe_every == config.moe_every - 1
            x, balance = MoEBlock(config, experts, name=f"block_{layer}")(x, mask)
            balances += [balance] * experts
        x = nn.LayerNorm(**dtypes)(x)
        logits = embed.attend(x).astype(jnp.promote_types(config.dtype, jnp.float32))
        return logits, jnp.mean(jnp.stack(balances)).astype(logits.dtype)


def make_moe_step(config: MoEConfig) -> Any:
    """One optimizer step on next-token cross entropy and balance; `batch["tokens"]` is int32 `[B, T + 1]`."""

    def moe_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
        inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]

        def loss_fn(params: Any) -> jax.Array:
            logits, balance = state.apply_fn({"params": params}, inputs)
            return next_token_loss(logits, targets) + config.balance_weight * balance

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    return moe_train_step


def make_moe_state(config: MoEConfig) -> tuple[TrainState]:
    tokens = jnp.zeros((1, config.sequence_length), jnp.int32)
    return (make_train_state(MoE(config), config.optimizer, tokens),)


_moe = family(MoEConfig, make_moe_state, make_gpt_batch, make_moe_step)

CONFIGS: dict[str, ModelSpec] = {
    "moe-8x": _moe(
        "12-layer transformer, every second perceptron 8 experts, 323M parameters",
        num_layers=12, width=768, num_heads=12, vocab_size=50304, batch_size=64, sequence_length=512,
    ),
    "moe-tiny": _moe(
        "2-layer transformer, one of its perceptrons 8 experts, for tests",
        num_layers=2, width=64, num_heads=4, vocab_size=256, batch_size=16, sequence_length=32,
    ),
}  # fmt: skip
