"""Arguments that are given in the memory of the host stay there: plans that move them to the devices are left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxplan.cost import offloadable_arguments
from jaxplan.errors import ArgumentError, UnsupportedError
from jaxplan.frontend._call import opened_call
from jaxplan.frontend._host_arguments import on_host
from jaxplan.frontend._options import Options
from jaxplan.frontend._step_options import StepOptions
from jaxplan.ir import StepGraph
from jaxplan.plans._frontier import Frontier
from jaxplan.plans._plan import Plan

_MOST_NAMED = 4
_CANNOT_MSG = (
    "{paths} live in the memory of the host (pinned_host), and a plan cannot keep them there.\n"
    "  expected: on the host only parameters, donated where they are trained, and state that is donated, comes back "
    "updated and is read by element-wise operators alone, such as the moments of Adam\n"
    "  likely cause: a batch or a counter was put on the host with the rest of a state, or donate_argnums leaves out "
    "what was put there\n"
    "  fix: put them on the devices, jax.device_put(x, x.sharding.with_memory_kind('device')), or leave the choice to "
    "the plan: jax.ShapeDtypeStruct without a sharding, and offload=True"
)
_OFF_MSG = (
    "{paths} live in the memory of the host (pinned_host), and offload=False keeps all state on the devices.\n"
    "  expected: one of both\n"
    "  fix: leave offload out, or put the arrays on the devices"
)
_NONE_MSG = (
    "no plan was found that keeps {paths} in the memory of the host (pinned_host), where they are given.\n"
    "  likely cause: the plans with state on the host are slower, and need no less memory; or parameters are given "
    "there for TPUs, where they stay on the devices\n"
    "  fix: put the arrays on the devices, jax.device_put(x, x.sharding.with_memory_kind('device'))"
)


def with_host_arguments(
    options: Options, step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Options, tuple[int, ...]]:
    """The options of the search, and the positions of the leaves that live on the host.

    Raises:
      ArgumentError: some do, and ``offload`` is False.
    """
    takes = StepOptions.of(step, **options.trace_arguments)
    takes.check_numbers(args)
    with opened_call(step, takes, args, kwargs) as call:
        hosted = on_host(call.leaves)
        if hosted and options.offload is False:
            raise ArgumentError(_OFF_MSG.format(paths=_few([call.paths()[i] for i in hosted])))
    return (dataclasses.replace(options, offload=True) if hosted else options), hosted


def check_hosted(graph: StepGraph, hosted: Sequence[int]) -> None:
    """Raise ArgumentError for arguments on the host that no plan can keep there."""
    if hosted:
        could = offloadable_arguments(graph)
        astray = [graph.program.in_paths[i] for i in hosted if i not in could]
        if astray:
            raise ArgumentError(_CANNOT_MSG.format(paths=_few(astray)))


def keeping(frontier: Frontier, hosted: Sequence[int]) -> Frontier:
    """The plans of a frontier that keep arguments on the host.

    Raises:
      UnsupportedError: there is none.
    """
    if not hosted:
        return frontier

    def keeps(plan: Plan) -> bool:
        return plan.offload is not None and set(hosted) <= set(plan.offload.arguments)

    points = tuple(filter(keeps, frontier.points))
    if not points:
        paths = frontier.points[0].in_paths
        raise UnsupportedError(_NONE_MSG.format(paths=_few([paths[i] for i in hosted])))
    references = {name: plan for name, plan in frontier.references.items() if keeps(plan)}
    return dataclasses.replace(frontier, points=points, references=references)


def _few(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return ", ".join(paths[:_MOST_NAMED]) + more
