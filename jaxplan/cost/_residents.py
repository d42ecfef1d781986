"""What the arguments of a step are, for people who ask what the memory is made of."""

from __future__ import annotations

from jaxplan.ir import StepGraph

PARAMETERS = "parameters"
OTHER_STATE = "optimizer state"
BATCH = "batch and other arguments"
RESIDENTS = (PARAMETERS, OTHER_STATE, BATCH)


def resident_labels(graph: StepGraph) -> dict[int, str]:
    """Input tensor -> `PARAMETERS`, `OTHER_STATE` or `BATCH`.

    State is what the step returns updated. Of that, a parameter is what an operator of the backward pass depends
    on; moments, counts and running statistics only meet gradients, or nothing of the backward pass at all. Parameters
    that the step does not train are parameters too.
    """
    program = graph.program
    reaches: set[int] = set()
    for eqn in reversed(program.equations):
        if eqn.phase == "backward" or (eqn.phase == "forward" and any(t in reaches for t in eqn.results)):
            reaches.update(eqn.operands)
    labels = {}
    for t in program.inputs:
        state = PARAMETERS if t in reaches else OTHER_STATE
        labels[t] = state if t in graph.state else PARAMETERS if t in graph.stored else BATCH
    return labels
