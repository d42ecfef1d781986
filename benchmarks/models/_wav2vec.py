"""wav2vec 2.0 (arXiv 2006.11477), fine-tuned to characters with the CTC loss, in Flax Linen."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._conformer import mean_ctc_loss
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family

_KERNELS = (10, 3, 3, 3, 3, 2, 2)
_STRIDES = (5, 2, 2, 2, 2, 2, 2)
"""Of the convolutions over samples (appendix A): a frame is 25 ms, 20 ms after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wav2VecConfig(Precision):
    """Sizes of a wav2vec 2.0 and of its batch: audio of `num_samples`, of which frames are masked, and characters."""

    num_layers: int
    width: int
    num_heads: int
    features: int
    position_kernel: int
    position_groups: int
    vocab_size: int
    num_samples: int
    num_labels: int
    batch_size: int
    optimizer: str = "clipped-adamw"

    @property
    def num_frames(self) -> int:
        frames = self.num_samples
        for kernel, stride in zip(_KERNELS, _STRIDES, strict=True):
            frames = (frames - kernel) // stride + 1
        return frames


class Positions(nn.Module):
    """A convolution of groups of channels over frames, its kernel normalised for each place, behind a GELU."""

    config: Wav2VecConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        shape = (config.position_kernel, config.width // config.position_groups, config.width)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, config.param_dtype)
        scale = self.param("scale", nn.initializers.ones, (shape[0], 1, 1), config.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, (config.width,), config.param_dtype)
        kernel = scale * kernel / jnp.sqrt(jnp.sum(jnp.square(kernel), axis=(1, 2), keepdims=True))
        before = config.position_kernel // 2
        h = jax.lax.conv_general_dilated(
            x, kernel.astype(x.dtype), (1,), [(before, config.position_kernel - 1 - before)],
            dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=config.position_groups,
        )  # fmt: skip
        return nn.gelu(h + bias.astype(x.dtype), approximate=False)


class Block(nn.Module):
    """Attention and a perceptron, each added, then normalised."""

    config: Wav2VecConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        x = nn.LayerNorm(**dtypes)(
            x + nn.MultiHeadDotProductAttention(num_heads=config.num_heads, **dtypes)(x, x)
        )
        h = nn.gelu(nn.Dense(4 * config.width, **dtypes)(x), approximate=False)
        return nn.LayerNorm(**dtypes)(x + nn.Dense(config.width, **dtypes)(h))


class Wav2Vec(nn.Module):
    """Audio `[B, S]` and which of its frames are masked `[B, T]` to float32 logits `[B, T, V]`."""

    config: Wav2VecConfig

    @nn.compact
    def __call__(self, audio: jax.Array, masked: jax.Array) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        x = audio[..., None]
        for layer, (kernel, stride) in enumerate(zip(_KERNELS, _STRIDES, strict=True)):
            kwargs = {"padding": "VALID", "use_bias": False, "name": f"samples_{layer}", **dtypes}
            x = nn.Conv(config.features, (kernel,), (stride,), **kwargs)(x)
            if layer == 0:  # of each channel of each sequence
                x = nn.GroupNorm(num_groups=None, group_size=1, **dtypes, name="norm_samples")(x)
            x = nn.gelu(x, approximate=False)
        x = nn.Dense(config.width, **dtypes, name="features")(nn.LayerNorm(**dtypes, name="norm_features")(x))
        mask = self.param("mask", nn.initializers.uniform(1.0), (config.width,), config.param_dtype)
        x = jnp.where(masked[..., None], mask.astype(x.dtype), x)
        x = nn.LayerNorm(**dtypes, name="norm")(x + Positions(config, name="positions")(x))
        for layer in range(config.num_layers):
            x = Block(config, name=f"block_{layer}")(x)
        logits = nn.Dense(config.vocab_size, **dtypes, name="head")(x)
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def wav2vec_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One optimizer step on the CTC loss; `audio` `[B, S]`, `masked` `[B, T]` and int32 `labels` `[B, L]`."""

    def loss_fn(params: Any) -> jax.Array:
        return mean_ctc_loss(
            state.apply_fn({"params": params}, batch["audio"], batch["masked"]), batch["labels"]
        )

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def make_wav2vec_state(config: Wav2VecConfig) -> tuple[TrainState]:
    audio = jnp.zeros((1, config.num_samples), config.param_dtype)
    masked = jnp.zeros((1, config.num_frames), bool)
    return (make_train_state(Wav2Vec(config), config.optimizer, audio, masked),)


def make_wav2vec_batch(config: Wav2VecConfig, key: jax.Array) -> dict[str, jax.Array]:
    audio_key, mask_key, label_key = jax.random.split(key, 3)
    labels = jax.random.randint(label_key, (config.batch_size, config.num_labels), 1, config.vocab_size)
    return {
        "audio": jax.random.normal(audio_key, (config.batch_size, config.num_samples), config.param_dtype),
        "masked": jax.random.bernoulli(mask_key, 0.05, (config.batch_size, config.num_frames)),
        "labels": labels,
    }


_wav2vec = family(Wav2VecConfig, make_wav2vec_state, make_wav2vec_batch, always(wav2vec_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "wav2vec2-base": _wav2vec(
        "wav2vec 2.0 base, 94M parameters, fine-tuned",
        num_layers=12, width=768, num_heads=12, features=512, position_kernel=128, position_groups=16, vocab_size=32,
        num_samples=80000, num_labels=64, batch_size=64,
    ),
    "wav2vec2-tiny": _wav2vec(
        "1-layer wav2vec 2.0 for tests",
        num_layers=1, width=32, num_heads=4, features=16, position_kernel=4, position_groups=4, vocab_size=16,
        num_samples=6400, num_labels=4, batch_size=16,
    ),
}  # fmt: skip
