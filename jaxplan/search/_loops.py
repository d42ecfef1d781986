"""Layers of loops in the search: the step as it is, and the same step with layers of its loops recomputed.

Each way is a program of its own (`jaxplan.ir._loop_remat`) that is planned like any other; the frontier holds the plans
of all of them that nothing beats.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from jaxplan.ir import LoopRemat, StepGraph, loop_recomputed_graph
from jaxplan.plans._frontier import Frontier
from jaxplan.search._programs import PlanGraph, merged, plan_programs


def plan_with_loops(graph: StepGraph, asked: bool | None, plan_graph: PlanGraph) -> Frontier:
    """The frontier of a step, with layers of its loops recomputed as asked for; by default, where nothing fits.

    Raises:
      InfeasibleError: no plan fits; that of the leanest.
    """
    if asked is False or not _may_have_layers(graph):
        return plan_graph(graph)
    return merged(plan_programs(itertools.chain([graph], _recomputed(graph)), plan_graph, first_only=not asked))


def _may_have_layers(graph: StepGraph) -> bool:
    """Whether there is a loop of the forward pass and one of the backward pass."""
    program = graph.program
    if program.source is None or program.recomputed_loops is not None:
        return False
    phases = {program.equations[of.start].phase for of in program.regions if of.kind == "scan"}
    return {"forward", "backward"} <= phases


def _recomputed(graph: StepGraph) -> Iterator[StepGraph]:
    for policy in ("contractions", "all"):
        again = loop_recomputed_graph(graph, LoopRemat(policy=policy))
        if again is not graph:
            yield again
