"""Sixth pass: from which equation to which each buffer lives, one device or many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxplan.ir import REGION_IN, REGION_OUT, Equation, StepGraph
from jaxplan.xla._effects import Accumulate, Overwrite, Share
from jaxplan.xla._facts import walk
from jaxplan.xla._in_place import reuse_in_place
from jaxplan.xla._schedule import Schedule


def deaths(
    graph: StepGraph,
    overwritten: Sequence[Overwrite],
    materialised: Sequence[bool],
    plan: Schedule,
    added_up: Sequence[Accumulate],
) -> list[int]:
    """The last equation that reads each tensor, itself or through a value recomputed from it in the same pass."""
    program, producer = graph.program, graph.values.producer
    death = [-1] * len(program.tensors)
    for t in program.outputs:
        death[t] = len(program.equations)
    for eqn in reversed(program.equations):
        inner = [death[r] for r in eqn.results if not materialised[r]]
        outer = [plan.late.get(eqn.index, eqn.index) for r in eqn.results if materialised[r]]
        last = max(inner + outer, default=eqn.index)
        if eqn.index in plan.sums:
            last = plan.late[eqn.index]
        if eqn.name == REGION_IN and eqn.params["role"] in ("const", "x"):  # read in every trip
            last = program.regions[eqn.params["region"]].stop - 1
            death[eqn.results[0]] = max(death[eqn.results[0]], last if eqn.params["role"] == "const" else -1)
        for t in eqn.operands[_is_carry_exit(eqn) :]:
            death[t] = max(death[t], last)
    reuse_in_place(graph, overwritten, materialised, death, plan.late)
    for a in added_up:
        death[a.dot] = producer[a.dot] - 1  # no buffer of its own, unless it is resharded first
        if a.in_place and death[a.other] == a.equation and a.other not in program.given:
            death[a.other] = a.equation - 1
    return death


def sources_that_live_longer(
    graph: StepGraph, t: int, materialised: Sequence[bool], death: Sequence[int], without: Sequence[int]
) -> tuple[int, ...]:
    """Buffers of at least the size of one that only some plans write, arguments excluded, which it is computed of, and
    which live longer, ``without``, in those that do not."""
    tensors, producer, equations = graph.program.tensors, graph.values.producer, graph.program.equations

    def operands(u: int) -> Sequence[int]:
        is_fused = producer[u] >= 0 and (u == t or not materialised[u])
        return equations[producer[u]].operands if is_fused else ()

    sources = (u for u in walk([t], operands) if u != t and tensors[u].num_elements >= tensors[t].num_elements)
    return tuple(sorted(u for u in sources if producer[u] >= 0 and materialised[u] and without[u] > death[u]))


def births(graph: StepGraph, after: Mapping[int, int]) -> list[int]:
    """The equation at which each tensor becomes live; stacks of a loop are live from its beginning.

    ``after``: equations that run behind another.
    """
    birth = list(graph.values.producer)
    for e, first in after.items():
        birth[graph.program.equations[e].results[0]] = first + 1
    for region in graph.program.regions:
        for eqn in (graph.program.equations[e] for e in region.exits):
            if eqn.params["role"] == "y":
                birth[eqn.results[0]] = region.start
    return birth


def share(graph: StepGraph, shared: Sequence[Share], birth: Sequence[int], death: list[int]) -> None:
    """Let tensors lie in the buffer of another, which lives as long as any of them; ``death`` is changed."""
    outputs = set(graph.program.outputs)
    for t, buffer in ((effect.tensor, effect.buffer) for effect in shared if effect.tensor not in outputs):
        death[buffer] = max(death[buffer], death[t])
        death[t] = birth[t] - 1  # no buffer of its own


def _is_carry_exit(eqn: Equation) -> bool:
    return eqn.name == REGION_OUT and eqn.params["role"] == "carry"


def read_ends(
    graph: StepGraph, materialised: Sequence[bool], death: Sequence[int], late: Mapping[int, int]
) -> tuple[int, ...]:
    program, ends = graph.program, []
    for eqn in program.equations:
        virtual = [death[r] for r in eqn.results if not materialised[r]]
        if eqn.name == REGION_IN and eqn.params["role"] in ("const", "x"):  # read in every trip
            virtual.append(program.regions[eqn.params["region"]].stop - 1)
        ends.append(max([late.get(eqn.index, eqn.index), *virtual]))
    return (*ends, len(program.equations))
