"""AlexNet with one tower (arXiv 1404.5997) and LeNet-5 (LeCun et al., 1998) in Flax Linen. Without dropout."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._mlp import mlp_train_step
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family
from benchmarks.models._vit import make_image_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainNetConfig(Precision):
    """Convolutions, some with max pooling behind them, then dense layers, and its batch of square images.

    Attributes:
      kernels: (size, stride, output channels, whether pooling follows) of each convolution.
      padding: of the convolutions.
      pool: window of the poolings; their stride is 2.
      dense_widths: outputs of the dense layers before the last.
    """

    kernels: tuple[tuple[int, int, int, bool], ...]
    padding: str
    pool: int
    dense_widths: tuple[int, ...]
    image_size: int
    num_channels: int = 3
    num_classes: int
    batch_size: int
    optimizer: str = "momentum"


class PlainNet(nn.Module):
    """Images `[B, H, W, C]` to float32 logits `[B, num_classes]`."""

    config: PlainNetConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config, dtypes = self.config, self.config.dtypes
        for size, stride, width, is_pooled in config.kernels:
            x = nn.relu(nn.Conv(width, (size, size), (stride, stride), padding=config.padding, **dtypes)(x))
            if is_pooled:
                x = nn.max_pool(x, (config.pool, config.pool), strides=(2, 2))
        x = x.reshape(x.shape[0], -1)
        for width in config.dense_widths:
            x = nn.relu(nn.Dense(width, **dtypes)(x))
        logits = nn.Dense(config.num_classes, **dtypes)(x)
        return logits.astype(jnp.promote_types(config.dtype, jnp.float32))


def make_plain_net_state(config: PlainNetConfig) -> tuple[TrainState]:
    images = jnp.zeros((1, config.image_size, config.image_size, config.num_channels), config.param_dtype)
    return (make_train_state(PlainNet(config), config.optimizer, images),)


def make_plain_net_batch(config: PlainNetConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Of `make_image_batch`, as many channels as the network reads."""
    batch = make_image_batch(config, key)  # pyright: ignore[reportArgumentType]
    return {**batch, "inputs": batch["inputs"][..., : config.num_channels]}


_plain_net = family(PlainNetConfig, make_plain_net_state, make_plain_net_batch, always(mlp_train_step))

PAPER_CONFIGS: dict[str, ModelSpec] = {
    "alexnet": _plain_net(
        "AlexNet, 61M parameters",
        kernels=((11, 4, 64, True), (5, 1, 192, True), (3, 1, 384, False), (3, 1, 256, False), (3, 1, 256, True)),
        padding="SAME", pool=3, dense_widths=(4096, 4096), image_size=224, num_classes=1000, batch_size=256,
        dtype="float32",
    ),
    "lenet5": _plain_net(
        "LeNet-5, 62k parameters",
        kernels=((5, 1, 6, True), (5, 1, 16, True)),
        padding="VALID", pool=2, dense_widths=(120, 84), image_size=32, num_channels=1, num_classes=10, batch_size=64,
        dtype="float32",
    ),
}  # fmt: skip
