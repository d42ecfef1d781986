"""The width in which float32 operands of dots travel, and in which loops and tables hold them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jaxplan.ir import CONTRACTION_FAMILIES, REGION_IN, REGION_OUT, UNGROUPED, StepGraph
from jaxplan.xla._effects import Hold
from jaxplan.xla._facts import Facts
from jaxplan.xla._plan_effects import RoundTable, TravelRounded
from jaxplan.xla._rule import CompilerRule, Observed, zoo

NARROW_BYTES = 2
_READ_EVERY_TRIP = ("const", "x")
_FULL_PRECISION = ("HIGH", "HIGHEST")


def _rounded_transfers(facts: Facts) -> Iterator[TravelRounded]:
    """Operands that only dots read, where float32 dots run in bfloat16: rounded before they are gathered.

    Compiled TPU programs move and hold half of the bytes. Sums are taken in float32.
    """
    graph = facts.graph
    for t in range(len(facts.tensors)):
        if _is_wide(graph, t):
            readers = frozenset(c for c in set(graph.values.consumers[t]) if _rounds(graph, c, t))
            if readers:
                yield TravelRounded(t, readers, NARROW_BYTES)


def _rounded_tables(facts: Facts) -> Iterator[RoundTable]:
    """Tables of parameters that are rounded as a whole because only dots read the rows looked up in them."""
    graph = facts.graph
    for t in graph.state:
        readers = [e for e in graph.values.consumers[t] if facts.equations[e].phase == "forward"]
        is_table = any(graph.rules[e].family == "gather" and graph.rules[e].indexed for e in readers)
        if is_table and _is_wide(graph, t) and all(_rounds(graph, e, t) for e in readers):
            yield RoundTable(t, min(readers), max(readers))


def _is_wide(graph: StepGraph, t: int) -> bool:
    """Whether a tensor is float32 and no sum over devices."""
    group = graph.grouping.tensor_group[t]
    is_sum = group != UNGROUPED and t in graph.spaces[group].tensor_partial
    return graph.program.tensors[t].dtype == np.float32 and not is_sum


def _rounded_for_loops(facts: Facts) -> Iterator[Hold]:
    """Values computed and read by loops, if only dots read them: they are rounded once, before the first loop."""
    graph = facts.graph
    entries = [e for e in facts.equations if e.name == REGION_IN and e.params["role"] in _READ_EVERY_TRIP]
    tensors, consumers = graph.program.tensors, graph.values.consumers
    made = {e.operands[0] for e in entries if graph.values.producer[e.operands[0]] >= 0}
    for t in sorted(made - set(graph.program.outputs)):
        if tensors[t].dtype == np.float32 and all(_rounds(graph, c, t) for c in consumers[t]):
            yield Hold(t, NARROW_BYTES)


def _rounds(graph: StepGraph, e: int, t: int, seen: frozenset[int] = frozenset()) -> bool:
    """Whether an equation is a dot, at default precision, or only dots read the parts that it takes out of a tensor,
    that a loop takes of it, stacks, or hands to the next trip. ``seen``: exits of loops on the way."""
    eqn, family = graph.program.equations[e], graph.rules[e].family
    if family in CONTRACTION_FAMILIES:
        return not any(name in str(eqn.params.get("precision")) for name in _FULL_PRECISION)
    is_entry = eqn.name == REGION_IN and eqn.params["role"] in _READ_EVERY_TRIP
    is_stacked = eqn.name == REGION_OUT and eqn.params["role"] == "y"
    is_carried = eqn.name == REGION_OUT and eqn.params["role"] == "carry"
    passed_on: tuple[int, ...] = ()
    if is_entry or is_stacked or family == "shape" or (family == "gather" and eqn.operands[0] == t):
        passed_on = eqn.results
    elif is_carried and e not in seen:
        passed_on, seen = (eqn.operands[0], *eqn.results), seen | {e}
    if set(passed_on) & set(graph.program.outputs):
        return False
    readers = [(c, r) for r in passed_on for c in graph.values.consumers[r] if c not in seen]
    return bool(readers) and all(_rounds(graph, c, r, seen) for c, r in readers)


ROUNDED_FOR_LOOPS = CompilerRule(
    name="dot-operands-of-loops-are-rounded-once",
    backends=("tpu",),
    stage="storage",
    does="Float32 that the dots of a loop alone read is rounded to bfloat16 once, before the first loop.",
    source=Observed(evidence="an LSTM compiled for v5e", command=zoo("v5e:2x4", "lstm")),
    made_after=("lstm",),
    test="tests/cost/test_tiles.py::test_what_loops_read_through_dots_is_rounded",
    find=_rounded_for_loops,
)
ROUNDED_TRANSFERS = CompilerRule(
    name="dot-operands-travel-rounded",
    backends=("tpu",),
    stage="layouts",
    does="Float32 that dots alone read is rounded to bfloat16 before it is gathered.",
    source=Observed(evidence="ResNet-50 and an LSTM compiled for v5e", command=zoo("v5e:2x4", "resnet50", "lstm")),
    made_after=("resnet50", "lstm"),
    test="tests/xla/test_rounding.py::test_a_carry_that_dots_alone_read_in_the_next_trip_is_rounded",
    find=_rounded_transfers,
)
ROUNDED_TABLES = CompilerRule(
    name="tables-are-rounded-whole",
    backends=("tpu",),
    stage="layouts",
    does="A table in which dots alone look up rows is rounded as a whole where it is stored, all tables at once.",
    source=Observed(evidence="DLRM compiled for v5e", command=zoo("v5e:2x4", "dlrm")),
    made_after=("dlrm",),
    test="tests/xla/test_compiled_steps.py::test_compiled_bytes_are_those_with_the_rule",
    find=_rounded_tables,
)
