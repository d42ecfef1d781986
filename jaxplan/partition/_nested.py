"""A planned program inside another traced function: part of it under `jit`, an error under `grad` and `vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.custom_batching import custom_vmap

from jaxplan.errors import UnsupportedError

_TRANSFORMED_MSG = (
    "{transformation} was applied to a planned step.\n"
    "  given:        {transformation} around the step\n"
    "  expected:     the step as it is, called directly or inside jax.jit, jax.eval_shape or jax.lax.scan: a plan is\n"
    "                of one program, and {transformation} makes another one of it, which was not planned\n"
    "  likely cause: {cause}\n"
    "  fix:          {fix}; or transform the undecorated step, which is step.__wrapped__"
)


def nested_program(run: Callable[..., Any]) -> Callable[..., Any]:
    """The jitted program as something that other functions may call while they are traced.

    Args:
      run: flat leaves -> tuple of results.

    Returns:
      The same function; differentiating or batching it raises UnsupportedError, at whatever depth of `jit` it sits.
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
    def refuse_differentiation(*_: Any) -> Any:
        raise UnsupportedError(
            _TRANSFORMED_MSG.format(
                transformation="jax.grad",
                cause="the decorator is on the loss function",
                fix="decorate the function that calls jax.grad, so that the backward pass is planned too",
            )
        )

    return differentiated
