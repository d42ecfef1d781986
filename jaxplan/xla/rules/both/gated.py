"""Images weighted by a function of their own mean: squeeze and excitation (https://arxiv.org/abs/1709.01507)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from jaxplan.ir import CONTRACTION_FAMILIES, StepGraph
from jaxplan.xla._effects import Write
from jaxplan.xla._facts import Facts, walk
from jaxplan.xla._rule import XLA, CompilerRule, Observed, zoo
from jaxplan.xla.rules.tpu.channel_groups import grouped_results

_PRIORITY_FUSION = f"{XLA}service/gpu/transforms/priority_fusion.cc"

TRANSCENDENTAL = frozenset(
    {"exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "erf", "erfc", "sin", "cos", "pow"}
)
"""Functions that make it dearer to compute a value twice than to write it."""
_RECTIFIERS = frozenset({"max", "min", "clamp"})


def _weighed(facts: Facts, is_written: Callable[[int], bool]) -> Iterator[Write]:
    """Values that a sum is taken of, and that are multiplied with results of dots on the sum.

    The dots part the two kernels that read such a value. Programs compiled for GPUs wrote it for the second one
    where it takes a transcendental function (the swish of an EfficientNet) or is a rectifier's result on normalised
    values (a RegNet), and kept it; on TPUs it was recomputed, but where a convolution of groups of channels is
    before it.
    """
    graph, materialised = facts.graph, facts.written
    equations, consumers, producer = graph.program.equations, graph.values.consumers, graph.values.producer
    for eqn in equations:
        if graph.rules[eqn.index].family != "reduction" or eqn.phase != "forward":
            continue
        t = eqn.operands[0]
        while (made := producer[t]) >= 0 and equations[made].name == "convert_element_type":
            t = equations[made].operands[0]
        others = {c for c in consumers[t] if equations[c].phase == "forward" and c > eqn.index}
        if materialised[t] or graph.values.free[t]:
            continue
        size = graph.program.tensors[t].num_elements
        if is_written(t) and others & _behind_dots(graph, eqn.results[0], size):
            yield Write(t)


def _costly(facts: Facts) -> Iterator[Write]:
    return _weighed(facts, lambda t: _is_costly(facts.graph, t, facts.written))


def _grouped(facts: Facts) -> Iterator[Write]:
    grouped = grouped_results(facts.graph, facts.target)
    if grouped:
        yield from _weighed(facts, lambda t: not grouped.isdisjoint(_computed_from(facts.graph, t, facts.written)))


def _behind_dots(graph: StepGraph, t: int, size: int) -> set[int]:
    """Forward equations that read results of dots on a value, as far as these are smaller than ``size``."""
    program, found = graph.program, set()
    stack, seen = [(t, False)], {(t, False)}
    while stack:
        u, is_behind = stack.pop()
        for c in graph.values.consumers[u]:
            eqn = program.equations[c]
            if eqn.phase != "forward":
                continue
            if is_behind:
                found.add(c)
            through = is_behind or graph.rules[c].family in CONTRACTION_FAMILIES
            for r in eqn.results:
                is_small = program.tensors[r].num_elements < size or eqn.name == "broadcast_in_dim"
                if is_small and (r, through) not in seen:
                    seen.add((r, through))
                    stack.append((r, through))
    return found


def _is_costly(graph: StepGraph, t: int, materialised: Sequence[bool]) -> bool:
    """Whether a value takes a transcendental function, element by element, of a buffer, or a rectifier of a value
    computed from one."""
    program, size = graph.program, graph.program.tensors[t].num_elements
    for u in _computed_from(graph, t, materialised):
        if materialised[u] or graph.values.producer[u] < 0 or program.tensors[u].num_elements != size:
            continue
        eqn = program.equations[graph.values.producer[u]]
        if eqn.name in TRANSCENDENTAL:
            return True
        if eqn.name in _RECTIFIERS and not all(materialised[v] or graph.values.free[v] for v in eqn.operands):
            return True
    return False


def _computed_from(graph: StepGraph, t: int, materialised: Sequence[bool]) -> set[int]:
    """A value, and its element-wise sources, back to the buffers."""

    def sources(u: int) -> Sequence[int]:
        made = graph.values.producer[u]
        is_fused = made >= 0 and not materialised[u] and graph.rules[made].family in ("elementwise", "shape")
        return graph.program.equations[made].operands if is_fused else ()

    return set(walk([t], sources))


SQUEEZE_AND_EXCITATION = CompilerRule(
    name="gated-images-are-written",
    backends=("gpu",),
    stage="fusion",
    does="An image that dots on its own mean weigh is written if it takes a transcendental function or a rectifier.",
    source=_PRIORITY_FUSION,
    made_after=("efficientnet", "regnet"),
    test="tests/xla/test_gated.py::test_gpus_write_what_is_weighed_behind_a_function",
    find=_costly,
    priority=2,
)
GATED_GROUPS = CompilerRule(
    name="gated-images-of-channel-groups-are-written",
    backends=("tpu",),
    stage="fusion",
    does="An image that dots on its own mean weigh is written if a convolution of channel groups is before it.",
    source=Observed(evidence="a RegNetY compiled for v5e", command=zoo("v5e:2x4", "regnet")),
    made_after=("regnet",),
    test="tests/xla/test_gated.py::test_tpus_compute_it_again",
    find=_grouped,
    priority=2,
)
