"""A Conformer (arXiv 2005.08100) in Flax Linen: attention and depthwise convolutions over speech, trained with CTC."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformerConfig(Precision):
    """Sizes of a Conformer and of its batch of spectrograms, every one of `num_frames` frames."""

    num_layers: int
    width: int
    num_heads: int
    kernel_size: int
    vocab_size: int
    num_frames: int
    num_features: int
    num_labels: int
    batch_size: int
    optimizer: str = "clipped-adamw"


class HalfStep(nn.Module):
    """A perceptron behind a norm, half of which is added."""

    config: ConformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtypes, width = self.config.dtypes, x.shape[-1]
        h = nn.swish(nn.Dense(4 * width, **dtypes)(nn.LayerNorm(**dtypes)(x)))
        return x + 0.5 * nn.Dense(width, **dtypes)(h)


class ConvolutionModule(nn.Module):
    """Frames `[B, T, D]`: a gated projection, a convolution of each channel over time, a projection, added."""

    config: ConformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtypes, width = self.config.dtypes, x.shape[-1]
        h = nn.glu(nn.Dense(2 * width, **dtypes, name="gate")(nn.LayerNorm(**dtypes)(x)))
        h = nn.Conv(width, (self.config.kernel_size,), feature_group_count=width, **dtypes, name="depthwise")(
            h
        )
        h = nn.swish(nn.LayerNorm(**dtypes)(h))
        return x + nn.Dense(width, **dtypes, name="output")(h)


class ConformerBlock(nn.Module):
    config: ConformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        x = HalfStep(config, name="before")(x)
        attention = nn.MultiHeadDotProductAttention(num_heads=config.num_heads, **dtypes, name="attention")
        x = x + attention(nn.LayerNorm(**dtypes)(x))
        x = ConvolutionModule(config, name="convolution")(x)
        return nn.LayerNorm(**dtypes)(HalfStep(config, name="after")(x))


class Conformer(nn.Module):
    """Spectrograms `[B, T, F]` to float32 logits `[B, T / 4, V]`."""

    config: ConformerConfig

    @nn.compact
    def __call__(self, frames: jax.Array) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        x = frames[..., None]
        for stage in range(2):
            x = nn.relu(nn.Conv(config.width, (3, 3), (2, 2), **dtypes, name=f"subsample_{stage}")(x))
        x = nn.Dense(config.width, **dtypes, name="input")(x.reshape(*x.shape[:2], -1))
        for layer in range(config.num_layers):
            x = ConformerBlock(config, name=f"block_{layer}")(x)
        logits = nn.Dense(config.vocab_size, **dtypes, name="head")(x)
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def mean_ctc_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Of float32 `logits` `[B, T, V]` and int32 `labels` `[B, L]`, none of them padded; 0 is the blank."""
    return optax.ctc_loss(logits, jnp.zeros(logits.shape[:2]), labels, jnp.zeros(labels.shape)).mean()


def conformer_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One optimizer step on the CTC loss; `frames` `[B, T, F]` and int32 `labels` `[B, L]`, none of them padded."""

    def loss_fn(params: Any) -> jax.Array:
        return mean_ctc_loss(state.apply_fn({"params": params}, batch["frames"]), batch["labels"])

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def make_conformer_state(config: ConformerConfig) -> tuple[TrainState]:
    frames = jnp.zeros((1, config.num_frames, config.num_features), config.param_dtype)
    return (make_train_state(Conformer(config), config.optimizer, frames),)


def make_conformer_batch(config: ConformerConfig, key: jax.Array) -> dict[str, jax.Array]:
    frame_key, label_key = jax.random.split(key)
    shape = (config.batch_size, config.num_frames, config.num_features)
    labels = jax.random.randint(label_key, (config.batch_size, config.num_labels), 1, config.vocab_size)
    return {"frames": jax.random.normal(frame_key, shape, config.param_dtype), "labels": labels}


_conformer = family(ConformerConfig, make_conformer_state, make_conformer_batch, always(conformer_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "conformer-l": _conformer(
        "Conformer-L for speech, 111M parameters",
        num_layers=17, width=512, num_heads=8, kernel_size=31, vocab_size=1024, num_frames=1600, num_features=80,
        num_labels=128, batch_size=64,
    ),
    "conformer-tiny": _conformer(
        "1-layer Conformer for tests",
        num_layers=1, width=32, num_heads=4, kernel_size=3, vocab_size=16, num_frames=32, num_features=8,
        num_labels=2, batch_size=16,
    ),
}  # fmt: skip
