"""A recurrent language model in Flax Linen: LSTM cells in a `lax.scan` over time."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._gpt import gpt_train_step, make_gpt_batch
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, always, family


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


_lstm = family(LSTMConfig, make_lstm_state, make_gpt_batch, always(gpt_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "lstm": _lstm(
        "2-layer LSTM, 18M parameters",
        num_layers=2, width=1024, vocab_size=1024, batch_size=64, sequence_length=256,
    ),
    "lstm-8": _lstm(
        "8-layer LSTM, 69M parameters",
        num_layers=8, width=1024, vocab_size=1024, batch_size=64, sequence_length=256,
    ),
    "lstm-tiny": _lstm(
        "1-layer LSTM for tests",
        num_layers=1, width=32, vocab_size=64, batch_size=16, sequence_length=8,
    ),
}  # fmt: skip
