"""Rows sorted for ragged dots in the search: the step as it is, and the same step with such rows sorted in blocks.

A mixture of experts that sorts its tokens by expert mixes all examples, so that no device could run it on a part of the
batch. Where only the inverse of the sort shows (`jaxplan.ir.local_sorts`), each device may sort its own tokens: a
program of its own that is planned like any other. The frontier holds the plans of both that nothing beats.
"""

from __future__ import annotations

import dataclasses

from jaxplan.ir import RAGGED_DOT, SortBlocks, StepGraph, sorted_graph
from jaxplan.ir.microbatch import NotSeparableError
from jaxplan.plans._frontier import Frontier
from jaxplan.search._programs import NoBatchError, PlanGraph, merged, plan_programs


def plan_with_sort_blocks(graph: StepGraph, plan_graph: PlanGraph, num_devices: int) -> Frontier:
    """The frontier of a step, with its rows for ragged dots sorted in a block per device too where that is equal.

    Raises:
      InfeasibleError: no plan fits; that of the leanest.
      NotSeparableError, ArgumentError: slices of the batch were asked for that neither program has.
    """
    blocks = in_sort_blocks(graph, num_devices)
    if blocks is graph:
        return plan_graph(graph)
    # One sort mixes all slices of a batch.
    found = plan_programs((graph, blocks), plan_graph, refusals=(NotSeparableError, NoBatchError))
    return _with_faster_references(merged(found), found)


def in_sort_blocks(graph: StepGraph, num_devices: int) -> StepGraph:
    """The step with rows sorted in blocks; the same one for each search, and itself where it sorts none so."""
    program = graph.program
    if num_devices == 1 or program.sort_blocks is not None or program.source is None:
        return graph
    if not any(eqn.name == RAGGED_DOT for eqn in program.equations):
        return graph
    return graph.derive("sort_blocks", num_devices, lambda: sorted_graph(graph, SortBlocks(num=num_devices)))


def _with_faster_references(frontier: Frontier, found: list[Frontier]) -> Frontier:
    """Each reference of the program that runs it in less time; absent are those that neither has."""
    references = {}
    for of in found:
        for name, plan in of.references.items():
            if name not in references or plan.time_seconds < references[name].time_seconds:
                references[name] = plan
    absent = {name: why for name, why in found[0].absent.items() if name not in references}
    return dataclasses.replace(frontier, references=references, absent=absent)
