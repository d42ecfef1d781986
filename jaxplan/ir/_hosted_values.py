"""Parameters that live in the memory of the host, and the values that are read from there.

A parameter is copied to the device for the operators that read it: once for those of the forward pass, once for those
of the backward pass, and for its update (`jaxplan.ir._offload`). Its cast to another dtype is computed of each
copy, and a loop copies a slice of a stack of layers in each trip.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from jaxplan.ir._program import REGION_IN, Equation, Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._stacks import makes_passes

if TYPE_CHECKING:
    from jaxplan.ir._values import Values

LEAST_SHARE = 1e-3
"""Arguments of less than this share of all that could be offloaded stay on the device: they are not worth a copy."""

_CAST, _ELEMENTWISE = "convert_element_type", "elementwise"


def equations_of_training(program: Program) -> frozenset[int]:
    """Equations of the backward pass, and those of the forward pass that it depends on; none without one."""
    found, reaches = set[int](), set[int]()
    for eqn in reversed(program.equations):
        if eqn.phase == "backward" or (eqn.phase == "forward" and not reaches.isdisjoint(eqn.results)):
            reaches.update(eqn.operands)
            found.add(eqn.index)
    return frozenset(found)


def equations_of_passes(program: Program) -> frozenset[int]:
    """Equations of the forward and the backward pass; without the latter, all: the others make the update."""
    return equations_of_training(program) or frozenset(range(len(program.equations)))


def passes_from_host(program: Program, eqn: Equation) -> bool:
    """Whether the result of an equation is on the host where its operand is.

    That is so of casts, of the slices of a stack of layers, and of values that a loop of micro-batches reads. A loop
    over time reads its kernels in every trip of one pass: they are brought to the device before it.
    """
    if eqn.name == _CAST:
        return eqn.results[0] not in program.returned
    if eqn.name != REGION_IN or program.regions[eqn.params["region"]].kind != "scan":
        return False
    role, region = eqn.params["role"], eqn.params["region"]
    return role == "x" or (role == "const" and makes_passes(program, region))


def hosted_values(program: Program, values: Values, parameters: Iterable[int]) -> dict[int, int]:
    """Values that are on the host with these parameters, in program order -> the equation that passes each on.

    The parameters themselves come first, with -1. A loop that reshards a value, or brings it to the device
    before its first trip, does not pass it on (`passes_from_host`).
    """
    found = dict.fromkeys(parameters, -1)
    waiting, passes = list(found), equations_of_passes(program)
    while waiting:
        for c in values.consumers[waiting.pop()]:
            eqn = program.equations[c]
            if c in passes and passes_from_host(program, eqn) and eqn.results[0] not in found:
                found[eqn.results[0]] = c
                waiting.append(eqn.results[0])
    return dict(sorted(found.items(), key=lambda item: item[1]))


def hosted_sources(program: Program, passed_by: Mapping[int, int]) -> dict[int, int]:
    """Each of `hosted_values` -> the parameter that it is a cast or a slice of: the host holds it in that dtype."""
    found: dict[int, int] = {}
    for t, e in passed_by.items():
        found[t] = t if e < 0 else found[program.equations[e].operands[0]]
    return found


def hostable_parameters(
    program: Program,
    rules: Sequence[OperatorRule],
    consumers: Sequence[Sequence[int]],
    parameters: Collection[int],
) -> dict[int, int | None]:
    """Position of each parameter that can live on the host -> that of its successor; None: it is not trained.

    The update of a trained one is element-wise, and its argument is donated. Small ones (`LEAST_SHARE`) stay, and
    so do parameters that change from trip to trip of a loop.
    """
    equations, outputs, passes = program.equations, program.outputs, equations_of_passes(program)
    state = {pair.input: pair.output for pair in program.pairs if pair.is_state and pair.flow == "updated"}
    sizes = {i: program.tensors[t].num_bytes for i, t in enumerate(program.inputs) if t in parameters}
    least = LEAST_SHARE * sum(sizes.values())
    found: dict[int, int | None] = {}
    for i, size in sizes.items():
        t = program.inputs[i]
        readers = [equations[c] for c in consumers[t]]
        updating = [eqn for eqn in readers if eqn.index not in passes]
        is_carried = any(eqn.name == REGION_IN and eqn.params["role"] == "carry" for eqn in readers)
        if size < max(1, least) or t in outputs or is_carried or len(updating) == len(readers):
            continue
        if i not in state:
            found |= {} if updating else {i: None}
            continue
        is_alone = bool(updating) and all(rules[eqn.index].family == _ELEMENTWISE for eqn in updating)
        if is_alone and program.donated[i] and outputs.count(outputs[state[i]]) == 1:
            found[i] = state[i]
    return found
