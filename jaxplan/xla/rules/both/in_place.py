"""Results written over operands: updates of tables, values handed from trip to trip, branches that change nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

from jaxplan.ir import CONTRACTION_FAMILIES, REGION_IN, REGION_OUT, VIEW_PRIMITIVES, Equation, StepGraph
from jaxplan.xla._target import Target
from jaxplan.xla.rules.both.liveness import BRANCHES_IN_PLACE, CARRIES_IN_PLACE, SCATTERS_IN_PLACE


def sums_over_trips(graph: StepGraph) -> dict[int, int]:
    """Additions to a carry that nothing else in the body reads -> the equation they run behind: that of the summand.

    Programs compiled for GPUs add each gradient of a micro-batch up before they make the next, though the step may add
    all of them at the end of the body. Products that share an operand (gates of a recurrent cell) are made together.
    """
    values, equations = graph.values, graph.program.equations
    found: dict[int, int] = {}
    for eqn in equations:
        if eqn.name != REGION_OUT or eqn.params["role"] != "carry":
            continue
        before, after = eqn.operands
        made = values.producer[after]
        if (
            made < 0
            or equations[made].name not in ("add", "add_any")
            or before not in equations[made].operands
        ):
            continue
        if set(values.consumers[before]) == {made, eqn.index} and values.consumers[after] == (eqn.index,):
            found[made] = max(values.producer[t] for t in equations[made].operands)
    inside = {
        made: e for made, e in found.items() if e >= 0 and equations[e].region == equations[made].region
    }
    last: dict[int, int] = {}
    for e in inside.values():
        for t in _factors(graph, e):
            last[t] = max(e, last.get(t, e))
    together = {made: [last[t] for t in _factors(graph, e)] for made, e in inside.items()}
    return {made: max(ends) for made, ends in together.items() if ends}


def _factors(graph: StepGraph, equation: int) -> tuple[int, ...]:
    """Value numbers of a dot's operands, for an equation that makes a view of its result; empty for others."""
    eqn = graph.program.equations[equation]
    while eqn.name in VIEW_PRIMITIVES and (made := graph.values.producer[eqn.operands[0]]) >= 0:
        eqn = graph.program.equations[made]
    is_product = graph.rules[eqn.index].family in CONTRACTION_FAMILIES
    return tuple(graph.values.number[t] for t in eqn.operands[:2]) if is_product else ()


def hand_over(
    graph: StepGraph, target: Target, materialised: Sequence[bool], death: list[int], late: Mapping[int, int]
) -> None:
    """End the live range of an overwritten operand right before its result's begins; ``death`` is changed.

    A scatter overwrites its operand, and a loop its initial values, where nobody reads them
    later. A branch that returns its operand makes a `cond` overwrite it. A carry is one buffer throughout the
    loop: the next trip's value takes its place once the body has read it for the last time.

    Args:
      materialised: per tensor, whether it is a buffer of its own.
      death: per tensor, the last equation that reads it, exits not counted for carries as they enter a body.
      late: equations that run at another place than theirs -> there.
    """
    inputs = set(graph.program.inputs)
    for eqn in graph.program.equations:
        if eqn.name == REGION_OUT and eqn.params["role"] == "carry":
            _carry(graph, target, eqn, materialised, death, late)
        for t in _written_over(graph, target, eqn):
            if materialised[t] and t not in inputs and death[t] == eqn.index:
                death[t] = eqn.index - 1


def _written_over(graph: StepGraph, target: Target, eqn: Equation) -> Iterator[int]:
    """Operands with buffers that the results may take."""
    role = eqn.params["role"] if eqn.name in (REGION_IN, REGION_OUT) else ""
    carries, branches = CARRIES_IN_PLACE.applies_to(target), BRANCHES_IN_PLACE.applies_to(target)
    if graph.rules[eqn.index].family == "scatter":
        yield from eqn.operands[:1] if SCATTERS_IN_PLACE.applies_to(target) else ()
    elif eqn.name == REGION_IN and role == "carry":
        yield from eqn.operands[:1] if carries else ()
    elif eqn.name == REGION_OUT and ((role == "carry" and carries) or (role == "branch" and branches)):
        for t in eqn.operands:
            yield t
            made = graph.values.producer[t]
            by = graph.program.equations[made] if made >= 0 else eqn
            if by.name == REGION_IN and by.params["role"] == "operand":
                yield by.operands[0]


def _carry(
    graph: StepGraph,
    target: Target,
    leaves: Equation,
    materialised: Sequence[bool],
    death: list[int],
    late: Mapping[int, int],
) -> None:
    """When a carry ends its live range in a body: at its successor, or when the loop ends.

    Element-wise functions of it are written over it.
    """
    before, after = leaves.operands
    made = graph.values.producer[after]
    start = graph.program.regions[leaves.params["region"]].start
    end = max(death[before], leaves.index - 1)
    if materialised[after] and made > start and after != before:
        runs, family = late.get(made, made), graph.rules[made].family
        over = family == "elementwise" or before in _written_over(graph, target, graph.program.equations[made])
        if death[before] < runs or (death[before] == runs and over):
            end = runs - 1
    death[before] = end


def cleared_together(graph: StepGraph) -> tuple[tuple[int, ...], ...]:
    """Results of scatters that start from the same constant, those of one loop by themselves.

    Compiled GPU programs were seen to make one constant of all of them, and the copy for each where the first is.
    """
    values, alike = graph.values, defaultdict[Hashable, list[int]](list)
    for eqn in graph.program.equations:
        if graph.rules[eqn.index].family == "scatter" and values.free[eqn.operands[0]]:
            alike[values.number[eqn.operands[0]], eqn.region].append(eqn.results[0])
    return tuple(tuple(results) for results in alike.values() if len(results) > 1)
