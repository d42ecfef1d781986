"""Under `jax_debug_nans` and `jax_debug_infs`: check the results of a planned step, and find where it went wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxplan.core import _compat
from jaxplan.frontend._host_arguments import lives_on_host
from jaxplan.ir import CUT, JOIN, Program
from jaxplan.partition._user_sharding import as_traced


def is_checking() -> bool:
    """Whether the person asked JAX to stop at NaN or at infinity."""
    return bool(_compat.setting("jax_debug_nans") or _compat.setting("jax_debug_infs"))


def unchecked() -> contextlib.AbstractContextManager[Any]:
    """A context without JAX's own check, which knows neither the operators of the step nor how to find the one."""
    stack = contextlib.ExitStack()
    stack.enter_context(jax.debug_nans(False))
    stack.enter_context(jax.debug_infs(False))
    return stack


def check_results(program: Program, arguments: Sequence[Any], results: Sequence[Any]) -> None:
    """Raise FloatingPointError as `jax.jit` would, naming the operator and the line of the step.

    Args:
      program: the traced step.
      arguments: its flat arguments, not donated.
      results: of the planned program for them.
    """
    bad = [path for path, x in zip(program.out_paths, results, strict=True) if _is_bad(x)]
    if not bad:
        return
    _evaluate(program, arguments)
    raise FloatingPointError(
        f"invalid value in the result {bad[0] or 'of the step'}, and in none of its operators when they run one by one"
    )


def _is_bad(x: Any) -> bool:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return False
    nan = _compat.setting("jax_debug_nans") and bool(jnp.isnan(x).any())
    return bool(nan or (_compat.setting("jax_debug_infs") and bool(jnp.isinf(x).any())))


def _on_device(x: Any) -> Any:
    """An argument where operators can run beside others: not in the memory of the host."""
    return jax.device_put(x, x.sharding.with_memory_kind("device")) if lives_on_host(x) else x


def _evaluate(program: Program, arguments: Sequence[Any]) -> None:
    """Run the operators one by one; JAX checks each of them."""
    env = dict(zip(program.inputs, map(_on_device, arguments), strict=True))
    env.update({t.index: t.value for t in program.tensors if t.kind in ("literal", "constant")})
    for eqn in program.equations:
        operands = [env[t] for t in eqn.operands]
        if eqn.name == "sharding_constraint":
            env.update(zip(eqn.results, operands, strict=True))
            continue
        params = as_traced(eqn)
        try:
            if eqn.name in (CUT, JOIN):
                results = [operands[0].reshape(program.tensors[eqn.results[0]].shape)]
            else:
                results = _compat.bind_like(eqn.origin, eqn.primitive, params, operands, eqn.name_stack)
        except FloatingPointError as error:
            where = _compat.eqn_source_line(eqn.origin) or "unknown line"
            raise FloatingPointError(f"{error}, at {where}") from None
        env.update(zip(eqn.results, results, strict=True))
