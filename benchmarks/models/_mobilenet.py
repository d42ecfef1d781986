"""A MobileNetV3 (arXiv 1905.02244) in Flax Linen: the blocks of an EfficientNet with piecewise activations, only some
of which weigh channels. Without dropout."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.models._batch_norm import (
    BatchNormTrainState,
    batch_norm_train_step,
    conv_and_norm,
    make_batch_norm_state,
)
from benchmarks.models._efficientnet import InvertedBottleneck
from benchmarks.models._spec import ModelSpec, Precision, always, family
from benchmarks.models._vit import make_image_batch

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


_mobilenet = family(MobileNetConfig, make_mobilenet_state, make_image_batch, always(batch_norm_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "mobilenetv3-large": _mobilenet(
        "MobileNetV3-Large, 5.5M parameters",
        rows=rows_of(
            (3, 16, 16, False, "RE", 1), (3, 64, 24, False, "RE", 2), (3, 72, 24, False, "RE", 1),
            (5, 72, 40, True, "RE", 2), (5, 120, 40, True, "RE", 1), (5, 120, 40, True, "RE", 1),
            (3, 240, 80, False, "HS", 2), (3, 200, 80, False, "HS", 1), (3, 184, 80, False, "HS", 1),
            (3, 184, 80, False, "HS", 1), (3, 480, 112, True, "HS", 1), (3, 672, 112, True, "HS", 1),
            (5, 672, 160, True, "HS", 2), (5, 960, 160, True, "HS", 1), (5, 960, 160, True, "HS", 1),
        ),
        stem_width=16, last_width=960, head_width=1280, image_size=224, num_classes=1000, batch_size=512,
    ),
    "mobilenet-tiny": _mobilenet(
        "MobileNetV3 of two blocks for tests",
        rows=rows_of((3, 16, 16, False, "RE", 1), (3, 32, 16, True, "HS", 1)),
        stem_width=16, last_width=32, head_width=32, image_size=16, num_classes=16, batch_size=16,
    ),
}  # fmt: skip
