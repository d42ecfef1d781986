"""Contents of buffers where they differ from the program: functions in float32, copies that are widened."""

from __future__ import annotations

from collections.abc import Sequence

from jaxplan.ir import StepGraph
from jaxplan.xla._target import Target
from jaxplan.xla.rules.gpu.functions import NOT_RECOMPUTED, WIDE_COPIES, WIDE_FUNCTIONS

_WIDE_BYTES = 4


def buffer_bytes(graph: StepGraph, target: Target, t: int) -> int:
    """Global bytes of a tensor as a buffer."""
    tensor, index = graph.program.tensors[t], graph.values.producer[t]
    if index < 0 or tensor.itemsize >= _WIDE_BYTES or not WIDE_FUNCTIONS.applies_to(target):
        return tensor.num_bytes
    wide = graph.program.equations[index].name in NOT_RECOMPUTED
    return tensor.num_elements * _WIDE_BYTES if wide else tensor.num_bytes


def widened_copies(graph: StepGraph, target: Target, materialised: Sequence[bool]) -> frozenset[int]:
    """16-bit tensors that the fusions of both passes cast to float32, logits excluded."""
    if not WIDE_COPIES.applies_to(target):
        return frozenset()
    tensors, found = graph.program.tensors, set()
    for eqn in graph.program.equations:
        if eqn.name != "convert_element_type" or eqn.phase == "backward" or materialised[eqn.results[0]]:
            continue
        narrow, wide = tensors[eqn.operands[0]], tensors[eqn.results[0]]
        is_wider = narrow.itemsize < _WIDE_BYTES == wide.itemsize and wide.dtype.kind == "f"
        if is_wider and not _is_normalised(graph, wide.index):
            found.add(narrow.index)
    return frozenset(found)


def _is_normalised(graph: StepGraph, t: int) -> bool:
    """Whether the maximum is taken of a value, or of a sum with it: fusions recompute both (logits)."""
    readers = [graph.program.equations[c] for c in graph.values.consumers[t]]
    readers += [
        graph.program.equations[c]
        for eqn in readers
        if graph.rules[eqn.index].family == "elementwise"
        for c in graph.values.consumers[eqn.results[0]]
    ]
    return any(eqn.name == "reduce_max" for eqn in readers)
