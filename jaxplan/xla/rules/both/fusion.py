"""What has a kernel of its own, and so is written to memory."""

from __future__ import annotations

from jaxplan.xla._rule import ALL, XLA, CompilerRule

OUTER_PRODUCTS = CompilerRule(
    name="outer-products-are-multiplications",
    backends=ALL,
    stage="fusion",
    does="A dot that sums nothing becomes a multiplication, which is fused.",
    source=f"{XLA}hlo/transforms/simplifiers/algebraic_simplifier.cc",
    made_after=("dlrm",),
    test="tests/xla/test_kernels.py::test_a_product_that_sums_nothing_is_fused",
)
REDUCTIONS_READ_FUSED = CompilerRule(
    name="reductions-compute-their-operands",
    backends=ALL,
    stage="fusion",
    does="A reduction computes the element-wise chain in front of it inside of its kernel.",
    source=f"{XLA}service/instruction_fusion.cc",
    made_after=(),
    test="tests/cost/test_prediction.py::test_what_is_saved_for_the_backward_pass",
)
LOOP_BOUNDARIES = CompilerRule(
    name="loops-read-and-make-buffers",
    backends=ALL,
    stage="fusion",
    does="Operands, carries and results of loops and branches are buffers, not fused with what is around them.",
    source=f"{XLA}service/copy_insertion.cc",
    made_after=("lstm",),
    test="tests/simulate/test_simulated_plan.py::test_loops_and_steps_without_compute",
)
LOOP_CONSTANTS = CompilerRule(
    name="arguments-in-loops-are-no-copies",
    backends=ALL,
    stage="fusion",
    does="An argument of the step that a loop reads unchanged is the same buffer inside of it.",
    source=f"{XLA}service/while_loop_invariant_code_motion.cc",
    made_after=("lstm",),
    test="tests/cost/test_operator_times.py::test_loops_run_their_operators_each_trip",
)
CUT_ARGUMENTS = CompilerRule(
    name="micro-batches-are-slices-of-arguments",
    backends=ALL,
    stage="fusion",
    does="A loop over an argument whose leading dimension was split reads the argument's own buffer.",
    source=f"{XLA}hlo/transforms/simplifiers/algebraic_simplifier.cc",
    made_after=(),
    test="tests/cost/test_prediction.py::test_resident_bytes_are_state_and_batch",
)
RESIDUAL_SUMS = CompilerRule(
    name="residual-sums-are-written-once",
    backends=ALL,
    stage="fusion",
    does="A sum of two activations that several kernels read is written once and not recomputed in each.",
    source=f"{XLA}service/instruction_fusion.cc",
    made_after=("gpt", "resnet50"),
    test="tests/cost/test_prediction.py::test_what_is_saved_for_the_backward_pass",
)
