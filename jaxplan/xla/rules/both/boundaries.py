"""Arguments and results of the step, of loops and of branches, and values that loops read in place."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.ir import CUT, REGION_IN, REGION_OUT, Equation
from jaxplan.xla._effects import Fuse, Write
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import ALL, XLA, CompilerRule


def _arguments_and_results(facts: Facts) -> Iterator[Write]:
    yield from (Write(t) for t in facts.graph.program.inputs)
    outputs = facts.graph.program.outputs
    yield from (Write(t, constant=True) for t in outputs if facts.tensors[t].shape)


ARGUMENTS_AND_RESULTS = CompilerRule(
    name="arguments-and-results-are-buffers",
    backends=ALL,
    stage="fusion",
    does="Arguments and results of the step are in memory.",
    source=f"{XLA}service/buffer_assignment.cc",
    made_after=(),
    test="tests/cost/test_prediction.py::test_resident_bytes_are_state_and_batch",
    find=_arguments_and_results,
)


def _boundaries(facts: Facts) -> Iterator[Write]:
    """A carry is a buffer inside of the loop; a constant is the one outside, and a slice is computed by its readers."""
    for eqn in facts.equations:
        if eqn.name not in (REGION_IN, REGION_OUT):
            continue
        if eqn.name == REGION_IN:
            yield Write(eqn.operands[0])
        is_result = eqn.name == REGION_OUT or eqn.params["role"] == "carry"
        if is_result and facts.tensors[eqn.results[0]].shape:
            yield Write(eqn.results[0], constant=True)


LOOP_BOUNDARIES = CompilerRule(
    name="loops-read-and-make-buffers",
    backends=ALL,
    stage="fusion",
    does="Operands, carries and results of loops and branches are buffers, not fused with their neighbours.",
    source=f"{XLA}service/copy_insertion.cc",
    made_after=("lstm",),
    test="tests/simulate/test_simulated_plan.py::test_loops_and_steps_without_compute",
    find=_boundaries,
)


def _constants_of_loops(facts: Facts) -> Iterator[Fuse]:
    entries = (e for e in facts.equations if e.name == REGION_IN)
    return (Fuse(e.results[0]) for e in entries if e.params["role"] == "const")


LOOP_CONSTANTS = CompilerRule(
    name="constants-of-loops-are-no-copies",
    backends=ALL,
    stage="residuals",
    does="A value that a loop reads unchanged in every trip is the same buffer inside of it.",
    source=f"{XLA}service/while_loop_invariant_code_motion.cc",
    made_after=("lstm",),
    test="tests/xla/test_compiled_steps.py::test_compiled_bytes_are_those_with_the_rule",
    find=_constants_of_loops,
)


def _reshapes_of_arguments(facts: Facts) -> Iterator[Fuse]:
    for eqn in facts.equations:
        if eqn.name in ("reshape", CUT) and facts.written[eqn.results[0]] and _is_bitcast(facts, eqn):
            yield Fuse(eqn.results[0])


def _is_bitcast(facts: Facts, eqn: Equation) -> bool:
    """Whether the result of a reshape is the buffer of an argument.

    Where memory is in tiles of the last two dimensions, these have to be the same.
    """
    program = facts.graph.program
    (source,), (result,) = eqn.operands, eqn.results
    shapes = [program.tensors[t].shape for t in (source, result)]
    is_same = not facts.is_tiled or (min(map(len, shapes)) > 2 and shapes[0][-2:] == shapes[1][-2:])
    return is_same and source in program.given and result not in program.returned


CUT_ARGUMENTS = CompilerRule(
    name="reshaped-arguments-are-no-copies",
    backends=ALL,
    stage="residuals",
    does="An argument in another shape is the same buffer: micro-batches that a loop reads, a stack of one.",
    source=f"{XLA}hlo/transforms/simplifiers/algebraic_simplifier.cc",
    made_after=(),
    test="tests/xla/test_compiled_steps.py::test_compiled_bytes_are_those_with_the_rule",
    find=_reshapes_of_arguments,
)
