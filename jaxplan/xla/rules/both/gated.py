"""Images that are weighed by what their own mean makes: squeeze and excitation (https://arxiv.org/abs/1709.01507)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxplan.ir import CONTRACTION_FAMILIES, StepGraph
from jaxplan.xla._target import Target
from jaxplan.xla.rules.gpu.fusion import SQUEEZE_AND_EXCITATION
from jaxplan.xla.rules.tpu.channel_groups import grouped_results
from jaxplan.xla.rules.tpu.fusion import GATED_GROUPS

_TRANSCENDENTAL = frozenset(
    {"exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "erf", "erfc", "sin", "cos", "pow"}
)
"""Functions that make it dearer to compute a value twice than to write it."""
_RECTIFIERS = frozenset({"max", "min", "clamp"})


def gated(graph: StepGraph, target: Target, materialised: Sequence[bool]) -> Iterator[int]:
    """Values that a sum is taken of, and that are multiplied with what products make of the sum.

    The products part the two kernels that read such a value. Programs compiled for GPUs wrote it for the second one
    where it takes a transcendental function (the swish of an EfficientNet) or is what a rectifier makes of normalised
    values (a RegNet), and kept it; on TPUs it was computed again, but where a convolution of groups of channels is
    before it.
    """
    grouped = grouped_results(graph, target) if GATED_GROUPS.applies_to(target) else frozenset[int]()
    takes_costly = SQUEEZE_AND_EXCITATION.applies_to(target)
    if not takes_costly and not grouped:
        return
    equations, consumers, producer = graph.program.equations, graph.values.consumers, graph.values.producer
    for eqn in equations:
        if graph.rules[eqn.index].family != "reduction" or eqn.phase != "forward":
            continue
        t = eqn.operands[0]
        while (made := producer[t]) >= 0 and equations[made].name == "convert_element_type":
            t = equations[made].operands[0]
        others = {c for c in consumers[t] if equations[c].phase == "forward" and c > eqn.index}
        if materialised[t] or graph.values.free[t]:
            continue
        is_grouped = not grouped.isdisjoint(_computed_from(graph, t, materialised))
        if not (is_grouped or (takes_costly and _is_costly(graph, t, materialised))):
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


def _is_costly(graph: StepGraph, t: int, materialised: Sequence[bool]) -> bool:
    """Whether a value takes a transcendental function, element by element, of what is there, or a rectifier of what is
    computed of that."""
    program, size = graph.program, graph.program.tensors[t].num_elements
    for u in _computed_from(graph, t, materialised):
        if materialised[u] or graph.values.producer[u] < 0 or program.tensors[u].num_elements != size:
            continue
        eqn = program.equations[graph.values.producer[u]]
        if eqn.name in _TRANSCENDENTAL:
            return True
        if eqn.name in _RECTIFIERS and not all(materialised[v] or graph.values.free[v] for v in eqn.operands):
            return True
    return False


def _computed_from(graph: StepGraph, t: int, materialised: Sequence[bool]) -> set[int]:
    """A value, and what it is computed from element by element, as far as what is there."""
    stack, seen = [t], {t}
    while stack:
        u = stack.pop()
        made = graph.values.producer[u]
        if made < 0 or materialised[u] or graph.rules[made].family not in ("elementwise", "shape"):
            continue
        new = set(graph.program.equations[made].operands) - seen
        stack += new
        seen |= new
    return seen
