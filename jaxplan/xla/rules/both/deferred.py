"""Products that make gradients of parameters, and until when the compiler puts them off."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.ir import CONTRACTION_FAMILIES, UNGROUPED, StepGraph
from jaxplan.xla._target import Target
from jaxplan.xla.rules.both.schedule import (
    DEFERRED_GRADIENTS,
    DEFERRED_KERNEL_GRADIENTS,
    LARGE_PARAMETER_BYTES,
)
from jaxplan.xla.rules.tpu.liveness import INPUT_GRADIENTS_FIRST


@dataclass(frozen=True, slots=True)
class PutOff:
    """When a product that makes the gradient of a parameter may be made: after one equation, by another."""

    after: int
    by: int


def put_off(graph: StepGraph, target: Target) -> dict[int, PutOff]:
    """Product that makes the gradient of a parameter -> when it is made.

    Nothing waits for such a dot. Compiled GPU and TPU programs were seen to make it after the input gradient that
    is next, and by the one after that, so its operands are live until then; a convolution by the end of all passes
    that come of that, before the next dot. Its result was not seen live beside operands of that next input gradient:
    a kernel that was gathered for it, for one. Where putting it off for longer would matter, the lowering asks for it
    (`jaxplan.partition`).
    """
    if not DEFERRED_GRADIENTS.applies_to(target):
        return {}
    until_next = DEFERRED_KERNEL_GRADIENTS.applies_to(target)
    program = graph.program
    products = [
        e.index
        for e in program.equations
        if e.phase == "backward" and e.region < 0 and graph.rules[e.index].family in CONTRACTION_FAMILIES
    ]
    ends = dict(itertools.pairwise([*products, len(program.equations)]))
    result: dict[int, PutOff] = {}
    following = after = None
    for e in reversed(products):
        if not is_gradient(graph, program.equations[e].results[0]):
            following, after = e, following
        elif following is not None:
            by = following if after is None else after
            by = ends[by] - 1 if until_next and graph.rules[e].family == "convolution" else by
            result[e] = PutOff(following, by)
    return result


def behind_input_gradients(graph: StepGraph, target: Target, materialised: Sequence[bool]) -> dict[int, int]:
    """Product that makes the gradient of a large parameter -> the input gradient that comes first.

    Both read a gradient that is computed inside of them (that of the logits), and the parameter is read for the last
    time by the second. Left alone, compiled TPU programs made the first beside the parameter, or a copy gathered for
    the second, so the lowering asks for this order (`jaxplan.partition`).
    """
    if not INPUT_GRADIENTS_FIRST.applies_to(target):
        return {}
    program, values, found = graph.program, graph.values, dict[int, int]()
    products = {
        e.index: is_gradient(graph, e.results[0], or_part=True)
        for e in program.equations
        if e.phase == "backward" and e.region < 0 and graph.rules[e.index].family == "contraction"
    }
    for e in (e for e, makes_gradient in products.items() if makes_gradient):
        eqn = program.equations[e]
        if program.tensors[eqn.results[0]].num_bytes < LARGE_PARAMETER_BYTES or len(set(eqn.operands)) < 2:
            continue
        readers = {c for t in eqn.operands if not materialised[t] for c in values.consumers[t] if c > e}
        for c in sorted(readers):
            made_before = all(values.producer[t] < e for t in program.equations[c].operands)
            if not products.get(c, True) and made_before:
                found[e] = c
                break
    return found


def is_gradient(graph: StepGraph, t: int, *, or_part: bool = False) -> bool:
    """Whether an update reads a tensor, or a cast or transpose of it (``or_part``: or a sum with it)."""
    for c in graph.values.consumers[t]:
        eqn, group = graph.program.equations[c], graph.grouping.equation_group[c]
        if group != UNGROUPED and graph.grouping.groups[group].kind == "state":
            return True
        is_view = graph.rules[c].family in ("elementwise", "shape") and len(eqn.operands) == 1
        if (is_view or (or_part and eqn.name == "add_any")) and is_gradient(graph, eqn.results[0], or_part=or_part):
            return True
    return False
