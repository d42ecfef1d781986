"""Read a plan, a frontier or a joint plan from its file, and bind it to the steps that it was made for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from jaxplan._api._auto import Auto
from jaxplan.errors import ArgumentError
from jaxplan.plans._frontier import Frontier
from jaxplan.plans._plan import Plan
from jaxplan.search._bind import Binder, read_joint_file, read_plan_file

if TYPE_CHECKING:
    from jaxplan.plans._joint import JointPlan
    from jaxplan.search._entry import StepToPlan

_BESIDE_STEPS_MSG = (
    "load takes steps by name, or one step with its arguments, and was given both.\n"
    '  fix: jaxplan.load(path, {"train": (train_step, (state, batch)), "eval": (eval_step, (params, x))}); a step with '
    "settings is jaxplan.trace(step, *args, static_argnums=...)"
)


@overload
def load(path: str | Path, step: None = None) -> Plan | Frontier | JointPlan: ...


@overload
def load(path: str | Path, step: Mapping[str, Any]) -> JointPlan: ...


@overload
def load(
    path: str | Path,
    step: Callable[..., Any],
    *args: Any,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    **kwargs: Any,
) -> Plan | Frontier: ...


def load(
    path: str | Path,
    step: Callable[..., Any] | Mapping[str, Any] | None = None,
    *args: Any,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    **kwargs: Any,
) -> Plan | Frontier | JointPlan:
    """Read a plan, a frontier or a joint plan.

    Args:
      path: a file that `Plan.save`, `Frontier.save` or `JointPlan.save` wrote.
      step: the step; when given with its arguments the plan can run, and the program's fingerprint is checked.
        A step decorated with `auto` that has been called needs no arguments. Of a joint plan: the steps by name, as
        `jaxplan.plan_together` took them.
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
    if isinstance(step, Mapping):
        if args or kwargs or static_argnums or static_argnames:
            raise ArgumentError(_BESIDE_STEPS_MSG)
        from jaxplan._api._together import steps_by_name  # reading the plan of one step needs no search

        return read_joint_file(path, {name: _binder(of) for name, of in steps_by_name(step, "load").items()})
    binder = Binder(
        step=step._step if isinstance(step, Auto) else step,
        args=args,
        kwargs=kwargs,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        graph=step.graph if isinstance(step, Auto) else None,
    )
    return read_plan_file(path, binder)


def _binder(of: StepToPlan) -> Binder:
    """Binds the plan of one of several steps to its program."""
    static = {name: of.options.trace_arguments[name] for name in ("static_argnums", "static_argnames")}
    return Binder(step=of.step, args=of.args, kwargs=of.kwargs, **static)
