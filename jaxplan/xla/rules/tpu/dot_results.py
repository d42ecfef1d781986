"""Values that dot kernels compute from their results before they write them (compilers that fuse into dots).

Of attention scores in bfloat16 that are widened, and then scaled, biased or masked, compiled TPU programs keep float32:
the widening has one reader, so it and that reader are computed as the dot's result is written. Values that the backward
pass reads on the way (a tanh that caps scores) it recomputes from the scores: those are kept in bfloat16 too. Where the
widened value itself has several readers, each of them widens, and bfloat16 is kept. So it is for logits, whatever is
added to them.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.ir import CONTRACTION_FAMILIES, Equation, StepGraph
from jaxplan.xla._effects import Fuse, Write
from jaxplan.xla._facts import Facts, walk
from jaxplan.xla._rule import CompilerRule, Observed, zoo

_FUSED = ("elementwise", "shape")


def widened_outputs(facts: Facts) -> dict[int, int]:
    """Result of a dot, of which another dot of the same pass reads more -> the value written instead."""
    graph, found = facts.graph, {}
    for eqn in graph.program.equations if WIDENED_SCORES.applies_to(facts.target) else ():
        if graph.rules[eqn.index].family in CONTRACTION_FAMILIES:
            written = _widened(graph, eqn.results[0], eqn.phase)
            if written is not None and _reaches_dot(graph, written, eqn.phase):
                found[eqn.results[0]] = written
    return found


def _written_behind(facts: Facts) -> Iterator[Fuse]:
    """Results of dots of the backward pass that are not written: one value of their size is computed of them,
    element by element, and nothing else.

    So compiled TPU programs make the gradient in front of a gelu: the dot's kernel writes that. Where a plan sums
    such a result over devices, the sum counts, and each device's summand does not.
    """
    graph, materialised = facts.graph, facts.written
    program, consumers = graph.program, graph.values.consumers
    for eqn in program.equations:
        if eqn.phase != "backward" or graph.rules[eqn.index].family not in CONTRACTION_FAMILIES:
            continue
        t = eqn.results[0]
        stack, written = [t] if materialised[t] and t not in program.returned else [], set()
        while stack:
            u = stack.pop()
            readers = [program.equations[e] for e in consumers[u]]
            results = {r for e in readers for r in e.results}
            size = program.tensors[t].num_elements
            if any(graph.rules[e.index].family != "elementwise" for e in readers) or any(
                program.tensors[r].num_elements != size for r in results
            ):
                written.clear()
                break
            written.update(r for r in results if materialised[r])
            stack += [r for r in results if not materialised[r]]
        if len(written) == 1:
            yield Fuse(t)


def gradients_of_widened(facts: Facts) -> Iterator[Write]:
    """Gradients of scores that are kept in float32 (`widened_outputs`), narrowed again for the two dots that read them.

    Compiled TPU programs write them, beside the scores and the gradient of the normalised scores; those of
    scores in bfloat16 are computed inside of both dots.
    """
    graph, equations = facts.graph, facts.equations
    of_wide: set[int] = set()
    for t in widened_outputs(facts).values():
        of_wide |= {r for u in computed_of(graph, t) for r in computed_of(graph, u, "backward")}
    dots = [e for e in equations if e.phase == "backward" and graph.rules[e.index].family in CONTRACTION_FAMILIES]
    for eqn in dots if of_wide else ():
        size = graph.program.tensors[eqn.results[0]].num_elements
        for t in sorted(computed_of(graph, eqn.results[0], "backward") & of_wide):
            readers = [e for e in dots if t in e.operands]
            if len(readers) > 1 and graph.program.tensors[t].num_elements == size:
                yield Write(t)


def computed_of(graph: StepGraph, t: int, phase: str = "forward") -> set[int]:
    """Element-wise results of a value in a pass."""

    def computed(u: int) -> Iterator[int]:
        for e in graph.values.consumers[u]:
            eqn = graph.program.equations[e]
            if eqn.phase == phase and graph.rules[e].family in _FUSED:
                yield from eqn.results

    return set(walk([t], computed))


def _widened(graph: StepGraph, t: int, phase: str) -> int | None:
    """The last of the values of equal size that are computed of ``t``, each by the only reader in this pass of the one
    before; none unless one is wider than ``t`` and something else is computed of that."""
    tensors, equations, outputs = graph.program.tensors, graph.program.equations, graph.program.outputs
    narrow, computed, is_wide = tensors[t], 0, False
    while t not in outputs:
        readers = {e for e in graph.values.consumers[t] if _serves(graph, equations[e], phase)}
        if len(readers) != 1:
            break
        (e,) = readers
        result = equations[e].results[0]
        if graph.rules[e].family not in _FUSED or tensors[result].num_elements != narrow.num_elements:
            break
        computed += is_wide and graph.rules[e].family == "elementwise"
        is_wide = tensors[result].itemsize > narrow.itemsize
        t = result
    return t if is_wide and computed else None


def _serves(graph: StepGraph, eqn: Equation, phase: str) -> bool:
    """Whether a pass reads an equation's result: the derivative of a tanh is computed for the other pass."""
    if eqn.phase != phase or graph.rules[eqn.index].family not in _FUSED:
        return eqn.phase == phase
    of_results = {u for r in eqn.results for u in computed_of(graph, r, phase)}
    readers = {e for u in of_results for e in graph.values.consumers[u]}
    of_pass = [e for e in readers if graph.program.equations[e].phase == phase]
    is_read = any(graph.rules[e].family not in _FUSED for e in of_pass)
    return is_read or not of_results.isdisjoint(graph.program.outputs)


