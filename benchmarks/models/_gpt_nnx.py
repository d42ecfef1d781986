"""The GPT of `_gpt.py` in Flax NNX: objects that a step updates in place."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.models._gpt import TINY_GPT, GPTConfig, make_gpt_batch, next_token_loss
from benchmarks.models._optimizer import OPTIMIZERS
from benchmarks.models._spec import ModelSpec, always, family


class NNXBlock(nnx.Module):
    """Pre-norm attention and perceptron, each with a residual connection."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs) -> None:
        width, kwargs = config.width, {**config.dtypes, "rngs": rngs}
        self.attention_norm = nnx.LayerNorm(width, **kwargs)
        self.attention = nnx.MultiHeadAttention(config.num_heads, width, decode=False, **kwargs)
        self.mlp_norm = nnx.LayerNorm(width, **kwargs)
        self.up = nnx.Linear(width, config.mlp_factor * width, **kwargs)
        self.down = nnx.Linear(config.mlp_factor * width, width, **kwargs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs) if config.dropout else None

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        h = self.attention(self.attention_norm(x), mask=mask)
        x = x + (self.dropout(h) if self.dropout is not None else h)
        h = self.down(nnx.gelu(self.up(self.mlp_norm(x))))
        return x + (self.dropout(h) if self.dropout is not None else h)


class NNXGPT(nnx.Module):
    """Tokens `[B, T]` to logits `[B, T, V]`; learned positions, the embedding tied to the output."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(config.vocab_size, config.width, **config.dtypes, rngs=rngs)
        self.positions = nnx.Embed(config.sequence_length, config.width, **config.dtypes, rngs=rngs)
        self.blocks = nnx.List([NNXBlock(config, rngs) for _ in range(config.num_layers)])
        self.norm = nnx.LayerNorm(config.width, **config.dtypes, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        logits = self.tokens.attend(self.norm(x))
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))


def nnx_gpt_train_step(model: NNXGPT, optimizer: nnx.Optimizer, batch: dict[str, Any]) -> jax.Array:
    """One optimizer step on next-token cross entropy, in place; returns the loss."""
    inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]

    def loss_fn(model: NNXGPT) -> jax.Array:
        return next_token_loss(model(inputs), targets)

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


def make_nnx_gpt_state(config: GPTConfig) -> tuple[NNXGPT, nnx.Optimizer]:
    if config.remat or config.scan or not config.tied:
        raise ValueError("the NNX GPT has no remat, no scan and a tied embedding")
    model = NNXGPT(config, nnx.Rngs(0))
    return model, nnx.Optimizer(model, OPTIMIZERS[config.optimizer](), wrt=nnx.Param)


_gpt = family(GPTConfig, make_nnx_gpt_state, make_gpt_batch, always(nnx_gpt_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "gpt-tiny-nnx": replace(_gpt("2-layer GPT in NNX", **TINY_GPT), updates="in place", donate_argnums=(0, 1)),
}  # fmt: skip
