"""Layers of loops in the search: the step as it is, and the same step with layers of its loops recomputed.

Each way is a program of its own (`jaxplan.ir._loop_remat`) that is planned like any other; the frontier holds the plans
of all of them that nothing beats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from jaxplan.core._interrupt import current
from jaxplan.errors import InfeasibleError
from jaxplan.ir import LoopRemat, LoopRematPolicy, StepGraph, loop_recomputed_graph
from jaxplan.ir.microbatch import NotSeparableError
from jaxplan.plans._frontier import Frontier
from jaxplan.search._programs import PlanGraph, leanest_of, merged

_POLICIES: tuple[LoopRematPolicy, ...] = ("contractions", "named", "all")
"""From that which keeps most."""
_SHARES = 8
"""Shares of layers are so many parts of all: each share is a program to plan."""
_COSTS = 1.01
"""A way that takes this much longer than the step as it is costs time, so that some layers cost less."""

_Planned = Frontier | InfeasibleError


def plan_with_loops(graph: StepGraph, asked: bool | None, plan_graph: PlanGraph) -> Frontier:
    """The frontier of a step, with layers of its loops recomputed as asked for; by default, where nothing fits.

    Asked for, all layers are recomputed in each way, and half of them where all cost time. By default the first way
    that fits is taken, and as many layers as are needed, by how much memory all of them save.

    Raises:
      InfeasibleError: no plan fits; that of the leanest.
    """
    if asked is False or not _may_have_layers(graph):
        return plan_graph(graph)
    as_it_is = _planned(graph, plan_graph)
    if isinstance(as_it_is, Frontier) and not asked:
        return as_it_is
    planned = [as_it_is, *_ways(graph, as_it_is, bool(asked), plan_graph)]
    found = [of for of in planned if isinstance(of, Frontier)]
    if not found:
        raise leanest_of([of for of in planned if isinstance(of, InfeasibleError)])
    return merged(found)


def _may_have_layers(graph: StepGraph) -> bool:
    """Whether there is a loop of the forward pass and one of the backward pass."""
    program = graph.program
    if program.source is None or program.recomputed_loops is not None:
        return False
    phases = {program.equations[of.start].phase for of in program.regions if of.kind == "scan"}
    return {"forward", "backward"} <= phases


def _planned(graph: StepGraph, plan_graph: PlanGraph) -> _Planned:
    try:
        return plan_graph(graph)
    except InfeasibleError as error:
        return error


def _planned_form(graph: StepGraph, plan_graph: PlanGraph) -> _Planned | None:
    """The plans of a form of the step; None where its loops cannot be worked through in the slices asked for."""
    try:
        return _planned(graph, plan_graph)
    except NotSeparableError:
        return None


def _ways(graph: StepGraph, as_it_is: _Planned, every: bool, plan_graph: PlanGraph) -> Iterator[_Planned]:
    """Plans or errors of the ways to recompute layers, every one or the first that fits; fewer layers come first."""
    before, rest = as_it_is, None
    for policy in _POLICIES:
        again = loop_recomputed_graph(graph, LoopRemat(policy=policy))
        if again is graph or current().happened:
            continue
        of_all = _planned_form(again, plan_graph)
        if of_all is None:
            continue
        share = _share(before, of_all, policy) if isinstance(of_all, Frontier) else None
        if share and not current().happened:
            some = LoopRemat(policy=policy, share=share, rest=rest)
            of_some = _planned_form(loop_recomputed_graph(graph, some), plan_graph)
            yield from [] if of_some is None else [of_some]
        yield of_all
        if isinstance(of_all, Frontier) and not every:
            return
        before, rest = of_all, policy


def _share(before: _Planned, of_all: Frontier, policy: LoopRematPolicy) -> float | None:
    """A share of the layers that is worth a plan between the way ``before`` and all of them; None for none."""
    if isinstance(before, Frontier):
        return 0.5 if of_all.fastest().time_seconds > _COSTS * before.fastest().time_seconds else None
    needed, limit = before.smallest_memory_bytes, of_all.memory_limit_bytes
    if policy == "contractions" or needed is None or limit is None:
        return None  # values between contractions take less time to recompute than to stack
    saved = needed - of_all.leanest().memory_bytes
    share = math.ceil(_SHARES * (needed - limit) / saved) / _SHARES if saved > 0 else 1.0
    return share if 0 < share < 1 else None
