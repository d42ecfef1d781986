"""A ResNet (arXiv 1512.03385) with batch normalisation, its statistics in the state, in Flax Linen."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.models._batch_norm import (
    BatchNormTrainState,
    batch_norm_eval_step,
    batch_norm_train_step,
    conv_and_norm,
    make_batch_norm_state,
    stem,
)
from benchmarks.models._spec import ModelSpec, Precision, always, family, reading
from benchmarks.models._vit import make_image_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetConfig(Precision):
    """Sizes of a ResNet of bottleneck blocks and of its batch of square images with three channels.

    `stage_sizes` blocks per stage; width doubles from `width` on, and resolution halves. `widen` times as
    wide are the inner convolutions of a block (Wide-ResNet-50-2, arXiv 1605.07146, has 2).
    """

    stage_sizes: tuple[int, ...]
    width: int
    image_size: int
    num_classes: int
    batch_size: int
    widen: int = 1
    optimizer: str = "momentum"


class BottleneckBlock(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1, each normalised, around a shortcut that is projected where shapes differ."""

    width: int
    stride: int
    widen: int
    conv: Any
    norm: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        strides = (self.stride, self.stride)
        inner = self.widen * self.width
        y = nn.relu(self.norm()(self.conv(inner, (1, 1))(x)))
        y = nn.relu(self.norm()(self.conv(inner, (3, 3), strides)(y)))
        y = self.norm()(self.conv(4 * self.width, (1, 1))(y))
        if x.shape != y.shape:
            x = self.norm(name="norm_shortcut")(
                self.conv(4 * self.width, (1, 1), strides, name="shortcut")(x)
            )
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Images `[B, H, W, 3]` to logits `[B, num_classes]`."""

    config: ResNetConfig

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        config = self.config
        conv, norm = conv_and_norm(config.dtypes, train, momentum=0.9)
        x = stem(conv, norm, config.width, images)
        for stage, num_blocks in enumerate(config.stage_sizes):
            for block in range(num_blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = BottleneckBlock(config.width * 2**stage, stride, config.widen, conv, norm)(x)
        logits = nn.Dense(config.num_classes, **config.dtypes)(x.mean(axis=(1, 2)))
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_resnet_state(config: ResNetConfig) -> tuple[BatchNormTrainState]:
    return make_batch_norm_state(ResNet(config), config)


_resnet = family(ResNetConfig, make_resnet_state, make_image_batch, always(batch_norm_train_step))
_TINY = _resnet(
    "ResNet of four bottleneck blocks for tests",
    stage_sizes=(1, 1, 1, 1), width=16, image_size=32, num_classes=16, batch_size=16,
)  # fmt: skip

CONFIGS: dict[str, ModelSpec] = {
    "resnet50": _resnet(
        "ResNet-50, 26M parameters",
        stage_sizes=(3, 4, 6, 3), width=64, image_size=224, num_classes=1000, batch_size=256,
    ),
    "wide-resnet50-2": _resnet(
        "Wide-ResNet-50-2, 69M parameters",
        stage_sizes=(3, 4, 6, 3), width=64, widen=2, image_size=224, num_classes=1000, batch_size=256,
    ),
    "wide-resnet50-8x": _resnet(
        "ResNet-50 with eight times the channels everywhere (Tofu, section 6.1), 1.5B parameters",
        stage_sizes=(3, 4, 6, 3), width=512, image_size=224, num_classes=1000, batch_size=64,
    ),
    "resnet-tiny": _TINY,
    "resnet-tiny-eval": reading(
        _TINY, "the tiny ResNet, loss and accuracy with the running statistics",
        make_step=always(batch_norm_eval_step),
    ),
}  # fmt: skip

_STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_IMAGENET: dict[str, Any] = {"image_size": 224, "num_classes": 1000, "dtype": "float32"}


def _tofu_wide(depth: int, times: int) -> ModelSpec:
    return _resnet(
        f"Tofu's WResNet-{depth}-{times}: {times} times the channels everywhere",
        stage_sizes=_STAGES[depth], width=64 * times, batch_size=32, **_IMAGENET,
    )  # fmt: skip


PAPER_CONFIGS: dict[str, ModelSpec] = {
    "resnet101": _resnet(
        "ResNet-101, 45M parameters", stage_sizes=_STAGES[101], width=64, batch_size=256, **_IMAGENET
    ),
    "resnet152": _resnet(
        "ResNet-152, 60M parameters", stage_sizes=_STAGES[152], width=64, batch_size=256, **_IMAGENET
    ),
    **{f"wresnet-{depth}-{times}": _tofu_wide(depth, times) for depth in _STAGES for times in (4, 6, 8, 10)},
    "wresnet-7.3gb": _resnet(
        "2.0B parameters, as many as TensorOpt's WideResNet, and images of the memory there (Table 1: 7.3 and 83 GiB)",
        stage_sizes=_STAGES[101],
        width=432,
        batch_size=256,
        optimizer="sgd",
        **{**_IMAGENET, "image_size": 128},
    ),
}
