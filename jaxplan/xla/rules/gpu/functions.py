"""Functions that GPU programs save rather than compute twice, and the width in which they do."""

from __future__ import annotations

from jaxplan.xla._rule import XLA, CompilerRule, Observed, zoo

_ONE_BY_ONE = Observed(
    evidence="perceptrons with each function between their dots, compiled for H100 and A100",
    command="python -m pytest -m gpu_aot tests/cost/test_functions.py",
)

SAVED_FUNCTIONS = CompilerRule(
    name="costly-functions-are-saved",
    backends=("gpu", "cpu"),
    stage="residuals",
    does="`tanh`, `erfc`, `erf_inv`, `pow`, `digamma` and `lgamma` are saved for the backward pass.",
    source=_ONE_BY_ONE,
    made_after=("gpt", "bert"),
    test="tests/cost/test_functions.py::test_what_gpus_save_of_a_function",
)
SAVED_FUNCTIONS_OF_16_BITS = CompilerRule(
    name="trigonometry-of-16-bits-is-saved",
    backends=("gpu",),
    arithmetic="bf16",
    stage="residuals",
    does="`sin`, `cos`, `atan`, `atan2` and `expm1` are saved where element-wise arithmetic is of 16 bits.",
    source=_ONE_BY_ONE,
    made_after=(),
    test="tests/cost/test_functions.py::test_what_gpus_save_of_a_function",
)
ERFC_ARGUMENTS = CompilerRule(
    name="arguments-of-erfc-are-saved",
    backends=("gpu",),
    stage="residuals",
    does="`erfc` becomes many operators that read its argument, so what makes the argument is saved.",
    source=_ONE_BY_ONE,
    made_after=("wav2vec",),
    test="tests/cost/test_functions.py::test_gpus_save_what_erfc_reads",
)
ERFC_OF_CONVOLUTIONS = CompilerRule(
    name="erfc-of-convolutions-recomputes-its-argument",
    backends=("gpu",),
    arithmetic="bf16",
    stage="residuals",
    does="Where `erfc` is computed of the result of a convolution its argument is recomputed of that.",
    source=_ONE_BY_ONE,
    made_after=("wav2vec",),
    test="tests/cost/test_functions.py::test_gpus_do_not_save_what_erfc_reads_of_a_convolution",
)
WIDE_FUNCTIONS = CompilerRule(
    name="saved-functions-are-float32",
    backends=("gpu",),
    arithmetic="f32",
    stage="layouts",
    does="A 16-bit result of a saved function is saved as the float32 in which it was computed.",
    source=f"{XLA}service/float_normalization.cc",
    made_after=("gpt",),
    test="tests/cost/test_functions.py::test_what_gpus_save_where_arithmetic_is_wide",
)
WIDE_COPIES = CompilerRule(
    name="resharded-copies-are-saved-in-float32",
    backends=("gpu",),
    stage="layouts",
    does="A resharded 16-bit value that both passes cast to float32 is saved once more in float32, but for logits.",
    source=Observed(
        evidence="ResNet-50 with activations moved between layouts, BERT whose logits are a sum over all devices",
        command=zoo("h100:8", "resnet50", "bert"),
    ),
    made_after=("resnet50", "bert"),
    test="tests/partition/test_plan_compiles.py::test_the_compiled_program_is_the_planned_one",
)
