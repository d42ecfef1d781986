"""How loops read stored arrays: which inputs are stacks of layers, and where a loop takes them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.ir._grouping import CONTRACTION_FAMILIES, STORED_KINDS, UNGROUPED, Grouping
from jaxplan.ir._program import REGION_IN, Equation, Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._values import VIEW_PRIMITIVES, Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An equation through which a loop reads a stored array, slice by slice or whole in each trip.

    Attributes:
      equation: its index.
      stored: tensor index of the array read: an input, or a view or cast of one that is sharded as the input is.
      is_slice: whether each trip reads a slice of the leading dimension.
      again: whether the loop recomputes results of an earlier one (checkpointed layers).
    """

    equation: int
    stored: int
    is_slice: bool
    again: bool


def stored_entries(
    program: Program, rules: Sequence[OperatorRule], values: Values, grouping: Grouping
) -> tuple[Entry, ...]:
    """In program order, entries into loops with an operand in a group of stored arrays.

    Whole values count where the loop makes whole passes, forward and backward (micro-batches): a loop over time reads
    its kernels in every trip of one pass, and they are live throughout.
    """
    found, again = [], _computing_again(program, rules, values)
    for eqn in program.equations:
        if eqn.name != REGION_IN or eqn.params["role"] not in ("x", "const"):
            continue
        group = grouping.tensor_group[eqn.operands[0]]
        if group == UNGROUPED or grouping.groups[group].kind not in STORED_KINDS:
            continue
        is_slice = eqn.params["role"] == "x"
        region = eqn.params["region"]
        if is_slice or makes_passes(program, region):
            entry = Entry(
                equation=eqn.index,
                stored=eqn.operands[0],
                is_slice=is_slice,
                again=is_slice and region in again,
            )
            found.append(entry)
    return tuple(found)


def _computing_again(program: Program, rules: Sequence[OperatorRule], values: Values) -> frozenset[int]:
    """Regions with a dot that an earlier region has made of the same operands."""
    first: dict[int, int] = {}
    found = set()
    for eqn in program.equations:
        is_dot = eqn.region >= 0 and rules[eqn.index].family in CONTRACTION_FAMILIES
        if is_dot and first.setdefault(values.number[eqn.results[0]], eqn.region) != eqn.region:
            found.add(eqn.region)
    return frozenset(found)


def makes_passes(program: Program, region: int) -> bool:
    """Whether the body of a loop has a forward and a backward pass of its own."""
    start, stop = program.regions[region].ranges[0]
    phases = {program.equations[e].phase for e in range(start, stop)}
    return {"forward", "backward"} <= phases


def recomputing_loops(program: Program, rules: Sequence[OperatorRule], values: Values) -> frozenset[int]:
    """Scans of the backward pass that recompute a dot: it depends on no gradient that enters the loop.

    Dots of loops inside do not count. A loop over micro-batches, which runs both passes in a trip, is none.
    """
    found = set()
    for region in program.regions:
        if region.kind == "scan":
            entries = (program.equations[e] for e in region.entries[0])
            depends = {e.results[0] for e in entries if _brings_gradient(program, values, e)}
            kinds = set()
            for eqn in program.equations[slice(*region.ranges[0])]:
                is_dependent = not depends.isdisjoint(eqn.operands)
                depends.update(eqn.results if is_dependent else ())
                if eqn.region == region.index and rules[eqn.index].family in CONTRACTION_FAMILIES:
                    kinds.add((eqn.phase, is_dependent))
            if {phase for phase, _ in kinds} == {"backward"} and ("backward", False) in kinds:
                found.add(region.index)
    return frozenset(found)


def _brings_gradient(program: Program, values: Values, entry: Equation) -> bool:
    """Whether a carry enters a body, or what the backward pass has made."""
    made = values.producer[entry.operands[0]]
    return entry.params["role"] == "carry" or (made >= 0 and program.equations[made].phase == "backward")


def layer_elements(program: Program, values: Values, t: int) -> int:
    """Elements of an input; of one that loops read slice by slice, of a slice."""
    tensor = program.tensors[t]
    return tensor.num_elements // tensor.shape[0] if is_stack(program, values, t) else tensor.num_elements


def is_stack(program: Program, values: Values, t: int) -> bool:
    """Whether loops read an input slice by slice, and nothing but the update and views of it read it otherwise."""
    readers = _readers(program, values, t)
    return bool(readers) and all(readers)


def _readers(program: Program, values: Values, t: int) -> Sequence[bool]:
    """Of each equation before the update that reads an input or a view of it, whether it enters it into a loop slice by
    slice."""
    shape, found, stack = program.tensors[t].shape, [], [t]
    while stack:
        for c in values.consumers[stack.pop()]:
            eqn = program.equations[c]
            if eqn.name in VIEW_PRIMITIVES and program.tensors[eqn.results[0]].shape == shape:
                stack.append(eqn.results[0])
            elif eqn.name == REGION_IN:
                found.append(eqn.params["role"] == "x")
            elif program.tensors[eqn.results[0]].shape != shape or eqn.phase == "backward":
                found.append(False)
    return found
