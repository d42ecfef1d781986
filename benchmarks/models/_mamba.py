"""A Mamba language model (arXiv 2312.00752) in Flax Linen: selective state spaces as an associative scan."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._gpt import gpt_train_step, make_gpt_batch
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig(Precision):
    """Sizes of a Mamba and of its batch: `batch_size` sequences of `sequence_length` tokens per step.

    A block computes on `2 * width` channels with `num_states` states each; `rank` is that of the step sizes."""

    num_layers: int
    width: int
    num_states: int
    rank: int
    kernel_size: int
    vocab_size: int
    batch_size: int
    sequence_length: int
    optimizer: str = "clipped-adamw"


def _after(
    first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Two steps `h -> decay * h + added`, one after the other."""
    return first[0] * second[0], second[0] * first[1] + second[1]


def _selective_scan(
    x: jax.Array, step: jax.Array, decay: jax.Array, write: jax.Array, read: jax.Array
) -> jax.Array:
    """Outputs `[B, T, D]` of inputs and step sizes `[B, T, D]`, decays `[D, N]`, input and output maps `[B, T, N]`
    (equations 2 and 3 of the paper, algorithm 2), in float32."""
    x, step, write, read = (value.astype(decay.dtype) for value in (x, step, write, read))
    decays = jnp.exp(step[..., None] * decay)
    added = (step * x)[..., None] * write[:, :, None]
    _, states = jax.lax.associative_scan(_after, (decays, added), axis=1)
    return jnp.einsum("btdn,btn->btd", states, read)


class MambaBlock(nn.Module):
    """Tokens `[B, T, D]`: a gated state space with steps, inputs and outputs that depend on the tokens."""

    config: MambaConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config, dtypes, inner = self.config, self.config.dtypes, 2 * self.config.width
        h = nn.Dense(2 * inner, use_bias=False, **dtypes, name="input")(x)
        h, gate = jnp.split(h, 2, axis=-1)
        kernel = (config.kernel_size,)
        h = nn.Conv(inner, kernel, padding="CAUSAL", feature_group_count=inner, **dtypes, name="depthwise")(h)
        h = nn.silu(h)
        selected = nn.Dense(config.rank + 2 * config.num_states, use_bias=False, **dtypes, name="select")(h)
        rank, write, read = jnp.split(selected, (config.rank, config.rank + config.num_states), axis=-1)
        step = nn.softplus(nn.Dense(inner, **dtypes, name="step")(rank))
        logarithms = self.param("log_decay", _log_decay, (inner, config.num_states), config.param_dtype)
        skip = self.param("skip", nn.initializers.ones, (inner,), config.param_dtype)
        y = _selective_scan(h, step, -jnp.exp(logarithms), write, read).astype(h.dtype)
        y = (y + skip.astype(h.dtype) * h) * nn.silu(gate)
        return nn.Dense(config.width, use_bias=False, **dtypes, name="output")(y)


def _log_decay(_: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    return jnp.log(jnp.broadcast_to(jnp.arange(1, shape[-1] + 1, dtype=dtype), shape))


class Mamba(nn.Module):
    """Tokens `[B, T]` to float32 logits `[B, T, V]`; the embedding is the head."""

    config: MambaConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        embed = nn.Embed(config.vocab_size, config.width, **dtypes, name="tokens")
        x = embed(tokens)
        for layer in range(config.num_layers):
            h = nn.RMSNorm(**dtypes, name=f"norm_{layer}")(x)
            x = x + MambaBlock(config, name=f"block_{layer}")(h)
        x = nn.RMSNorm(**dtypes, name="norm")(x)
        return embed.attend(x).astype(jnp.promote_types(config.dtype, jnp.float32))


def make_mamba_state(config: MambaConfig) -> tuple[TrainState]:
    tokens = jnp.zeros((1, config.sequence_length), jnp.int32)
    return (make_train_state(Mamba(config), config.optimizer, tokens),)


_mamba = family(MambaConfig, make_mamba_state, make_gpt_batch, always(gpt_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "mamba-130m": _mamba(
        "Mamba, 129M parameters",
        num_layers=24, width=768, num_states=16, rank=48, kernel_size=4, vocab_size=50280, batch_size=32,
        sequence_length=256,
    ),
    "mamba-tiny": _mamba(
        "1-layer Mamba for tests",
        num_layers=1, width=32, num_states=4, rank=2, kernel_size=4, vocab_size=64, batch_size=16,
        sequence_length=16,
    ),
}  # fmt: skip
