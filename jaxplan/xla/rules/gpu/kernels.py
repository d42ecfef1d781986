"""Equations fused into GPU kernels."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.ir import STORED_KINDS, UNGROUPED
from jaxplan.xla._effects import Absorb, Inline
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import XLA, CompilerRule
from jaxplan.xla.rules.both.schedule import LARGE_PARAMETER_BYTES
from jaxplan.xla.rules.gpu.pooling import is_disjoint

_PRIORITY_FUSION = f"{XLA}service/gpu/transforms/priority_fusion.cc"


def _look_ups(facts: Facts) -> Iterator[Inline]:
    """Rows of large parameters are written before the next such table is gathered, as the lowering asks."""
    for eqn in facts.equations:
        if facts.family(eqn.index) == "gather" and not _is_large_parameter(facts, eqn.operands[0]):
            yield Inline(eqn.index)


def _is_large_parameter(facts: Facts, t: int) -> bool:
    grouping = facts.graph.grouping
    group = grouping.tensor_group[t]
    is_stored = group != UNGROUPED and grouping.groups[group].kind in STORED_KINDS
    return is_stored and facts.tensors[t].num_bytes >= LARGE_PARAMETER_BYTES


LOOK_UPS_FUSED = CompilerRule(
    name="look-ups-are-fused",
    backends=("gpu",),
    stage="kernels",
    does="Rows that are looked up are read inside of the kernels that use them, but for those of large parameters.",
    source=_PRIORITY_FUSION,
    made_after=(),
    test="tests/xla/test_kernels.py::test_messages_are_no_buffers_on_a_gpu",
    find=_look_ups,
)


def _updates_of_scatters(facts: Facts) -> Iterator[Absorb]:
    scatters = (e for e in facts.equations if facts.family(e.index) == "scatter")
    return (Absorb(e.index, t) for e in scatters for t in e.operands if t != e.operands[0])


SCATTER_UPDATES_FUSED = CompilerRule(
    name="scatters-compute-their-updates",
    backends=("gpu",),
    stage="kernels",
    does="A scatter computes its updates inside of its kernel.",
    source=f"{XLA}backends/gpu/codegen/emitters/scatter.cc",
    made_after=(),
    test="tests/xla/test_kernels.py::test_compiled_message_passing_needs_what_is_predicted",
    find=_updates_of_scatters,
)


def _operands_of_disjoint_windows(facts: Facts) -> Iterator[Absorb]:
    poolings = (e for e in facts.equations if facts.family(e.index) == "window" and is_disjoint(e))
    return (Absorb(e.index, t) for e in poolings for t in e.operands)


DISJOINT_WINDOWS_FUSED = CompilerRule(
    name="disjoint-windows-compute-their-operand",
    backends=("gpu",),
    stage="kernels",
    does="A pooling of windows that do not overlap computes its operand inside of its kernel.",
    source=_PRIORITY_FUSION,
    made_after=("unet",),
    test="tests/xla/test_pooling.py::test_windows_side_by_side_compute_what_they_read",
    find=_operands_of_disjoint_windows,
)
