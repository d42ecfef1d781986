"""The kinds of a step's arguments, as named in the parts of the memory."""

from __future__ import annotations

from jaxplan.ir import StepGraph, equations_of_training

PARAMETERS = "parameters"
OTHER_STATE = "optimizer state"
BATCH = "batch and other arguments"
RESIDENTS = (PARAMETERS, OTHER_STATE, BATCH)


def resident_labels(graph: StepGraph) -> dict[int, str]:
    """Input tensor -> `PARAMETERS`, `OTHER_STATE` or `BATCH`.

    State are the inputs that come back updated. Operators of the backward pass depend on the parameters among
    them; moments, counts and running statistics only meet gradients, or nothing of the backward pass at all. Parameters
    that the step does not train are parameters too.
    """
    return graph.derive("resident labels", None, lambda: _labels(graph))


def _labels(graph: StepGraph) -> dict[int, str]:
    program = graph.program
    reaches = {t for e in equations_of_training(program) for t in program.equations[e].operands}
    labels = {}
    for t in program.inputs:
        state = PARAMETERS if t in reaches else OTHER_STATE
        labels[t] = state if t in graph.state else PARAMETERS if t in graph.stored else BATCH
    return labels
