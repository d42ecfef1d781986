"""A train step around a model of another package: the result of a builder, and how it becomes a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax

from benchmarks.models._optimizer import OPTIMIZERS

State = dict[str, Any]
LossFn = Callable[[Any, Any, Any, jax.Array], tuple[jax.Array, Any]]
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model of a package, with a loss and a batch; everything can be traced, so nothing need be allocated.

    Attributes:
      init: a key to (parameters, values carried from step to step: batch statistics, codebooks, or ``()``).
      loss: (parameters, carried, batch, key) to (loss, carried).
      batch: a key to one batch.
      optimizer: a name of `benchmarks.models._optimizer.OPTIMIZERS`, or a gradient transformation.
    """

    init: Callable[[jax.Array], tuple[Any, Any]]
    loss: LossFn
    batch: Callable[[jax.Array], Any]
    optimizer: str | optax.GradientTransformation = "adamw"

    def transformation(self) -> optax.GradientTransformation:
        return OPTIMIZERS[self.optimizer]() if isinstance(self.optimizer, str) else self.optimizer

    def make_state(self, key: jax.Array) -> State:
        params, carried = self.init(key)
        slots = self.transformation().init(params)
        return {"params": params, "carried": carried, "slots": slots, "step": jnp.zeros((), jnp.int32)}

    def step(self, state: State, batch: Any) -> tuple[State, jax.Array]:
        """One update; the state comes first and is donated."""
        key = jax.random.fold_in(jax.random.key(1), state["step"])
        gradient = jax.value_and_grad(self.loss, has_aux=True)
        (loss, carried), gradients = gradient(state["params"], state["carried"], batch, key)
        updates, slots = self.transformation().update(gradients, state["slots"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "carried": carried, "slots": slots, "step": state["step"] + 1}, loss

    def abstract_args(self) -> tuple[State, Any]:
        """State and batch as `jax.ShapeDtypeStruct` leaves: nothing is allocated."""
        key = jax.random.key(0)
        return jax.eval_shape(self.make_state, key), jax.eval_shape(self.batch, key)


def stateless(
    init: Callable[[jax.Array], Any],
    loss: Callable[[Any, Any, jax.Array], jax.Array],
    batch: Callable[[jax.Array], Any],
    **settings: Any,
) -> Case:
    """A case of a model that carries nothing: ``init(key)`` to parameters, ``loss(params, batch, key)``."""
    return Case(
        init=lambda key: (init(key), ()),
        loss=lambda params, carried, batch, key: (loss(params, batch, key), carried),
        batch=batch,
        **settings,
    )


def images(count: int, side: int, channels: int = 3, classes: int = 1000) -> Callable[[jax.Array], Any]:
    """A maker of image batches: ``image`` (count, side, side, channels) and ``label`` (count,)."""

    def make(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        image = jax.random.normal(first, (count, side, side, channels))
        return {"image": image, "label": jax.random.randint(second, (count,), 0, classes)}

    return make


def tokens(count: int, length: int, vocabulary: int) -> Callable[[jax.Array], jax.Array]:
    """A maker of token batches (count, length)."""
    return lambda key: jax.random.randint(key, (count, length), 0, vocabulary)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean softmax cross-entropy of integer labels."""
    logits = logits.astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def next_token_loss(logits: jax.Array, ids: jax.Array) -> jax.Array:
    """Cross-entropy of the next token; ``logits`` (B, T, V), ``ids`` (B, T)."""
    return cross_entropy(logits[:, :-1], ids[:, 1:])
