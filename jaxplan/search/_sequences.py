"""Long sequences in the search: the step as it is, and the same step with its attention in blocks of keys.

Where a sequence is split, keys and values go round a ring, or heads are exchanged and keys gathered, whichever receives
fewer bytes: two programs (`jaxplan.ir.attention`) that are planned like any other. The frontier holds the plans of all
that nothing beats. Both are looked at where scores are long enough to matter, so that other steps are planned in the
time that they took.
"""

from __future__ import annotations

from jaxplan.ir import StepGraph
from jaxplan.ir.attention import HEADS, RING, attention_graph, largest_scores
from jaxplan.plans._frontier import Frontier
from jaxplan.search._programs import PlanGraph, merged, plan_programs

LEAST_SHARE = 0.01
"""Blocks are looked at where a device's share of the scores of one attention takes this share of its memory."""


def plan_with_sequences(
    graph: StepGraph, plan_graph: PlanGraph, limit_bytes: int | None, num_devices: int
) -> Frontier:
    """The frontier of a step, with its attention in blocks too where its sequences are long.

    Args:
      limit_bytes: of one device; without one nothing is long.

    Raises:
      InfeasibleError: no plan fits, with blocks neither; that of the leanest.
    """
    if not _are_long(graph, limit_bytes, num_devices):
        return plan_graph(graph)
    return merged(plan_programs((graph, *(_in_blocks(graph, form) for form in (RING, HEADS))), plan_graph))


def _in_blocks(graph: StepGraph, form: str) -> StepGraph:
    """The step with its attention in blocks; the same one for each search, with all that the last has derived."""
    return graph.derive(("attention", form), None, lambda: attention_graph(graph, form))


def _are_long(graph: StepGraph, limit_bytes: int | None, num_devices: int) -> bool:
    """Whether the scores of some attention take a share of memory; a cheap bound comes first."""
    if limit_bytes is None or graph.program.sequences is not None or num_devices == 1:
        return False
    least = LEAST_SHARE * limit_bytes * num_devices
    tensors = graph.program.tensors
    maxima = (eqn.operands[0] for eqn in graph.program.equations if eqn.name == "reduce_max")
    return any(tensors[t].num_bytes >= least for t in maxima) and largest_scores(graph) >= least
