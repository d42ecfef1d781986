"""What GPU kernels compute inside of them."""

from __future__ import annotations

from jaxplan.xla._rule import XLA, CompilerRule, Fitted

_PRIORITY_FUSION = f"{XLA}service/gpu/transforms/priority_fusion.cc"

LOOK_UPS_FUSED = CompilerRule(
    name="look-ups-are-fused",
    backends=("gpu",),
    stage="fusion",
    does="Rows that are looked up are read inside of the kernels that use them, but for those of large parameters.",
    source=_PRIORITY_FUSION,
    made_after=(),
    test="tests/xla/test_kernels.py::test_messages_are_no_buffers_on_a_gpu",
)
SCATTER_UPDATES_FUSED = CompilerRule(
    name="scatters-compute-their-updates",
    backends=("gpu",),
    stage="fusion",
    does="A scatter computes its updates inside of its kernel.",
    source=f"{XLA}backends/gpu/codegen/emitters/scatter.cc",
    made_after=(),
    test="tests/xla/test_kernels.py::test_compiled_message_passing_needs_what_is_predicted",
)
DISJOINT_WINDOWS_FUSED = CompilerRule(
    name="disjoint-windows-compute-their-operand",
    backends=("gpu",),
    stage="fusion",
    does="A pooling whose windows do not overlap computes what it reads inside of its kernel.",
    source=_PRIORITY_FUSION,
    made_after=("unet",),
    test="tests/xla/test_pooling.py::test_windows_side_by_side_compute_what_they_read",
)
SQUEEZE_AND_EXCITATION = CompilerRule(
    name="gated-images-are-written",
    backends=("gpu",),
    stage="fusion",
    does="An image that dots on its own mean weigh is written if it takes a transcendental function or a rectifier.",
    source=_PRIORITY_FUSION,
    made_after=("efficientnet", "regnet"),
    test="tests/xla/test_gated.py::test_gpus_write_what_is_weighed_behind_a_function",
)
SUMMANDS_OF_FEW_BLOCKS = CompilerRule(
    name="summands-of-few-blocks-are-written",
    backends=("gpu",),
    stage="fusion",
    does="What a sum over columns adds up is written in float32 where its kernel has too few blocks for the chip.",
    source=Fitted(
        value=2.0,
        unit="casts for each summand, times the share of the multiprocessors that run them",
        evidence=f"group norms of 17 shapes with 16 to 512 blocks compiled for H100; the pass is {_PRIORITY_FUSION}",
        command="python -m pytest tests/xla/test_summands.py",
    ),
    made_after=("gpt", "moe", "resnet50", "unet"),
    test="tests/xla/test_summands.py::test_as_many_summands_are_written_as_were_compiled",
)
