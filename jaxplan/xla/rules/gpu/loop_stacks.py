"""Stacks of values that one loop writes in another order of dimensions than a later loop reads.

A loop stacks a value in the order of dimensions in which it was computed: trips first, then those of the dot that it is
computed from, batch, free of the left operand, free of the right one. A later loop reads its stacks in the order of
the program, or in that of the result of a dot that a slice meets. Where the two differ, the stack is transposed between
the loops, one stack after the other, and both are live meanwhile. Seen in decoders with queries grouped by key
that are scanned over layers: their scores are a dot of keys and queries, and are read as queries by keys.

Where a loop reduce-scatters a value that it stacks, the compiler starts each trip with the collective of the last one,
hands its operand on from trip to trip, and runs the first trip in front of the loop. That trip reads stacks as
they were saved: one in the order of the program until its last use; of another one it transposes a slice right after
the stack.
https://github.com/openxla/xla/blob/main/xla/service/collective_pipeliner.cc
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jaxplan.ir import REGION_IN, Equation
from jaxplan.xla._effects import End
from jaxplan.xla._facts import Facts, walk
from jaxplan.xla._plan_effects import ScatterInNextTrip
from jaxplan.xla._rule import XLA, CompilerRule
from jaxplan.xla._storage import Order
from jaxplan.xla.rules.gpu.layout_walk import large, layouts_of
from jaxplan.xla.rules.gpu.transposed import OrderedCopy


def _transposed_between_loops(facts: Facts) -> Iterator[OrderedCopy | End]:
    order, program = layouts_of(facts).order, facts.graph.program
    entries: dict[int, list[Equation]] = defaultdict(list)
    for eqn in (facts.equations[e] for region in program.regions for e in region.exits):
        saved, stack = eqn.operands[0], eqn.results[0]
        readers = facts.readers(stack)
        is_read = bool(readers) and all(_takes_slices(r) for r in readers) and stack not in program.returned
        if eqn.params["role"] == "y" and saved in order and is_read:
            entry = readers[0]
            if _read_in(facts, entry.results[0]) != order[saved]:
                entries[entry.params["region"]].append(entry)
    for region, found in entries.items():
        scattered = _scattered_in(facts, region)
        for entry in found:
            yield from _copies(facts, entry, scattered)
            yield End(entry.operands[0], entry.index)


def _copies(facts: Facts, entry: Equation, scattered: frozenset[int]) -> Iterator[OrderedCopy]:
    """The stack that enters a loop in another order. If one of ``scattered`` is reduce-scattered, also the array
    that the first trip reads: the stack as it was saved, or a slice of it."""
    (stack,), (slice_,), at = entry.operands, entry.results, entry.index
    copy = OrderedCopy(tensor=stack, itemsize=facts.tensors[stack].itemsize, first=at, last=facts.death[stack])
    yield copy
    saved = layouts_of(facts).order[facts.equations[facts.graph.values.producer[stack]].operands[0]]
    if scattered and saved == tuple(sorted(saved)):
        yield replace(copy, first=at + 1, last=facts.death[slice_], if_scattered=scattered)
    elif scattered:
        yield replace(copy, tensor=slice_, last=at, if_scattered=scattered)


def _scattered_in(facts: Facts, region: int) -> frozenset[int]:
    """Tensors of a loop of which it stacks a cast or a view: if a plan reduce-scatters one, it peels the first trip."""
    exits = (facts.equations[e] for e in facts.graph.program.regions[region].exits)
    producer = facts.graph.values.producer

    def operands(t: int) -> Sequence[int]:
        made = facts.maker(t)
        is_fused = made is not None and facts.family(made.index) in ("elementwise", "shape")
        return made.operands if made is not None and is_fused and made.region == region else ()

    stacked = (e.operands[0] for e in exits if e.params["role"] == "y")
    return frozenset(t for t in walk(stacked, operands) if producer[t] >= 0)


def _scattered_in_next_trip(facts: Facts) -> Iterator[ScatterInNextTrip]:
    producer = facts.graph.values.producer
    for region in facts.graph.program.regions:
        if region.kind == "scan":
            start, stop = region.ranges[0]
            made = (t for t in sorted(_scattered_in(facts, region.index)) if start <= producer[t] < stop)
            yield from (ScatterInNextTrip(t, region.start, stop - 1) for t in made)


def _takes_slices(eqn: Equation) -> bool:
    """Whether an equation is the entry of a stack into a loop that reads a slice of it per trip."""
    return eqn.name == REGION_IN and eqn.params["role"] == "x"


def _read_in(facts: Facts, slices: int) -> Order:
    """The order of dimensions in which a loop reads the slices of a stack: that of the first value computed from a dot
    which they meet element by element, else that of the program."""
    order, shape = layouts_of(facts).order, facts.tensors[slices].shape
    dims = {slices: tuple(range(len(shape)))}  # of each value, the dimension of a slice that each of its own is

    def following(t: int) -> Sequence[int]:
        kept = [eqn for eqn in facts.readers(t) if _keeps_elements(facts, eqn, t)]
        for eqn in kept:
            moved = eqn.params["permutation"] if eqn.name == "transpose" else range(len(shape))
            dims.setdefault(eqn.results[0], tuple(dims[t][d] for d in moved))
        return [eqn.results[0] for eqn in reversed(kept)]

    for t in walk([slices], following):
        if t in order:
            return large(shape, tuple(dims[t][d] for d in order[t]))
    return large(shape, range(len(shape)))


def _keeps_elements(facts: Facts, eqn: Equation, t: int) -> bool:
    """Whether an equation has one result, with the elements of an operand in their places, or transposed."""
    if len(eqn.results) != 1:
        return False
    is_alike = facts.tensors[eqn.results[0]].shape == facts.tensors[t].shape
    return eqn.name == "transpose" or (facts.family(eqn.index) == "elementwise" and is_alike)


TRANSPOSED_BETWEEN_LOOPS = CompilerRule(
    name="stacks-are-transposed-between-loops",
    backends=("gpu",),
    stage="layouts",
    does="A stack that one loop writes and another reads in other orders of dimensions is transposed between the two.",
    source=f"{XLA}service/gpu/transforms/layout_assignment.cc",
    made_after=(),
    test="tests/xla/test_loop_stacks.py::test_a_stack_in_another_order_is_transposed_between_the_loops",
    find=_transposed_between_loops,
    priority=3,
)
SCATTERED_IN_NEXT_TRIP = CompilerRule(
    name="reduce-scatters-of-a-trip-run-in-the-next",
    backends=("gpu",),
    stage="liveness",
    does="A reduce-scatter of a value that a loop stacks runs in the next trip; its operand is handed on to it.",
    source=f"{XLA}service/collective_pipeliner.cc",
    made_after=(),
    test="tests/xla/test_loop_stacks.py::test_a_reduce_scatter_of_a_trip_runs_in_the_next",
    find=_scattered_in_next_trip,
)
