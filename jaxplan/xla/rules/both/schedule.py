"""When operators run that nothing waits for."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.ir import backward_barriers
from jaxplan.xla._facts import Facts
from jaxplan.xla._plan_effects import AwaitBarriers, ReduceAtOnce
from jaxplan.xla._rule import ALL, JAXPLAN_LOWERING, XLA, CompilerRule

_SCHEDULER = f"{XLA}hlo/transforms/simplifiers/hlo_memory_scheduler.cc"

LARGE_PARAMETER_BYTES = 4 * 2**20
"""From so many bytes on the lowering says when a parameter is gathered, and makes gradients of tables one after the
other; smaller ones the compiler combines (docs/lowering.md)."""

COMBINED_BYTES = 30 * 2**20
"""Larger sums are taken as soon as their summands are made. Smaller ones the compiler combines with others of a kind
(30 MiB for all-reduce on GPUs, https://github.com/openxla/xla/blob/main/xla/service/collective_utils.h), so they wait
for their reader. Programs of less than 3 GiB are compiled with lower limits (`jaxplan.partition`); there the prediction
is the more careful one."""


def _barriers(facts: Facts) -> Iterator[AwaitBarriers]:
    barriers = tuple(equations.start for equations in backward_barriers(facts.graph.program))
    if barriers:
        yield AwaitBarriers(barriers)


def _large_sums(facts: Facts) -> Iterator[ReduceAtOnce]:
    yield ReduceAtOnce(COMBINED_BYTES)


GRADIENTS_AT_BARRIERS = CompilerRule(
    name="gradients-wait-for-the-next-barrier",
    backends=ALL,
    stage="schedule",
    does="Between recomputed regions a weight gradient is made by the barrier after the next, as the lowering asks.",
    source=JAXPLAN_LOWERING,
    made_after=("llama",),
    test="tests/partition/test_gradient_barriers.py::test_logits_are_gone_before_blocks_are_computed_again",
    find=_barriers,
)
LARGE_SUMS_AT_ONCE = CompilerRule(
    name="large-sums-are-reduced-at-once",
    backends=ALL,
    stage="schedule",
    does="A partial sum that is too large to be combined with others is reduced where it is made.",
    source=f"{XLA}service/collective_utils.h",
    made_after=("gpt",),
    test="tests/partition/test_combiner.py::test_large_gradients_are_reduced_one_by_one",
    find=_large_sums,
)