def _reaches_dot(graph: StepGraph, t: int, phase: str) -> bool:
    readers = {e for u in computed_of(graph, t, phase) for e in graph.values.consumers[u]}
    dots = (e for e in readers if graph.rules[e].family in CONTRACTION_FAMILIES)
    return any(graph.program.equations[e].phase == phase for e in dots)


def _widened_scores(facts: Facts) -> Iterator[Write | Fuse]:
    for dot, wide in widened_outputs(facts).items():
        yield Fuse(dot)
        yield Write(wide)


WIDENED_SCORES = CompilerRule(
    name="widened-scores-are-kept-in-float32",
    backends=("tpu",),
    stage="fusion",
    does="Scores that are widened and then scaled, biased or masked are written so by their dot.",
    source=Observed(evidence="T5 and Gemma compiled for v5e", command=zoo("v5e:2x4", "t5", "gemma")),
    made_after=("t5", "gemma", "llama"),
    test="tests/xla/test_dot_results.py::test_scores_that_are_widened_and_changed_are_kept_wide",
    find=_widened_scores,
    priority=1,
)
GRADIENTS_OF_WIDENED = CompilerRule(
    name="gradients-of-widened-scores-are-written",
    backends=("tpu",),
    stage="fusion",
    does="The gradient of scores that are kept in float32 is written, narrowed, for the two dots that read it.",
    source=Observed(evidence="T5 compiled for v5e", command=zoo("v5e:2x4", "t5")),
    made_after=("t5",),
    test="tests/xla/test_dot_results.py::test_gradients_of_scores_that_are_kept_wide_are_written",
    find=gradients_of_widened,
)
DOTS_WRITE_FUSED = CompilerRule(
    name="backward-dots-write-what-is-computed-of-them",
    backends=("tpu",),
    stage="fusion",
    does="A backward dot of which one value of its size is computed, element by element, writes that value.",
    source=Observed(evidence="GELUs of GPT and ViT compiled for v5e", command=zoo("v5e:2x4", "gpt", "vit")),
    made_after=("gpt", "vit"),
    test="tests/xla/test_dot_results.py::test_the_gradient_in_front_of_a_gelu_is_what_its_dot_writes",
    find=_written_behind,
    priority=3,
)
