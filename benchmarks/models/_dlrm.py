"""A recommendation model (DLRM, arXiv 1906.00091) in Flax Linen: large embedding tables, two perceptrons, float32."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, always, family


@dataclass(frozen=True, slots=True, kw_only=True)
class DLRMConfig:
    """Sizes of a DLRM: one table of `rows` for each of `num_tables` categorical features, `num_dense` numbers.

    `bottom` and `top` are the widths of the hidden layers; `optimizer` is a name in `OPTIMIZERS`.
    """

    num_tables: int
    rows: int
    width: int
    num_dense: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    batch_size: int
    optimizer: str = "sgd"
    param_dtype: str = "float32"


class DLRM(nn.Module):
    """Numbers `[B, num_dense]` and categories `[B, num_tables]` to logits `[B]`."""

    config: DLRMConfig

    @nn.compact
    def __call__(self, numbers: jax.Array, categories: jax.Array) -> jax.Array:
        config, dtype = self.config, self.config.param_dtype
        x = numbers
        for width in (*config.bottom, config.width):
            x = nn.relu(nn.Dense(width, param_dtype=dtype)(x))
        tables = [
            nn.Embed(config.rows, config.width, param_dtype=dtype, name=f"table_{i}")(categories[:, i])
            for i in range(config.num_tables)
        ]
        features = jnp.stack([x, *tables], axis=1)
        products = jnp.einsum("bid,bjd->bij", features, features)
        rows, columns = jnp.tril_indices(features.shape[1], -1)
        x = jnp.concatenate([x, products[:, rows, columns]], axis=1)
        for width in config.top:
            x = nn.relu(nn.Dense(width, param_dtype=dtype)(x))
        return nn.Dense(1, param_dtype=dtype)(x)[:, 0]


def dlrm_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One optimizer step on the binary cross entropy of clicks, `batch["labels"]` `[B]`."""

    def loss_fn(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, batch["numbers"], batch["categories"])
        return optax.sigmoid_binary_cross_entropy(logits, batch["labels"]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def make_dlrm_state(config: DLRMConfig) -> tuple[TrainState]:
    numbers = jnp.zeros((1, config.num_dense), config.param_dtype)
    categories = jnp.zeros((1, config.num_tables), jnp.int32)
    return (make_train_state(DLRM(config), config.optimizer, numbers, categories),)


def make_dlrm_batch(config: DLRMConfig, key: jax.Array) -> dict[str, jax.Array]:
    number_key, category_key, label_key = jax.random.split(key, 3)
    shape = (config.batch_size, config.num_tables)
    return {
        "numbers": jax.random.normal(number_key, (config.batch_size, config.num_dense), config.param_dtype),
        "categories": jax.random.randint(category_key, shape, 0, config.rows, jnp.int32),
        "labels": jax.random.bernoulli(label_key, shape=shape[:1]).astype(config.param_dtype),
    }


_dlrm = family(DLRMConfig, make_dlrm_state, make_dlrm_batch, always(dlrm_train_step))

CONFIGS: dict[str, ModelSpec] = {
    "dlrm": _dlrm(
        "DLRM, 26 tables of 200k rows, 335M parameters",
        num_tables=26, rows=200_000, width=64, num_dense=13, bottom=(512, 256), top=(1024, 1024, 512, 256),
        batch_size=65536,
    ),
    "dlrm-large": _dlrm(
        "DLRM, 26 tables of 1M rows, 3.3B parameters",
        num_tables=26, rows=1_000_000, width=128, num_dense=13, bottom=(512, 256), top=(1024, 1024, 512, 256),
        batch_size=65536,
    ),
    "dlrm-tiny": _dlrm(
        "DLRM with 3 tables for tests",
        num_tables=3, rows=64, width=16, num_dense=4, bottom=(32,), top=(32, 16), batch_size=32,
    ),
}  # fmt: skip
