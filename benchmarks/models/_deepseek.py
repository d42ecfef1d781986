"""The Llama with DeepSeek-V2's attention (arXiv 2405.04434, section 2.1) in Flax Linen.

Keys and values are made of one narrow latent, and one rotary key is shared by all heads. Perceptrons are dense, as in
the first layer of DeepSeek-V2-Lite.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._gpt import gpt_train_step, make_gpt_batch
from benchmarks.models._llama import DecoderConfig, Llama, attend, rotate
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, always, family


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeekConfig(DecoderConfig):
    """Sizes of a model.

    A head's queries and keys have `head_width` channels without and `rotary_width` with positions, its values
    `head_width`; keys and values come of a latent of `latent_width`.
    """

    head_width: int
    rotary_width: int
    latent_width: int
    remat: bool = False


class LatentAttention(nn.Module):
    """Causal self-attention with keys and values computed from a latent."""

    config: DeepSeekConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        kwargs = {"use_bias": False, **config.dtypes}
        heads, head, rotary = config.num_heads, config.head_width, config.rotary_width
        q = nn.DenseGeneral((heads, head + rotary), name="query", **kwargs)(x)
        q = jnp.concatenate([q[..., :head], rotate(q[..., head:])], axis=-1)
        latent, shared = jnp.split(
            nn.Dense(config.latent_width + rotary, name="latent", **kwargs)(x), [config.latent_width], axis=-1
        )
        latent = nn.RMSNorm(name="norm", **config.dtypes)(latent)
        k, v = jnp.split(nn.DenseGeneral((heads, 2 * head), name="key_value", **kwargs)(latent), 2, axis=-1)
        shared = jnp.broadcast_to(rotate(shared[:, :, None]), (*k.shape[:-1], rotary))
        k = jnp.concatenate([k, shared], axis=-1)
        scores = jnp.einsum("bthd,bshd->bhts", q, k) * jnp.asarray((head + rotary) ** -0.5, q.dtype)
        mixed = attend(scores, v, "bhts,bshd->bthd")
        return nn.DenseGeneral(config.width, axis=(-2, -1), name="out", **kwargs)(mixed)


def make_deepseek_state(config: DeepSeekConfig) -> tuple[TrainState]:
    tokens = jnp.zeros((1, config.sequence_length), jnp.int32)
    return (make_train_state(Llama(config, LatentAttention), config.optimizer, tokens),)


_deepseek = family(DeepSeekConfig, make_deepseek_state, make_gpt_batch, always(gpt_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "deepseek-v2-lite": _deepseek(
        "DeepSeek-V2-Lite's attention with dense perceptrons, 2.6B parameters",
        num_layers=27, width=2048, num_heads=16, head_width=128, rotary_width=64, latent_width=512, ffn_width=10944,
        vocab_size=102400, batch_size=64, sequence_length=1024,
    ),
    "deepseek-tiny": _deepseek(
        "1-layer transformer with DeepSeek's attention for tests",
        num_layers=1, width=32, num_heads=4, head_width=8, rotary_width=4, latent_width=16, ffn_width=64,
        vocab_size=64, batch_size=16, sequence_length=8,
    ),
}  # fmt: skip
