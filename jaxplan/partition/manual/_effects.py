"""Operators that act on the process, such as `jax.debug.print`: once, as on one device, not once per device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxplan.core import _compat
from jaxplan.partition._steps import Executor


def has_outside_effects(origin: Any) -> bool:
    """Whether an equation does more than compute its results."""
    return bool(getattr(origin, "effects", None)) and _compat.has_effects(origin)


def on_first_device(executor: Executor, run: Callable[..., list[Any]], operands: Sequence[Any]) -> list[Any]:
    """Results of a function that runs on the first device alone, sent to all others."""
    names = tuple(axis.name for axis in executor.axes)
    if not names:
        return run(*operands)
    operands = [jnp.asarray(x) if not hasattr(x, "dtype") else x for x in operands]
    shapes = jax.eval_shape(lambda *xs: tuple(run(*xs)), *operands)
    results = lax.cond(
        lax.axis_index(names) == 0,
        lambda *xs: tuple(run(*xs)),
        lambda *_: tuple(jnp.zeros(s.shape, s.dtype) for s in shapes),
        *operands,
    )
    return [
        lax.psum(r.astype(jnp.int8), names).astype(bool) if r.dtype == bool else lax.psum(r, names)
        for r in results
    ]
