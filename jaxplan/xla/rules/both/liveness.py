"""Results that take the buffer of an operand, and copies that are shared."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.ir import REGION_IN, REGION_OUT, Equation
from jaxplan.xla._effects import Overwrite
from jaxplan.xla._facts import Facts
from jaxplan.xla._plan_effects import GatherInto, KeepUpdatedParts, ShortenSources
from jaxplan.xla._rule import ALL, XLA, CompilerRule, always

_ALIASES = f"{XLA}service/copy_insertion.cc"


def _of_scatters(facts: Facts) -> Iterator[Overwrite]:
    return (Overwrite(e.index, e.operands[0]) for e in facts.equations if facts.family(e.index) == "scatter")


def _of_carries(facts: Facts) -> Iterator[Overwrite]:
    for eqn in facts.equations:
        if eqn.name == REGION_IN and eqn.params["role"] == "carry":
            yield Overwrite(eqn.index, eqn.operands[0])
        elif eqn.name == REGION_OUT and eqn.params["role"] == "carry":
            yield from _handed_on(facts, eqn)


def _of_branches(facts: Facts) -> Iterator[Overwrite]:
    """Exits of a `cond` in a loop, of values that are carried on. Before JAX 0.12 CPU programs have both."""
    for eqn in facts.equations:
        if eqn.name == REGION_OUT and eqn.params["role"] == "branch" and _is_carried(facts, eqn.results[0]):
            yield from _handed_on(facts, eqn)


def _is_carried(facts: Facts, t: int) -> bool:
    """Whether the next value of a carry is all that a value is read for."""
    readers = facts.readers(t)
    return bool(readers) and all(e.name == REGION_OUT and e.params["role"] == "carry" for e in readers)


def _handed_on(facts: Facts, eqn: Equation) -> Iterator[Overwrite]:
    """Operands of an exit, and values that the loop or branch hands on unchanged."""
    for t in eqn.operands:
        yield Overwrite(eqn.index, t)
        by = facts.maker(t) or eqn
        if by.name == REGION_IN and by.params["role"] == "operand":
            yield Overwrite(eqn.index, by.operands[0])


def _updates(facts: Facts) -> Iterator[GatherInto]:
    return map(GatherInto, facts.graph.program.replaced)


SCATTERS_IN_PLACE = CompilerRule(
    name="scatters-write-over-their-operand",
    backends=ALL,
    stage="liveness",
    does="A scatter writes over the array that it adds to where nothing reads that later.",
    source=f"{XLA}hlo/analysis/hlo_dataflow_analysis.cc",
    made_after=("dlrm",),
    test="tests/xla/test_compiled_steps.py::test_compiled_bytes_are_those_with_the_rule",
    find=_of_scatters,
)
CARRIES_IN_PLACE = CompilerRule(
    name="carries-are-one-buffer",
    backends=ALL,
    stage="liveness",
    does="A carry takes the buffer that it starts from, and its next value takes it when it was read last.",
    source=_ALIASES,
    made_after=("lstm",),
    test="tests/xla/test_in_place.py::test_a_dot_of_a_carry_needs_a_second_buffer",
    find=_of_carries,
)
BRANCHES_IN_PLACE = CompilerRule(
    name="branches-write-over-carries",
    backends=("gpu",),
    stage="liveness",
    does="In a loop, a `cond` of which one branch returns the carry unchanged writes its next value over it.",
    source=_ALIASES,
    made_after=(),
    test="tests/xla/test_in_place.py::test_a_branch_that_hands_on_a_carry_makes_the_other_write_over_it",
    find=_of_branches,
)
SHORTENED_SOURCES = CompilerRule(
    name="sources-of-resharded-values-die-early",
    backends=ALL,
    stage="liveness",
    does="A source that a resharded value was fused from lives no longer than that value before its collective.",
    source=f"{XLA}service/buffer_assignment.cc",
    made_after=("gpt",),
    test="tests/cost/test_tensor_reuse.py::test_what_is_kept",
    find=always(ShortenSources()),
)
UPDATED_PARTS = CompilerRule(
    name="updated-shards-live-beside-their-gather",
    backends=ALL,
    stage="liveness",
    does="A shard that is updated and then gathered (ZeRO-1) lives until the end of the step.",
    source=f"{XLA}service/buffer_assignment.cc",
    made_after=("gpt",),
    test="tests/xla/test_compiled_steps.py::test_compiled_bytes_are_those_with_the_rule",
    find=always(KeepUpdatedParts()),
)
GATHERED_INTO_ARGUMENTS = CompilerRule(
    name="updates-are-gathered-into-donated-arguments",
    backends=ALL,
    stage="liveness",
    does="A gathered update is written into the donated argument that it replaces, not into a buffer of its own.",
    source=f"{XLA}service/buffer_assignment.cc",
    made_after=("gpt",),
    test="tests/xla/test_compiled_steps.py::test_compiled_bytes_are_those_with_the_rule",
    find=_updates,
)
