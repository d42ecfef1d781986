"""Products that make gradients of parameters, and until when the compiler puts them off."""

from __future__ import annotations

from jaxplan.ir import CONTRACTION_FAMILIES, UNGROUPED, StepGraph
from jaxplan.mesh import ChipSpec


def put_off(graph: StepGraph, chip: ChipSpec) -> dict[int, int]:
    """Product that makes the gradient of a parameter -> the equation by which it is made.

    Nothing waits for such a product. Compiled GPU and TPU programs were seen to make it after the input
    gradient that is next, and after what comes of that in the same pass over memory, so what it reads is there
    until then; a convolution after all passes that come of that, before the next product. Where putting it off
    for longer would matter, the lowering asks for it (`jaxplan.partition`).
    """
    if not (chip.is_gpu or chip.is_tiled):
        return {}
    program = graph.program
    products = [
        e.index
        for e in program.equations
        if e.phase == "backward" and e.region < 0 and graph.rules[e.index].family in CONTRACTION_FAMILIES
    ]
    result: dict[int, int] = {}
    following = after = None
    for e in reversed(products):
        if not is_gradient(graph, program.equations[e].results[0]):
            following, after = e, following
        elif following is not None:
            result[e] = following if after is None else after
    return result


def is_gradient(graph: StepGraph, t: int) -> bool:
    """Whether an update reads a tensor, or what is cast or transposed of it."""
    for c in graph.values.consumers[t]:
        eqn, group = graph.program.equations[c], graph.grouping.equation_group[c]
        if group != UNGROUPED and graph.grouping.groups[group].kind == "state":
            return True
        is_view = graph.rules[c].family in ("elementwise", "shape") and len(eqn.operands) == 1
        if is_view and is_gradient(graph, eqn.results[0]):
            return True
    return False
