"""When operators run that nothing waits for."""

from __future__ import annotations

from jaxplan.xla._rule import ALL, JAXPLAN_LOWERING, XLA, CompilerRule

_SCHEDULER = f"{XLA}hlo/transforms/simplifiers/hlo_memory_scheduler.cc"

LARGE_PARAMETER_BYTES = 4 * 2**20
"""From so many bytes on the lowering says when a parameter is gathered, and makes gradients of tables one after the
other; smaller ones the compiler combines (docs/lowering.md)."""

DEFERRED_GRADIENTS = CompilerRule(
    name="weight-gradients-are-deferred",
    backends=("gpu", "tpu"),
    stage="schedule",
    does="The dot of a weight gradient runs after the next input gradient, at the latest with the one after that.",
    source=_SCHEDULER,
    made_after=("vit",),
    test="tests/xla/test_deferred.py::test_a_gradient_waits_for_two_input_gradients",
)
DEFERRED_KERNEL_GRADIENTS = CompilerRule(
    name="kernel-gradients-are-deferred-to-the-next-dot",
    backends=("gpu", "tpu"),
    stage="schedule",
    does="The weight gradient of a convolution runs at the end of the element-wise passes before the next dot.",
    source=_SCHEDULER,
    made_after=("unet", "vgg"),
    test="tests/xla/test_deferred.py::test_so_does_that_of_a_convolution",
)
SUMS_OVER_TRIPS = CompilerRule(
    name="gradients-of-trips-are-added-at-once",
    backends=ALL,
    stage="schedule",
    does="An addition to a carry that nothing else reads runs as soon as its summand is made.",
    source=_SCHEDULER,
    made_after=(),
    test="tests/xla/test_in_place.py::test_a_product_of_a_carry_needs_a_second_buffer",
)
GRADIENTS_AT_BARRIERS = CompilerRule(
    name="gradients-wait-for-the-next-barrier",
    backends=ALL,
    stage="schedule",
    does="Between recomputed regions a weight gradient is made by the barrier after the next, as the lowering asks.",
    source=JAXPLAN_LOWERING,
    made_after=("llama",),
    test="tests/partition/test_held_back.py::test_logits_are_gone_before_blocks_are_computed_again",
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
