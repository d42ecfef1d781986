"""When operators run that nothing waits for."""

from __future__ import annotations

from jaxplan.xla._rule import ALL, JAXPLAN_LOWERING, XLA, CompilerRule

_SCHEDULER = f"{XLA}hlo/transforms/simplifiers/hlo_memory_scheduler.cc"

LARGE_PARAMETER_BYTES = 4 * 2**20
"""From so many bytes on the lowering says when a parameter is gathered, and makes gradients of tables one after the
other; smaller ones the compiler combines (docs/lowering.md)."""

GRADIENTS_AT_BARRIERS = CompilerRule(
    name="gradients-wait-for-the-next-barrier",
    backends=ALL,
    stage="schedule",
    does="Between recomputed regions a weight gradient is made by the barrier after the next, as the lowering asks.",
    source=JAXPLAN_LOWERING,
    made_after=("llama",),
    test="tests/partition/test_gradient_barriers.py::test_logits_are_gone_before_blocks_are_computed_again",
)
LARGE_SUMS_AT_ONCE = CompilerRule(
    name="large-sums-are-reduced-at-once",
    backends=ALL,
    stage="schedule",
    does="A partial sum that is too large to be combined with others is reduced where it is made.",
    source=f"{XLA}service/collective_utils.h",
    made_after=("gpt",),
    test="tests/partition/test_combiner.py::test_large_gradients_are_reduced_one_by_one",
)
