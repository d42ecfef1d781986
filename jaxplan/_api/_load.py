"""Read a plan or a frontier from its file, and bind it to the step that it was made for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxplan._api._auto import Auto
from jaxplan.plans._frontier import Frontier
from jaxplan.plans._plan import Plan
from jaxplan.search._bind import Binder, read_plan_file


def load(
    path: str | Path,
    step: Callable[..., Any] | None = None,
    *args: Any,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    **kwargs: Any,
) -> Plan | Frontier:
    """Read a plan or a frontier.

    Args:
      path: a file that `Plan.save` or `Frontier.save` wrote.
      step: the step; when given with its arguments the plan can run, and the program's fingerprint is checked.
        A step decorated with `auto` that has been called needs no arguments.
      args, kwargs: arguments of the step, arrays or `jax.ShapeDtypeStruct`.
      static_argnums, static_argnames: those of them that are Python values; a jitted step keeps its own.

    Raises:
      PlanFileError: not a plan file, another schema version, or too large.
      PlanMismatchError: the step is not the one that the plan was made for; names the difference.

    >>> import pathlib, tempfile, jax, jaxplan
    >>> def step(x):
    ...     return x * 2
    >>> x = jax.ShapeDtypeStruct((64, 8), "float32")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "plan.json"
    ...     jaxplan.plan(step, x, topology="cpu:8").fastest().save(path)
    ...     plan = jaxplan.load(path, step, x)
    >>> plan.topology.name
    'cpu:8'
    """
    binder = Binder(
        step=step._step if isinstance(step, Auto) else step,
        args=args,
        kwargs=kwargs,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        graph=step.graph if isinstance(step, Auto) else None,
    )
    return read_plan_file(path, binder)
