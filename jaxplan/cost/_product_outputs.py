"""What kernels of matrix products compute of their results before they write them (compilers that fuse into products).

Of attention scores in bfloat16 that are widened, and then scaled, biased or masked, compiled TPU programs keep float32:
the widening has one reader, so it and that reader are computed as the product is written. Where the widened value
itself has several readers, each of them widens, and bfloat16 is kept. So it is for logits, whatever is added to them.
"""

from __future__ import annotations

from jaxplan.ir import CONTRACTION_FAMILIES, StepGraph
from jaxplan.mesh import ChipSpec

_FUSED = ("elementwise", "shape")


def widened_outputs(graph: StepGraph, chip: ChipSpec) -> dict[int, int]:
    """Result of a product, of which another product of the same pass reads more -> what is written instead."""
    if not chip.fuses_products:
        return {}
    found = {}
    for eqn in graph.program.equations:
        if graph.rules[eqn.index].family in CONTRACTION_FAMILIES:
            written = _widened(graph, eqn.results[0])
            if written is not None and _reaches_product(graph, written, eqn.phase):
                found[eqn.results[0]] = written
    return found


def computed_of(graph: StepGraph, t: int, phase: str = "forward") -> set[int]:
    """What a pass computes of a value element by element."""
    stack, found = [t], {t}
    while stack:
        for e in graph.values.consumers[stack.pop()]:
            eqn = graph.program.equations[e]
            if eqn.phase == phase and graph.rules[e].family in _FUSED:
                stack += set(eqn.results) - found
                found.update(eqn.results)
    return found


def _widened(graph: StepGraph, t: int) -> int | None:
    """The last of the values of equal size that are computed of ``t``, each by the only reader of the one before; none
    unless one is wider than ``t`` and something else is computed of that."""
    tensors, equations, outputs = graph.program.tensors, graph.program.equations, graph.program.outputs
    narrow, computed, is_wide = tensors[t], 0, False
    while t not in outputs and len(readers := set(graph.values.consumers[t])) == 1:
        (e,) = readers
        result = equations[e].results[0]
        if graph.rules[e].family not in _FUSED or tensors[result].num_elements != narrow.num_elements:
            break
        computed += is_wide and graph.rules[e].family == "elementwise"
        is_wide = tensors[result].itemsize > narrow.itemsize
        t = result
    return t if is_wide and computed else None


def _reaches_product(graph: StepGraph, t: int, phase: str) -> bool:
    readers = {e for u in computed_of(graph, t, phase) for e in graph.values.consumers[u]}
    products = (e for e in readers if graph.rules[e].family in CONTRACTION_FAMILIES)
    return any(graph.program.equations[e].phase == phase for e in products)
