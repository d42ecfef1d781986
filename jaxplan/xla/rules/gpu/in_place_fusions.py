"""Element-wise fusions that write their result over an operand."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence

from jaxplan.ir import StepGraph
from jaxplan.xla._effects import Overwrite
from jaxplan.xla._facts import Facts, walk
from jaxplan.xla._rule import XLA, CompilerRule
from jaxplan.xla.rules.gpu.row_sums import SPLIT_ROWS, row_sums


def _write_over_operands(facts: Facts) -> Iterator[Overwrite]:
    """Operands that an element-wise fusion reads last, and writes over.

    XLA lets a GPU fusion write its result over an operand of the same shape and element size that nothing reads later,
    where every path between both is element-wise:
    https://github.com/openxla/xla/blob/main/xla/service/gpu/alias_info.cc (``FusionCanShareBufferHint``, in earlier
    versions buffer_sharing.cc). One operand makes room for one result. The result of a library call is an element of a
    tuple, beside its scratch memory, and so no operand of the fusion itself: it is never written over
    (https://github.com/openxla/xla/blob/main/xla/service/heap_simulator/heap_simulator.cc, ``IsUserOf``).
    """
    graph, program, written, death = facts.graph, facts.graph.program, facts.written, facts.death
    calls = (e for e in program.equations if facts.is_dot(e.index))
    kept = {*program.inputs, *program.outputs, *(t for e in calls for t in e.results)}
    for eqn in program.equations:
        for result in eqn.results:
            if not written[result] or facts.family(eqn.index) != "elementwise" or _is_summed_with(facts, result):
                continue
            for t in _elementwise_sources(graph, result, written):
                is_last = death[t] == eqn.index and t not in kept and graph.values.producer[t] >= 0
                if is_last and _is_read_in_order(facts, t, result):
                    yield Overwrite(eqn.index, t)
                    break


def _elementwise_sources(graph: StepGraph, result: int, materialised: Sequence[bool]) -> Iterator[int]:
    """Buffers of the shape and element size of a result that it is computed of by fused element-wise operators."""
    program, values = graph.program, graph.values
    like = program.tensors[result]
    stack, seen = [result], {result}
    while stack:
        made = values.producer[stack.pop()]
        if made < 0 or graph.rules[made].family != "elementwise":
            continue
        for t in program.equations[made].operands:
            tensor = program.tensors[t]
            if t in seen or tensor.shape != like.shape or values.free[t]:
                continue
            seen.add(t)
            if not materialised[t]:
                stack.append(t)
            elif tensor.itemsize == like.itemsize:
                yield t


def _is_summed_with(facts: Facts, result: int) -> bool:
    """Whether a fusion also sums its result over many rows, which is not element by element.

    The rows count as if they were split over all devices.
    """
    shape = facts.tensors[result].shape
    rows = math.prod(shape[:-1]) // (facts.target.num_devices or 1)

    def fused(t: int) -> list[int]:
        computed = (r for e in facts.readers(t) if facts.family(e.index) == "elementwise" for r in e.results)
        return [r for r in computed if not facts.written[r] and facts.tensors[r].shape == shape]

    return rows > SPLIT_ROWS and bool(row_sums(facts, walk([result], fused)))


def _is_read_in_order(facts: Facts, t: int, result: int) -> bool:
    """Whether a fusion reads a buffer, element by element, where it writes its result, and is sure to read it last.

    Another reader that the result depends on has run before, and so has an earlier dot where dots run in the order of
    the program. Any other, such as the loss beside the gradient of the logits, may run later.
    """
    graph, materialised = facts.graph, facts.written
    program, values = graph.program, graph.values
    last = values.producer[result]
    shape = program.tensors[result].shape
    stack, seen = [t], {t}
    while stack:
        for c in values.consumers[stack.pop()]:
            if facts.in_order and c < last and facts.is_dot(c):
                continue
            if not _leads_to(graph, c, last):
                return False
            for r in program.equations[c].results:
                if r in seen or r == result or materialised[r]:
                    continue
                seen.add(r)
                if graph.rules[c].family != "elementwise" or program.tensors[r].shape != shape:
                    return False
                stack.append(r)
    return True


def _leads_to(graph: StepGraph, equation: int, last: int) -> bool:
    """Whether an equation is ``last``, or ``last`` depends on it.

    Later consumers first: those of the backward pass are mostly near the end of the way, however long the program is.
    """
    consumers, equations = graph.values.consumers, graph.program.equations
    heap, seen = [-equation], {equation}
    while heap:
        e = -heapq.heappop(heap)
        if e == last:
            return True
        for r in equations[e].results:
            for c in consumers[r]:
                if c <= last and c not in seen:
                    seen.add(c)
                    heapq.heappush(heap, -c)
    return False


FUSIONS_IN_PLACE = CompilerRule(
    name="fusions-write-over-operands",
    backends=("gpu",),
    stage="reuse",
    does="An element-wise fusion writes over an operand of equal shape and element size that it reads last, unless it "
    "sums its result too.",
    source=f"{XLA}service/gpu/alias_info.cc",
    made_after=(),
    test="tests/xla/test_in_place.py::test_a_gpu_fusion_writes_over_an_operand_that_it_reads_last",
    find=_write_over_operands,
)
