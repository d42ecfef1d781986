"""Seconds of the segments of a program that are executed apart, under one plan."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Sequence

from jaxplan.cost._model_builder import build_cost_model
from jaxplan.cost._prediction import Predictor
from jaxplan.cost._pricing import KEEP, REPEAT
from jaxplan.ir import Configuration, StepGraph
from jaxplan.mesh import Topology
from jaxplan.simulate._simulated_plan import PlanSimulator


def segment_seconds(
    graph: StepGraph,
    topology: Topology,
    configurations: Sequence[Configuration],
    repeated: Collection[int],
    ranges: Sequence[tuple[int, int]],
    lasting: Collection[int],
) -> tuple[list[float], list[float]]:
    """Compute and communication of each segment, one after the other, in seconds.

    Args:
      ranges: (first equation, end) of each segment.
      lasting: tensors of which each segment makes its own copies: their transfers run in every segment that reads them.
    """
    model = build_cost_model(graph, topology, configurations=[(config,) for config in configurations])
    wanted = frozenset(repeated)
    choices = [REPEAT if any(read in wanted for read in reads) else KEEP for reads in model.edge_reads]
    simulator = PlanSimulator(Predictor(model))
    assignment = [0] * len(configurations)
    starts = [start for start, _ in ranges]
    compute, communication = [0.0] * len(ranges), [0.0] * len(ranges)

    def segment(equation: int) -> int:
        return max(0, bisect.bisect_right(starts, equation) - 1)

    for equation, seconds in simulator.compute_by_equation(assignment).items():
        compute[segment(equation)] += seconds
    for move in simulator.moves(assignment, choices):
        readers = move.transfer.spans[move.number[1]].readers
        where = {segment(e) for e in readers} if move.transfer.tensor in lasting else {segment(min(readers))}
        for number in where:
            communication[number] += sum(seconds for _, seconds in move.steps)
    for equation, steps in simulator.inner(assignment, choices).items():
        communication[segment(equation)] += sum(seconds for _, seconds in steps)
    return compute, communication
