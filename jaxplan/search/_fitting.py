"""A plan with a compiled program that fits: the program is compiled anyway, and its memory is read before it runs."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from jaxplan.core._log import warn_once
from jaxplan.core._units import format_bytes
from jaxplan.plans._infeasible import infeasible_error

if TYPE_CHECKING:
    from jaxplan.frontend._call import Call
    from jaxplan.partition import PlannedFunction
    from jaxplan.plans._frontier import Frontier
    from jaxplan.plans._plan import Plan

_REFUSED = "RESOURCE_EXHAUSTED"
"""How the compiler for TPUs refuses a program that is too large."""

_NEXT_MSG = (
    "{name}: {rejected} above the limit of {limit} per device as compiled; taken is {label} ({summary}): "
    "{predicted} predicted, {compiled} compiled"
)
_REFERENCE_MSG = (
    "{name}: {label} needs {compiled} per device as compiled, {predicted} predicted, and the limit is {limit}: it is "
    "taken all the same, because it was chosen by name"
)


def fitting_run(
    frontier: Frontier, run: PlannedFunction, call: Call, name: str
) -> tuple[PlannedFunction, int]:
    """The planned step, or that of the next plan with a compiled program that fits; and how many others were compiled.

    The next one is the next leaner point of the frontier that should fit, corrected by the median ratio of compiled
    to predicted memory; when none should, the leanest that was not tried. A reference strategy off the
    frontier was chosen by name, and is kept.

    Args:
      run: of the choice; it is compiled here unless it was.

    Raises:
      InfeasibleError: no plan fits; names the least compiled memory.
    """
    limit, choice = frontier.memory_limit_bytes, run.plan
    if _fits(run, call, limit):
        return run, 0
    if choice not in frontier.points:
        warn_once(_message(_REFERENCE_MSG, frontier, run.plan, name))
        return run, 0
    place = frontier.points.index(choice)
    left = [*reversed(frontier.points[:place]), *frontier.points[place + 1 :]]
    tried = [run.plan]
    while left:
        plan = _next(left, tried, limit or 0)
        left.remove(plan)
        candidate = plan.jit(list(run.mesh.devices.flat), backend=run.backend)
        if _fits(candidate, call, limit):
            said = " and ".join(_described(frontier, plan) for plan in tried)
            rejected = f"{said} {'is' if len(tried) == 1 else 'are'}"
            warn_once(_message(_NEXT_MSG, frontier, candidate.plan, name, rejected=rejected))
            return candidate, len(tried)
        tried.append(candidate.plan)
    raise infeasible_error([plan for plan in tried if plan.verified is not None] or tried, limit or 0)


def _fits(run: PlannedFunction, call: Call, limit: int | None) -> bool:
    """Whether the compiled program is within the limit; where the compiler does not say, it is taken to be."""
    try:
        num_bytes = run.compile(call)
    except Exception as error:
        if _REFUSED not in str(error):
            raise
        return False
    return num_bytes is None or limit is None or num_bytes <= limit


def _next(left: list[Plan], tried: list[Plan], limit: int) -> Plan:
    ratio = median([plan.memory_bytes / plan.prediction.memory_bytes for plan in tried])
    hopeful = (plan for plan in left if plan.memory_bytes * ratio <= limit)
    return next(hopeful, min(left, key=lambda plan: plan.memory_bytes))


def _message(text: str, frontier: Frontier, plan: Plan, name: str, **more: str) -> str:
    return text.format(
        name=name,
        label=frontier.label(plan),
        summary=plan.summary,
        predicted=format_bytes(plan.prediction.memory_bytes),
        compiled="unknown" if plan.verified is None else format_bytes(plan.memory_bytes),
        limit="none" if frontier.memory_limit_bytes is None else format_bytes(frontier.memory_limit_bytes),
        **more,
    )


def _described(frontier: Frontier, plan: Plan) -> str:
    if plan.verified is None:
        return f"{frontier.label(plan)}, refused by the compiler for its size,"
    predicted, compiled = format_bytes(plan.prediction.memory_bytes), format_bytes(plan.memory_bytes)
    return f"{frontier.label(plan)} ({predicted} predicted, {compiled} compiled)"
