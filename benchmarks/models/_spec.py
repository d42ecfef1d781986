"""A model of the benchmarks: a configuration, and functions that make its step and arguments from it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax

Step = Callable[..., Any]
Updates = Literal["returned", "in place", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Names of the types that a configuration computes with and keeps parameters in."""

    dtype: str = "bfloat16"
    param_dtype: str = "float32"

    @property
    def dtypes(self) -> dict[str, str]:
        """Both, as Flax modules take them."""
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One entry of the registry.

    Attributes:
      config: a frozen dataclass; `build` may override its fields.
      make_step: config to the step, a function of the state's arguments and the batch.
      make_state: config to the tuple of arguments before the batch, real arrays.
      make_batch: config and a PRNG key to one batch, real arrays.
      updates: how a step hands on its state: ``returned`` (``(state, loss)``), ``in place`` (NNX objects; it returns
        the loss) or ``none`` (evaluation and inference; it returns its results).
      donate_argnums: arguments with buffers that the step may reuse.
      summary: one line.
    """

    config: Any
    make_step: Callable[[Any], Step]
    make_state: Callable[[Any], tuple[Any, ...]]
    make_batch: Callable[[Any, jax.Array], Any]
    summary: str
    updates: Updates = "returned"
    donate_argnums: tuple[int, ...] = (0,)

    def override(self, **fields: Any) -> "ModelSpec":
        """The same model with other sizes; raises `TypeError` for an unknown field."""
        return replace(self, config=replace(self.config, **fields))

    def abstract_args(self) -> tuple[Any, ...]:
        """The arguments with `jax.ShapeDtypeStruct` leaves: nothing is allocated."""

        def make() -> tuple[Any, ...]:
            return *self.make_state(self.config), self.make_batch(self.config, jax.random.key(0))

        if self.updates == "in place":
            from flax import nnx

            return nnx.eval_shape(make)
        return jax.eval_shape(make)


def family(
    config: Any,
    make_state: Callable[[Any], Any],
    make_batch: Callable[..., Any],
    make_step: Callable[[Any], Step],
) -> Callable[..., ModelSpec]:
    """Makes a family's models of a summary and the fields of its configuration."""

    def model(summary: str, **fields: Any) -> ModelSpec:
        return ModelSpec(
            config=config(**fields),
            make_step=make_step,
            make_state=make_state,
            make_batch=make_batch,
            summary=summary,
        )

    return model


def always(step: Step) -> Callable[[Any], Step]:
    """A step that no configuration changes."""
    return lambda _: step


def reading(spec: ModelSpec, summary: str, **fields: Any) -> ModelSpec:
    """A step that reads its state and returns something else."""
    return replace(spec, updates="none", donate_argnums=(), summary=summary, **fields)
