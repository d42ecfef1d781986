"""A MobileNetV3 (arXiv 1905.02244) in Flax Linen: the blocks of an EfficientNet with piecewise activations, only some
of which weigh channels. Without dropout."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.models._batch_norm import BatchNormTrainState, conv_and_norm, make_batch_norm_state
from benchmarks.models._efficientnet import InvertedBottleneck
from benchmarks.models._spec import Precision

ACTIVATIONS = {"RE": nn.relu, "HS": nn.hard_swish}
"""By the names that they have in table 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One block, as a row of table 1 gives it: `inner` channels between its ends, weighed if it `squeezes`."""

    kernel_size: int
    inner: int
    width: int
    squeezes: bool
    activation: Literal["RE", "HS"]
    stride: int

    @property
    def squeezed(self) -> int:
        """Channels that weights are made of: a quarter, as a multiple of 8; 0 where nothing is weighed."""
        return _in_eights(self.inner // 4) if self.squeezes else 0


def _in_eights(channels: int) -> int:
    """The nearest multiple of 8, or the one above where that loses a tenth, as the authors' program rounds."""
    nearest = max(8, (channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def rows_of(*rows: tuple[int, int, int, bool, Literal["RE", "HS"], int]) -> tuple[Row, ...]:
    return tuple(
        Row(
            kernel_size=kernel,
            inner=inner,
            width=width,
            squeezes=squeezes,
            activation=activation,
            stride=stride,
        )
        for kernel, inner, width, squeezes, activation, stride in rows
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MobileNetConfig(Precision):
    """Sizes of a MobileNetV3 and of its batch of square images; `last_width` channels are pooled."""

    rows: tuple[Row, ...]
    stem_width: int
    last_width: int
    head_width: int
    image_size: int
    num_classes: int
    batch_size: int
    optimizer: str = "momentum"


class MobileNet(nn.Module):
    """Images `[B, H, W, 3]` to float32 logits `[B, num_classes]`."""

    config: MobileNetConfig

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        config = self.config
        conv, norm = conv_and_norm(config.dtypes, train, momentum=0.99, epsilon=1e-3)
        x = nn.hard_swish(norm()(conv(config.stem_width, (3, 3), (2, 2), name="stem")(images)))
        for number, row in enumerate(config.rows):
            x = InvertedBottleneck(
                row.inner, row.width, row.kernel_size, row.stride, row.squeezed, conv, norm,
                ACTIVATIONS[row.activation], nn.relu, nn.hard_sigmoid, name=f"block_{number}",
            )(x)  # fmt: skip
        x = nn.hard_swish(norm()(conv(config.last_width, (1, 1), name="last")(x)))
        x = nn.hard_swish(nn.Dense(config.head_width, **config.dtypes, name="head")(x.mean(axis=(1, 2))))
        logits = nn.Dense(config.num_classes, **config.dtypes, name="classes")(x)
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_mobilenet_state(config: MobileNetConfig) -> tuple[BatchNormTrainState]:
    return make_batch_norm_state(MobileNet(config), config)
