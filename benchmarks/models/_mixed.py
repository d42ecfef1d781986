"""A GPT trained in mixed precision by hand: half-precision parameters in the forward pass, f32 masters in the state."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax.training.dynamic_scale import DynamicScale
from flax.training.train_state import TrainState

from benchmarks.models._gpt import GPT, TINY_GPT, GPTConfig, make_gpt_batch, next_token_loss
from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, family


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedGPTConfig(GPTConfig):
    """A GPT with a loss multiplied by `loss_scale`; 0 adapts the scale, and skips the steps that overflow."""

    loss_scale: float = 0.0
    growth_interval: int = 2000


class MixedTrainState(TrainState):
    """With the scale of the loss, and the counter that it depends on."""

    dynamic_scale: DynamicScale | None


def make_mixed_step(config: MixedGPTConfig) -> Any:
    """A train step with the loss scaling that `config` says."""

    def loss_of(state: MixedTrainState, batch: Any) -> Any:
        inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]

        def loss_fn(params: Any) -> jax.Array:
            halves = jax.tree.map(lambda p: p.astype(config.dtype), params)
            return next_token_loss(state.apply_fn({"params": halves}, inputs), targets)

        return loss_fn

    def static_step(state: MixedTrainState, batch: Any) -> tuple[TrainState, jax.Array]:
        loss_fn = loss_of(state, batch)
        loss, grads = jax.value_and_grad(lambda params: config.loss_scale * loss_fn(params))(state.params)
        grads = jax.tree.map(lambda g: g / config.loss_scale, grads)
        return state.apply_gradients(grads=grads), loss / config.loss_scale

    def dynamic_step(state: MixedTrainState, batch: Any) -> tuple[TrainState, jax.Array]:
        assert state.dynamic_scale is not None
        scale, is_finite, loss, grads = state.dynamic_scale.value_and_grad(loss_of(state, batch))(
            state.params
        )
        new = state.apply_gradients(grads=grads, dynamic_scale=scale)

        def keep(new_leaf: jax.Array, old_leaf: jax.Array) -> jax.Array:
            return jnp.where(is_finite, new_leaf, old_leaf)

        kept = {
            name: jax.tree.map(keep, getattr(new, name), getattr(state, name))
            for name in ("params", "opt_state")
        }
        return new.replace(**kept), loss

    return static_step if config.loss_scale else dynamic_step


def make_mixed_state(config: MixedGPTConfig) -> tuple[MixedTrainState]:
    tokens = jnp.zeros((1, config.sequence_length), jnp.int32)
    scale = None if config.loss_scale else DynamicScale(growth_interval=config.growth_interval)
    fields = {"state_class": MixedTrainState, "dynamic_scale": scale}
    return (make_train_state(GPT(config), config.optimizer, tokens, **fields),)


_mixed = family(MixedGPTConfig, make_mixed_state, make_gpt_batch, make_mixed_step)

CONFIGS: dict[str, ModelSpec] = {
    "gpt-tiny-mixed": _mixed("2-layer GPT, bf16 parameters in the forward pass, scaled loss", **TINY_GPT),
}  # fmt: skip
