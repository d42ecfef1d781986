"""Images that are weighed by what their own mean makes: squeeze and excitation (https://arxiv.org/abs/1709.01507)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxplan.cost._fusion import is_costly
from jaxplan.ir import CONTRACTION_FAMILIES, StepGraph
from jaxplan.mesh import ChipSpec


def gated(graph: StepGraph, chip: ChipSpec, materialised: Sequence[bool]) -> Iterator[int]:
    """Values that a sum is taken of, and that are multiplied with what products make of the sum.

    The products part the two kernels that read such a value. Programs compiled for GPUs wrote it for the second one
    where it takes a transcendental function (the swish of an EfficientNet), and kept it; on TPUs it was
    computed again.
    """
    if not chip.is_gpu:
        return
    equations, consumers, producer = graph.program.equations, graph.values.consumers, graph.values.producer
    for eqn in equations:
        if graph.rules[eqn.index].family != "reduction" or eqn.phase != "forward":
            continue
        t = eqn.operands[0]
        while (made := producer[t]) >= 0 and equations[made].name == "convert_element_type":
            t = equations[made].operands[0]
        others = {c for c in consumers[t] if equations[c].phase == "forward" and c > eqn.index}
        if materialised[t] or graph.values.free[t] or not is_costly(graph, t, materialised):
            continue
        if others & _behind_products(graph, eqn.results[0], graph.program.tensors[t].num_elements):
            yield t


def _behind_products(graph: StepGraph, t: int, size: int) -> set[int]:
    """Forward equations that read what products make of a value, as far as all of it is smaller than ``size``."""
    program, found = graph.program, set()
    stack, seen = [(t, False)], {(t, False)}
    while stack:
        u, is_behind = stack.pop()
        for c in graph.values.consumers[u]:
            eqn = program.equations[c]
            if eqn.phase != "forward":
                continue
            if is_behind:
                found.add(c)
            through = is_behind or graph.rules[c].family in CONTRACTION_FAMILIES
            for r in eqn.results:
                is_small = program.tensors[r].num_elements < size or eqn.name == "broadcast_in_dim"
                if is_small and (r, through) not in seen:
                    seen.add((r, through))
                    stack.append((r, through))
    return found
