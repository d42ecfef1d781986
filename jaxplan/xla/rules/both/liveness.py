"""Results that take the buffer of an operand, and copies that are shared."""

from __future__ import annotations

from jaxplan.xla._rule import ALL, JAXPLAN_LOWERING, XLA, CompilerRule

_ALIASES = f"{XLA}service/copy_insertion.cc"

SCATTERS_IN_PLACE = CompilerRule(
    name="scatters-write-over-their-operand",
    backends=ALL,
    stage="liveness",
    does="A scatter writes over the array that it adds to where nothing reads that later.",
    source=f"{XLA}hlo/analysis/hlo_dataflow_analysis.cc",
    made_after=("dlrm",),
    test="tests/xla/test_in_place.py::test_an_update_of_a_table_is_written_over_it",
)
CARRIES_IN_PLACE = CompilerRule(
    name="carries-are-one-buffer",
    backends=ALL,
    stage="liveness",
    does="A carry takes the buffer that it starts from, and its next value takes it when it was read last.",
    source=_ALIASES,
    made_after=("lstm",),
    test="tests/xla/test_in_place.py::test_a_product_of_a_carry_needs_a_second_buffer",
)
BRANCHES_IN_PLACE = CompilerRule(
    name="branches-write-over-what-they-hand-on",
    backends=ALL,
    stage="liveness",
    does="A `cond` of which one branch returns an operand unchanged writes its result over that operand.",
    source=_ALIASES,
    made_after=(),
    test="tests/xla/test_in_place.py::test_a_branch_that_changes_nothing_makes_the_other_write_in_place",
)
SHORTENED_SOURCES = CompilerRule(
    name="sources-of-resharded-values-die-early",
    backends=ALL,
    stage="liveness",
    does="What a resharded value was fused from lives no longer than that value before its collective.",
    source=f"{XLA}service/buffer_assignment.cc",
    made_after=("gpt",),
    test="tests/cost/test_tensor_reuse.py::test_what_is_kept",
)
SHARED_STEPS = CompilerRule(
    name="equal-first-steps-are-one-collective",
    backends=ALL,
    stage="liveness",
    does="Reshardings of one value that begin alike share these steps; what they share lives until the last goes on.",
    source=f"{XLA}service/hlo_cse.cc",
    made_after=("gpt",),
    test="tests/partition/test_plan_compiles.py::test_the_compiled_program_is_the_planned_one",
)
UPDATED_PARTS = CompilerRule(
    name="updated-shards-live-beside-their-gather",
    backends=ALL,
    stage="liveness",
    does="A shard that is updated and then gathered (ZeRO-1) lives until the end of the step.",
    source=f"{XLA}service/buffer_assignment.cc",
    made_after=("gpt",),
    test="tests/partition/test_plan_compiles.py::test_zero1_gathers_into_the_parameters_that_it_replaces",
)
GATHERED_INTO_ARGUMENTS = CompilerRule(
    name="updates-are-gathered-into-donated-arguments",
    backends=ALL,
    stage="liveness",
    does="A gathered update is written into the donated argument that it replaces, not into a buffer of its own.",
    source=f"{XLA}service/buffer_assignment.cc",
    made_after=("gpt",),
    test="tests/partition/test_plan_compiles.py::test_zero1_gathers_into_the_parameters_that_it_replaces",
)
NARROW_TRANSFERS = CompilerRule(
    name="casts-travel-narrow",
    backends=ALL,
    stage="layouts",
    does="A value that was cast to a wider dtype is resharded as it was before the cast, as the lowering spells it.",
    source=JAXPLAN_LOWERING,
    made_after=("moe",),
    test="tests/partition/test_replay.py::test_a_widened_value_travels_as_it_was",
)
