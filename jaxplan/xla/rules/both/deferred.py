"""Dots that make gradients of parameters, and until when the compiler defers them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from jaxplan.ir import CONTRACTION_FAMILIES, REGION_OUT, UNGROUPED, VIEW_PRIMITIVES, StepGraph
from jaxplan.xla._effects import Defer, Order
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import ALL, JAXPLAN_LOWERING, XLA, CompilerRule
from jaxplan.xla.rules.both.schedule import LARGE_PARAMETER_BYTES

_SCHEDULER = f"{XLA}hlo/transforms/simplifiers/hlo_memory_scheduler.cc"


def _deferred(facts: Facts, *, until_next: bool) -> Iterator[Defer]:
    """Weight gradients, and when they are made.

    Nothing waits for such a dot. Compiled GPU and TPU programs were seen to make it after the input gradient that
    is next, and by the one after that, so its operands are live until then; a convolution (``until_next``) by the end
    of all passes that come of that, before the next dot. Its result was not seen live beside operands of that next
    input gradient: a kernel that was gathered for it, for one. Where deferring it for longer would matter, the lowering
    asks for it (`jaxplan.partition`).
    """
    graph, program = facts.graph, facts.graph.program
    dots = [e.index for e in program.equations if e.phase == "backward" and e.region < 0 and facts.is_dot(e.index)]
    ends = dict(itertools.pairwise([*dots, len(program.equations)]))
    following = after = None
    for e in reversed(dots):
        if not is_gradient(graph, program.equations[e].results[0]):
            following, after = e, following
        elif following is not None:
            by = following if after is None else after
            by = ends[by] - 1 if until_next and facts.family(e) == "convolution" else by
            yield Defer(e, following, max(by, following + 1))  # its operands are live until its result is made


def _until_next_input_gradient(facts: Facts) -> Iterator[Defer]:
    return _deferred(facts, until_next=False)


def _kernels_until_next_dot(facts: Facts) -> Iterator[Defer]:
    found = _deferred(facts, until_next=True)
    return (d for d in found if d.equation in facts.deferred and facts.family(d.equation) == "convolution")


def _born_after(facts: Facts) -> Iterator[Order]:
    return (Order(e, after=defer.after) for e, defer in facts.deferred.items())


def _input_gradients_first(facts: Facts) -> Iterator[Order]:
    """Gradients of large parameters, each after the input gradient that comes first.

    Both read a gradient that is computed inside of them (that of the logits), and the parameter is read for the last
    time by the second. Left alone, compiled TPU programs made the first beside the parameter, or a copy gathered for
    the second, so the lowering asks for this order (`jaxplan.partition`).
    """
    graph, program, values = facts.graph, facts.graph.program, facts.graph.values
    dots = {
        e.index: is_gradient(graph, e.results[0], or_part=True)
        for e in program.equations
        if e.phase == "backward" and e.region < 0 and facts.family(e.index) == "contraction"
    }
    for e in (e for e, makes_gradient in dots.items() if makes_gradient):
        eqn = program.equations[e]
        if program.tensors[eqn.results[0]].num_bytes < LARGE_PARAMETER_BYTES or len(set(eqn.operands)) < 2:
            continue
        readers = {c for t in eqn.operands if not facts.written[t] for c in values.consumers[t] if c > e}
        for c in sorted(readers):
            made_before = all(values.producer[t] < e for t in program.equations[c].operands)
            if not dots.get(c, True) and made_before:
                yield Order(e, after=c, is_asked=True)
                break


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


def sums_over_trips(graph: StepGraph) -> dict[int, int]:
    """Additions to a carry that nothing else in the body reads -> the equation they run behind: that of the summand.

    Programs compiled for GPUs add each gradient of a micro-batch up before they make the next, though the step may add
    all of them at the end of the body. Dots that share an operand (gates of a recurrent cell) are made together.
    """
    values, equations = graph.values, graph.program.equations
    found: dict[int, int] = {}
    for eqn in equations:
        if eqn.name != REGION_OUT or eqn.params["role"] != "carry":
            continue
        before, after = eqn.operands
        made = values.producer[after]
        if (
            made < 0
            or equations[made].name not in ("add", "add_any")
            or before not in equations[made].operands
        ):
            continue
        if set(values.consumers[before]) == {made, eqn.index} and values.consumers[after] == (eqn.index,):
            found[made] = max(values.producer[t] for t in equations[made].operands)
    inside = {
        made: _made_by(graph, e)
        for made, e in found.items()
        if e >= 0 and equations[e].region == equations[made].region
    }
    last: dict[int, int] = {}
    for e in inside.values():
        for t in _factors(graph, e):
            last[t] = max(e, last.get(t, e))
    together = {made: [last[t] for t in _factors(graph, e)] for made, e in inside.items()}
    return {made: max(ends) for made, ends in together.items() if ends}


def _made_by(graph: StepGraph, equation: int) -> int:
    """The equation that computes the array of which an equation makes a view or a cast; else itself."""
    equations, producer = graph.program.equations, graph.values.producer
    while equations[equation].name in VIEW_PRIMITIVES and (made := producer[equations[equation].operands[0]]) >= 0:
        equation = made
    return equation


def _factors(graph: StepGraph, equation: int) -> tuple[int, ...]:
    """Value numbers of a dot's operands; empty for other equations."""
    is_dot = graph.rules[equation].family in CONTRACTION_FAMILIES
    return tuple(graph.values.number[t] for t in graph.program.equations[equation].operands[:2]) if is_dot else ()


