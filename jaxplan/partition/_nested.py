"""A planned program inside another traced function: part of it under `jit`, differentiated, an error under `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.custom_batching import custom_vmap
from jax.sharding import NamedSharding, PartitionSpec

from jaxplan.core._log import warn_once
from jaxplan.core._mesh_context import under
from jaxplan.errors import UnsupportedError

_TRANSFORMED_MSG = (
    "{transformation} was applied to a planned step.\n"
    "  given:        {transformation} around the step\n"
    "  expected:     the step as it is, called directly or inside jax.jit, jax.eval_shape or jax.lax.scan: a plan is\n"
    "                of one program, and {transformation} makes another one of it, which was not planned\n"
    "  likely cause: {cause}\n"
    "  fix:          {fix}; or transform the undecorated step, which is step.__wrapped__"
)

_DIFFERENTIATED_MSG = (
    "jax.grad was applied to a planned step: the forward pass runs as planned, and its backward pass, which is not "
    "part of the plan, as the compiler partitions it. Likely cause: the decorator is on the loss function. Fix: "
    "decorate the function that calls jax.grad, so that time and memory of the backward pass are planned too"
)


def nested_program(run: Callable[..., Any]) -> Callable[..., Any]:
    """The jitted program as something that other functions may call while they are traced.

    Args:
      run: flat leaves -> tuple of results.

    Returns:
      The same function; at whatever depth of `jit` it sits, batching it raises UnsupportedError, and differentiating it
      warns that the plan knows nothing of the backward pass.
    """
    batched = custom_vmap(lambda *leaves: run(*leaves))

    @batched.def_vmap
    def refuse_vmap(*_: Any) -> Any:
        raise UnsupportedError(
            _TRANSFORMED_MSG.format(
                transformation="jax.vmap",
                cause="several models, or several batches, are trained at once",
                fix="put jax.vmap inside the step and decorate the whole",
            )
        )

    differentiated = jax.custom_jvp(lambda *leaves: batched(*leaves))

    @differentiated.defjvp
    def differentiate(primals: Any, tangents: Any) -> Any:
        warn_once(_DIFFERENTIATED_MSG)
        return jax.jvp(run, primals, tangents)

    return differentiated


def typed_by(
    mesh: Any, run: Callable[..., Any], own_mesh: Any, succeeded: Sequence[int | None]
) -> Callable[..., tuple[Any, ...]]:
    """A planned program inside a function with values typed by a mesh with Explicit axes.

    Args:
      mesh: that mesh. ``own_mesh``: the plan's, with other axes over the same devices.
      succeeded: per result, the argument that has its sharding; None: it is whole.
    """

    def with_own_mesh(*leaves: Any) -> tuple[Any, ...]:
        with under(own_mesh):
            return tuple(run(*leaves))

    def typed(*leaves: Any) -> tuple[Any, ...]:
        specs = [PartitionSpec() if i is None else _spec_of(leaves[i]) for i in succeeded]
        shardings = tuple(NamedSharding(mesh, spec) for spec in specs)
        run_typed: Any = jax.sharding.auto_axes(with_own_mesh, out_sharding=shardings)
        return run_typed(*leaves)

    return typed


def _spec_of(leaf: Any) -> PartitionSpec:
    return getattr(jax.typeof(leaf).sharding, "spec", PartitionSpec())
