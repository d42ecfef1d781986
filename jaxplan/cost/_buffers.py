"""Which values become buffers, and from when to when they live.

The compiler fuses element-wise chains, so most values of a jaxpr never exist in memory. A value is *materialised* when
an operator that cannot be fused makes or reads it; the others are recomputed inside the fusions that read them. What
a backward fusion needs of an unmaterialised forward value it recomputes from materialised ones: the narrowest such
value of the chain is the one that is saved.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.ir import StepGraph

FUSIBLE_FAMILIES = frozenset({"elementwise", "shape", "source", "rng"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Lifetimes in equation indices; index -1 is before the first equation.

    Attributes:
      materialised: per tensor, whether it is a buffer of its own.
      birth: equation that makes it (-1 for inputs).
      death: last equation whose fusion reads it; the number of equations for program outputs.
      turning_point: index of the first backward equation (the number of equations when there is none).
      saved: materialised tensors made before and read after the turning point, inputs excluded.
    """

    materialised: tuple[bool, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]
    turning_point: int
    saved: tuple[int, ...]


def analyse_buffers(graph: StepGraph) -> Buffers:
    """Decide materialisation and lifetimes in two passes over the equations."""
    program, values = graph.program, graph.values
    num_equations = len(program.equations)
    turning = next((e.index for e in program.equations if e.phase == "backward"), num_equations)
    materialised = _materialised(graph, turning)
    death = [-1] * len(program.tensors)
    for t in program.outputs:
        death[t] = num_equations
    for eqn in reversed(program.equations):
        inner = [death[r] for r in eqn.results if not materialised[r]]
        outer = [eqn.index for r in eqn.results if materialised[r]]
        last = max(inner + outer, default=eqn.index)
        for t in eqn.operands:
            death[t] = max(death[t], last)
    saved = tuple(
        t.index
        for t in program.tensors
        if materialised[t.index] and -1 < values.producer[t.index] < turning <= death[t.index]
    )
    return Buffers(
        materialised=tuple(materialised),
        birth=values.producer,
        death=tuple(death),
        turning_point=turning,
        saved=saved,
    )


def _materialised(graph: StepGraph, turning: int) -> list[bool]:
    program = graph.program
    result = [False] * len(program.tensors)
    for t in program.outputs:
        result[t] = bool(program.tensors[t].shape)
    for eqn in program.equations:
        if graph.rules[eqn.index].family not in FUSIBLE_FAMILIES or eqn.name == "optimization_barrier":
            for t in (*eqn.operands, *eqn.results):
                reads_free = graph.values.free[t] or program.tensors[t].kind == "literal"
                result[t] = not reads_free and (result[t] or not _fuses_into_reduction(graph, eqn.index, t))
    for t in program.inputs:
        result[t] = True
    for eqn in program.equations:
        if _is_junction(graph, eqn.index):
            result[eqn.results[0]] = True
    _save_residuals(graph, turning, result)
    return result


def _fuses_into_reduction(graph: StepGraph, equation: int, t: int) -> bool:
    """A reduction's operand is computed inside its fusion."""
    eqn = graph.program.equations[equation]
    return graph.rules[equation].family == "reduction" and t in eqn.operands


def _is_junction(graph: StepGraph, equation: int) -> bool:
    """A sum of two activations that several readers share (a residual stream) is written once, not recomputed."""
    eqn, tensors = graph.program.equations[equation], graph.program.tensors
    if graph.rules[equation].family != "elementwise" or len(graph.values.consumers[eqn.results[0]]) < 2:
        return False
    if eqn.name not in ("add", "add_any", "sub"):
        return False
    size = tensors[eqn.results[0]].num_elements
    large = {t for t in eqn.operands if tensors[t].num_elements == size and not graph.values.free[t]}
    return len(large) >= 2 and size > 1


def _save_residuals(graph: StepGraph, turning: int, materialised: list[bool]) -> None:
    """Make a buffer of what backward fusions need and cannot recompute from buffers that live anyway."""
    program, values = graph.program, graph.values
    kept = set(program.inputs)
    for t in program.tensors:
        if materialised[t.index] and any(c >= turning for c in values.consumers[t.index]):
            kept.add(t.index)
    for eqn in program.equations[:turning]:
        for t in eqn.results:
            if t in kept or not program.tensors[t].shape or values.free[t]:
                continue
            if any(c >= turning for c in values.consumers[t]):
                keep = _narrowest(graph, t, kept)
                if keep is not None:
                    kept.add(keep)
                    materialised[keep] = True


def _narrowest(graph: StepGraph, t: int, kept: set[int]) -> int | None:
    """The value to keep so that ``t`` can be recomputed; ``None`` when what is kept already suffices."""
    program, values = graph.program, graph.values
    missing = _missing_ancestors(graph, t, kept)
    if not missing:
        return None
    while True:
        index = values.producer[t]
        if index < 0 or graph.rules[index].family not in FUSIBLE_FAMILIES:
            return t
        needed = [o for o in set(program.equations[index].operands) if _missing_ancestors(graph, o, kept)]
        if len(needed) != 1 or program.tensors[needed[0]].num_bytes > program.tensors[t].num_bytes:
            return t
        t = needed[0]


def _missing_ancestors(graph: StepGraph, t: int, kept: set[int]) -> set[int]:
    """Unfusible sources, not kept, from which ``t`` would be recomputed."""
    program, values = graph.program, graph.values
    missing, stack, seen = set(), [t], set()
    while stack:
        u = stack.pop()
        if u in seen or u in kept or values.free[u] or not program.tensors[u].shape:
            continue
        seen.add(u)
        index = values.producer[u]
        if index < 0:
            continue
        if graph.rules[index].family not in FUSIBLE_FAMILIES or len(seen) > 64:
            missing.add(u)
            continue
        stack.extend(program.equations[index].operands)
    return missing