def _sums_of_trips(facts: Facts) -> Iterator[Order]:
    found = sums_over_trips(facts.graph)
    return (Order(e, after=behind, by=behind + 1, is_sum=True) for e, behind in found.items())


DEFERRED_GRADIENTS = CompilerRule(
    name="weight-gradients-are-deferred",
    backends=("gpu", "tpu"),
    stage="schedule",
    does="The dot of a weight gradient runs after the next input gradient, at the latest with the one after that.",
    source=_SCHEDULER,
    made_after=("vit",),
    test="tests/xla/test_deferred.py::test_a_gradient_waits_for_two_input_gradients",
    find=_until_next_input_gradient,
)
DEFERRED_KERNEL_GRADIENTS = CompilerRule(
    name="kernel-gradients-are-deferred-to-the-next-dot",
    backends=("gpu", "tpu"),
    stage="schedule",
    does="The weight gradient of a convolution runs at the end of the element-wise passes before the next dot.",
    source=_SCHEDULER,
    made_after=("unet", "vgg"),
    test="tests/xla/test_deferred.py::test_so_does_that_of_a_convolution",
    find=_kernels_until_next_dot,
    priority=1,
)
GRADIENTS_AFTER_INPUTS = CompilerRule(
    name="weight-gradients-are-born-after-input-gradients",
    backends=("gpu",),
    stage="schedule",
    does="The result of a deferred weight gradient is not live beside operands of the next input gradient.",
    source=f"{XLA}service/gpu/gpu_hlo_schedule.cc",
    made_after=("vgg",),
    test="tests/xla/test_deferred.py::test_a_gradient_waits_for_two_input_gradients",
    find=_born_after,
    priority=1,
)
INPUT_GRADIENTS_FIRST = CompilerRule(
    name="input-gradients-come-first",
    backends=("tpu",),
    stage="schedule",
    does="The gradient of a large parameter runs after the input gradient that reads it last, as the lowering asks.",
    source=JAXPLAN_LOWERING,
    made_after=("gpt", "gemma"),
    test="tests/partition/test_orders.py::test_an_input_gradient_comes_first_on_tpus",
    find=_input_gradients_first,
)
SUMS_OVER_TRIPS = CompilerRule(
    name="gradients-of-trips-are-added-at-once",
    backends=ALL,
    stage="schedule",
    does="An addition to a carry that nothing else reads runs as soon as its summand is made.",
    source=_SCHEDULER,
    made_after=(),
    test="tests/xla/test_compiled_steps.py::test_compiled_bytes_are_those_with_the_rule",
    find=_sums_of_trips,
)
