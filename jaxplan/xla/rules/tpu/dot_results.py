"""What kernels of matrix products compute of their results before they write them (compilers that fuse into products).

Of attention scores in bfloat16 that are widened, and then scaled, biased or masked, compiled TPU programs keep float32:
the widening has one reader, so it and that reader are computed as the product is written. What the backward pass reads
on the way (a tanh that caps scores) it computes again of the scores: those are kept in bfloat16 beside. Where the
widened value itself has several readers, each of them widens, and bfloat16 is kept. So it is for logits, whatever is
added to them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from jaxplan.ir import CONTRACTION_FAMILIES, Equation, StepGraph
from jaxplan.xla._target import Target
from jaxplan.xla.rules.tpu.fusion import DOTS_WRITE_FUSED, GRADIENTS_OF_WIDENED, WIDENED_SCORES

_FUSED = ("elementwise", "shape")


def widened_outputs(graph: StepGraph, target: Target) -> dict[int, int]:
    """Result of a product, of which another product of the same pass reads more -> what is written instead."""
    if not WIDENED_SCORES.applies_to(target):
        return {}
    found = {}
    for eqn in graph.program.equations:
        if graph.rules[eqn.index].family in CONTRACTION_FAMILIES:
            written = _widened(graph, eqn.results[0], eqn.phase)
            if written is not None and _reaches_product(graph, written, eqn.phase):
                found[eqn.results[0]] = written
    return found


def written_behind(graph: StepGraph, target: Target, materialised: Sequence[bool]) -> Iterator[int]:
    """Results of products of the backward pass that are not written: one value of their size is computed of them,
    element by element, and nothing else.

    So compiled TPU programs make the gradient in front of a gelu: the product's kernel writes that. Where a plan sums
    such a result over devices, the sum counts, and what each of them adds to it does not.
    """
    program, consumers = graph.program, graph.values.consumers
    for eqn in program.equations if DOTS_WRITE_FUSED.applies_to(target) else ():
        t = eqn.results[0]
        if eqn.phase != "backward" or graph.rules[eqn.index].family not in CONTRACTION_FAMILIES:
            continue
        stack, written = [t] if materialised[t] and t not in program.outputs else [], set()
        while stack:
            u = stack.pop()
            readers = [program.equations[e] for e in consumers[u]]
            results = {r for e in readers for r in e.results}
            size = program.tensors[t].num_elements
            if any(graph.rules[e.index].family != "elementwise" for e in readers) or any(
                program.tensors[r].num_elements != size for r in results
            ):
                written.clear()
                break
            written.update(r for r in results if materialised[r])
            stack += [r for r in results if not materialised[r]]
        if len(written) == 1:
            yield t


def gradients_of_widened(graph: StepGraph, target: Target, wide: Collection[int]) -> Iterator[int]:
    """Gradients of scores that are kept in float32 (``wide``), narrowed again for the two products that read them.

    Compiled TPU programs write them, beside the scores and the gradient of what these are normalised to; those of
    scores in bfloat16 are computed inside of both products.
    """
    equations = graph.program.equations
    of_wide: set[int] = set()
    for t in wide if GRADIENTS_OF_WIDENED.applies_to(target) else ():
        of_wide |= {r for u in computed_of(graph, t) for r in computed_of(graph, u, "backward")}
    products = [e for e in equations if e.phase == "backward" and graph.rules[e.index].family in CONTRACTION_FAMILIES]
    for eqn in products if of_wide else ():
        size = graph.program.tensors[eqn.results[0]].num_elements
        for t in sorted(computed_of(graph, eqn.results[0], "backward") & of_wide):
            readers = [e for e in products if t in e.operands]
            if len(readers) > 1 and graph.program.tensors[t].num_elements == size:
                yield t


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


def _widened(graph: StepGraph, t: int, phase: str) -> int | None:
    """The last of the values of equal size that are computed of ``t``, each by the only reader in this pass of the one
    before; none unless one is wider than ``t`` and something else is computed of that."""
    tensors, equations, outputs = graph.program.tensors, graph.program.equations, graph.program.outputs
    narrow, computed, is_wide = tensors[t], 0, False
    while t not in outputs:
        readers = {e for e in graph.values.consumers[t] if _serves(graph, equations[e], phase)}
        if len(readers) != 1:
            break
        (e,) = readers
        result = equations[e].results[0]
        if graph.rules[e].family not in _FUSED or tensors[result].num_elements != narrow.num_elements:
            break
        computed += is_wide and graph.rules[e].family == "elementwise"
        is_wide = tensors[result].itemsize > narrow.itemsize
        t = result
    return t if is_wide and computed else None


def _serves(graph: StepGraph, eqn: Equation, phase: str) -> bool:
    """Whether a pass reads what an equation of it makes: the derivative of a tanh it computes for the other."""
    if eqn.phase != phase or graph.rules[eqn.index].family not in _FUSED:
        return eqn.phase == phase
    of_results = {u for r in eqn.results for u in computed_of(graph, r, phase)}
    readers = {e for u in of_results for e in graph.values.consumers[u]}
    of_pass = [e for e in readers if graph.program.equations[e].phase == phase]
    is_read = any(graph.rules[e].family not in _FUSED for e in of_pass)
    return is_read or not of_results.isdisjoint(graph.program.outputs)


def _reaches_product(graph: StepGraph, t: int, phase: str) -> bool:
    readers = {e for u in computed_of(graph, t, phase) for e in graph.values.consumers[u]}
    products = (e for e in readers if graph.rules[e].family in CONTRACTION_FAMILIES)
    return any(graph.program.equations[e].phase == phase for e in products)
