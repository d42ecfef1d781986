"""A recurrent language model in Flax Linen: LSTM cells in a `lax.scan` over time."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import make_train_state


@dataclass(frozen=True, slots=True, kw_only=True)
class LSTMConfig:
    """`num_layers` LSTMs of `width` units over `sequence_length` tokens."""

    num_layers: int
    width: int
    vocab_size: int
    batch_size: int
    sequence_length: int
    optimizer: str = "clipped-adamw"
    dtype: str = "float32"


class LSTM(nn.Module):
    """Tokens `[B, T]` to logits `[B, T, V]`."""

    config: LSTMConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        config = self.config
        dtypes: dict[str, Any] = {"dtype": config.dtype, "param_dtype": config.dtype}
        x = nn.Embed(config.vocab_size, config.width, **dtypes)(tokens)
        for _ in range(config.num_layers):
            x = nn.RNN(nn.OptimizedLSTMCell(config.width, **dtypes))(x)
        return nn.Dense(config.vocab_size, **dtypes)(x)


def make_lstm_state(config: LSTMConfig) -> tuple[TrainState]:
    tokens = jnp.zeros((1, config.sequence_length), jnp.int32)
    return (make_train_state(LSTM(config), config.optimizer, tokens),)
