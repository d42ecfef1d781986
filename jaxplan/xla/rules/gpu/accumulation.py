"""Sums that a library call makes while it multiplies."""

from __future__ import annotations

from jaxplan.xla._rule import XLA, CompilerRule

GEMM_ADDS_C = CompilerRule(
    name="gemm-accumulates-into-c",
    backends=("gpu",),
    stage="fusion",
    does="A dot that only a sum reads is one library call with it, D = alpha A B + C, written over C.",
    source=f"{XLA}service/gpu/transforms/gemm_rewriter.cc",
    made_after=("dlrm", "gpt"),
    test="tests/xla/test_library_sums.py::test_products_are_added_up_in_one_buffer",
)
CONVOLUTION_ADDS_SIDE_INPUT = CompilerRule(
    name="convolution-adds-side-input",
    backends=("gpu",),
    stage="fusion",
    does="The input gradient of a convolution of one pixel is added to another by the library, into a new buffer.",
    source=f"{XLA}service/gpu/transforms/cudnn_fused_conv_rewriter.cc",
    made_after=("densenet", "inception"),
    test="tests/xla/test_library_sums.py::test_input_gradients_of_one_pixel_are_added_up",
)
MERGED_DOTS = CompilerRule(
    name="merged-dots-are-added-to-nothing",
    backends=("gpu",),
    stage="fusion",
    does="Small dots that share an operand are merged into one, which is then part of no sum.",
    source=f"{XLA}hlo/transforms/simplifiers/dot_merger.h",
    made_after=("gpt",),
    test="tests/xla/test_library_sums.py::test_a_product_with_other_readers_keeps_its_own",
)
