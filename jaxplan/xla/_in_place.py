"""Results written over operands: updates of tables, values handed from trip to trip, branches that change nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from jaxplan.ir import REGION_OUT, Equation, StepGraph
from jaxplan.xla._effects import Overwrite


def reuse_in_place(
    graph: StepGraph,
    overwritten: Sequence[Overwrite],
    materialised: Sequence[bool],
    death: list[int],
    late: Mapping[int, int],
) -> None:
    """End the live range of an overwritten operand right before its result's begins; ``death`` is changed.

    A scatter overwrites its operand, and a loop its initial values, where nothing reads them later. A branch that
    returns its operand makes a `cond` overwrite it. A carry is one buffer throughout the loop: the next trip's value
    takes its place once the body has read it for the last time.

    Args:
      overwritten: operands that results may take.
      materialised: per tensor, whether it is a buffer of its own.
      death: per tensor, the last equation that reads it, exits not counted for carries as they enter a body.
      late: equations that run at another place than theirs -> there.
    """
    inputs = set(graph.program.inputs)
    of_equation: dict[int, list[int]] = defaultdict(list)
    for effect in overwritten:
        of_equation[effect.equation].append(effect.tensor)
    for eqn in graph.program.equations:
        if eqn.name == REGION_OUT and eqn.params["role"] == "carry":
            _carry(graph, of_equation, eqn, materialised, death, late)
        for t in of_equation.get(eqn.index, ()):
            if materialised[t] and t not in inputs and death[t] == eqn.index:
                death[t] = eqn.index - 1


def _carry(
    graph: StepGraph,
    overwritten: Mapping[int, Sequence[int]],
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
        over = family == "elementwise" or before in overwritten.get(made, ())
        if death[before] < runs or (death[before] == runs and over):
            end = runs - 1
    death[before] = end
