"""What writes over what it reads: updates of tables, values handed from trip to trip, branches that change nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

from jaxplan.ir import REGION_IN, REGION_OUT, Equation, StepGraph

LARGE_PARAMETER_BYTES = 4 * 2**20
"""From so many bytes on the lowering says when a parameter is gathered, and makes gradients of tables one after the
other; smaller ones the compiler combines (docs/lowering.md)."""


def hand_over(graph: StepGraph, materialised: Sequence[bool], death: list[int]) -> None:
    """Let what is written over die right before the result is born; ``death`` is changed.

    A scatter writes over what it adds to, and a loop over the values that it starts from, where nobody reads them
    later. A branch that hands on what it was given makes a `cond` write over it. A carry is one buffer throughout the
    loop: what it will be in the next trip takes its place once the body has read it for the last time.

    Args:
      materialised: per tensor, whether it is a buffer of its own.
      death: per tensor, the last equation that reads it, exits not counted for carries as they enter a body.
    """
    inputs = set(graph.program.inputs)
    for eqn in graph.program.equations:
        if eqn.name == REGION_OUT and eqn.params["role"] == "carry":
            _carry(graph, eqn, materialised, death)
        for t in _written_over(graph, eqn):
            if materialised[t] and t not in inputs and death[t] == eqn.index:
                death[t] = eqn.index - 1


def _written_over(graph: StepGraph, eqn: Equation) -> Iterator[int]:
    """Operands in whose buffers the results may lie."""
    role = eqn.params["role"] if eqn.name in (REGION_IN, REGION_OUT) else ""
    if graph.rules[eqn.index].family == "scatter" or (eqn.name == REGION_IN and role == "carry"):
        yield eqn.operands[0]
    elif eqn.name == REGION_OUT and role in ("carry", "branch"):
        for t in eqn.operands:
            yield t
            made = graph.values.producer[t]
            by = graph.program.equations[made] if made >= 0 else eqn
            if by.name == REGION_IN and by.params["role"] == "operand":
                yield by.operands[0]


def _carry(graph: StepGraph, leaves: Equation, materialised: Sequence[bool], death: list[int]) -> None:
    """When a carry as it enters a body makes way: for what follows it, or when the loop ends."""
    before, after = leaves.operands
    made = graph.values.producer[after]
    start = graph.program.regions[leaves.params["region"]].start
    end = max(death[before], leaves.index - 1)
    if materialised[after] and made > start and after != before:
        over = set(_written_over(graph, graph.program.equations[made]))
        if death[before] < made or (death[before] == made and before in over):
            end = made - 1
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
