"""Small train steps that several tests share.

The dtype of the GPT is chosen: in bf16 a comparison of numbers would find nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

SEQUENCE = 16
VOCABULARY = 128


# Adam divides a gradient by its size: where that is rounding alone, it would take a step of full length.
ADAM_EPSILON = 1e-6


class Block(nn.Module):
    """Pre-norm attention and perceptron, each with a residual connection.

    No bias in the attention: that of the keys has a gradient of zero, and Adam would follow its rounding.
    """

    num_heads: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        kwargs = {"dtype": self.dtype, "param_dtype": self.dtype}
        h = nn.LayerNorm(**kwargs)(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=self.num_heads, use_bias=False, **kwargs)(
            h, mask=mask
        )
        h = nn.Dense(4 * x.shape[-1], **kwargs)(nn.LayerNorm(**kwargs)(x))
        return x + nn.Dense(x.shape[-1], **kwargs)(nn.gelu(h))


class SmallGPT(nn.Module):
    """Tokens ``[B, T]`` to logits ``[B, T, V]``, the embedding tied."""

    num_layers: int
    width: int
    num_heads: int
    dtype: Any

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embed = nn.Embed(VOCABULARY, self.width, dtype=self.dtype, param_dtype=self.dtype)
        x = embed(tokens)
        mask = nn.make_causal_mask(tokens, dtype=self.dtype)
        for _ in range(self.num_layers):
            x = Block(self.num_heads, self.dtype)(x, mask)
        return embed.attend(nn.LayerNorm(dtype=self.dtype, param_dtype=self.dtype)(x))


def train_step(state: TrainState, tokens: jax.Array) -> tuple[TrainState, jax.Array]:
    """One clipped AdamW step on next-token cross entropy."""

    def loss_fn(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def autoencoder_step(params: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    """One step of gradient descent on two layers that give back what they read."""

    def loss_fn(params: Any) -> jax.Array:
        h = jnp.tanh(x @ params["in"])
        return jnp.mean((h @ params["out"] - x) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients), loss


_WIDTH, _BATCH = 2048, 8192
AUTOENCODER_ARGS = (
    {
        "in": jax.ShapeDtypeStruct((_WIDTH, 4 * _WIDTH), jnp.float32),
        "out": jax.ShapeDtypeStruct((4 * _WIDTH, _WIDTH), jnp.float32),
    },
    jax.ShapeDtypeStruct((_BATCH, _WIDTH), jnp.float32),
)


def gpt_init(
    dtype: Any, *, num_layers: int = 1, width: int = 64, num_heads: int = 4
) -> Callable[[], TrainState]:
    """The function that makes the first state; `jax.eval_shape` of it allocates nothing."""
    model = SmallGPT(num_layers, width, num_heads, dtype)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, eps=ADAM_EPSILON))

    def init() -> TrainState:
        params = model.init(jax.random.key(0), jnp.zeros((1, SEQUENCE), jnp.int32))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    return init


def token_batch(batch_size: int) -> jax.ShapeDtypeStruct:
    """Abstract tokens, one more per sequence than the model reads."""
    return jax.ShapeDtypeStruct((batch_size, SEQUENCE + 1), jnp.int32)
