"""A plan that is given for a step, and a call of that step with another batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxplan.errors import PlanMismatchError
from jaxplan.frontend._absent_gpu import assumption_for, traced_under
from jaxplan.frontend._options import Options
from jaxplan.ir import Program, analyse, parse_aval, trace
from jaxplan.plans._frontier import Frontier
from jaxplan.plans._plan import Plan
from jaxplan.search._bind import Binder, read_plan_file


def plan_of_other_batch(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    mismatch: PlanMismatchError,
) -> Plan:
    """The plan that options name, bound to the step with the batch that it was made for.

    The step is traced with that batch, so that its program is compared with the plan's.

    Raises:
      PlanMismatchError: ``mismatch`` itself, where the call and the plan differ in more than sizes of data.
    """
    found = options.plan
    if not isinstance(found, Plan):
        found = read_plan_file(found, Binder(step=None, args=(), kwargs={}))
    plan = found.choose(options.choose) if isinstance(found, Frontier) else found
    if not isinstance(plan, Plan) or plan.stages:
        raise mismatch
    with traced_under(assumption_for(plan.topology)):
        program = trace(
            step,
            args,
            kwargs,
            donate_argnums=plan.donate_argnums,
            static_argnums=options.static_argnums,
            static_argnames=options.static_argnames,
        )
        shapes = _shapes_of_data(plan, program)
        if not shapes or program.source is None:
            raise mismatch
        before = program.source.resized(shapes)
    graph = analyse(dataclasses.replace(before, donate_argnums=program.donate_argnums))
    try:
        return Binder(step=step, args=(), kwargs={}, graph=graph).bind(plan)
    except PlanMismatchError:
        raise mismatch from None


def _shapes_of_data(plan: Plan, program: Program) -> dict[str, tuple[int, ...]]:
    """Path -> shape in the plan, of the arguments that differ; empty where more than the sizes of data do."""
    if plan.in_paths != program.in_paths:
        return {}
    found = {}
    for path, aval, now, role in zip(plan.in_paths, plan.in_avals, program.in_avals, plan.in_roles, strict=True):
        if aval != now:
            (dtype, shape), (dtype_now, shape_now) = parse_aval(aval), parse_aval(now)
            if role != "data" or dtype != dtype_now or len(shape) != len(shape_now):
                return {}
            found[path] = shape
    return found
