"""Results written over operands: updates of tables, values handed from trip to trip, branches that change nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

from jaxplan.ir import REGION_IN, REGION_OUT, Equation, StepGraph
from jaxplan.xla._target import Target
from jaxplan.xla.rules.both.liveness import BRANCHES_IN_PLACE, CARRIES_IN_PLACE, SCATTERS_IN_PLACE


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
