"""Layouts that libraries ask for: transposed copies, padded matrices, indices of poolings."""

from __future__ import annotations

from jaxplan.xla._rule import XLA, CompilerRule, Fitted, Observed, zoo

_LAYOUTS = f"{XLA}service/gpu/transforms/layout_assignment.cc"
_TILED = f"{XLA}service/gpu/ir_emission_utils.cc"
_POOLING = f"{XLA}service/select_and_scatter_expander.cc"

TRANSPOSED_OPERANDS = CompilerRule(
    name="batched-dots-read-one-layout",
    backends=("gpu",),
    stage="layouts",
    does="A batched dot of several free or contracted dimensions reads one layout; for two layouts, two copies.",
    source=_LAYOUTS,
    made_after=("llama", "moe"),
    test="tests/xla/test_transposed.py::test_a_batch_and_several_dimensions_fix_the_order",
)
TRANSPOSED_IN_FLOAT32 = CompilerRule(
    name="results-meet-transposed-in-float32",
    backends=("gpu",),
    stage="layouts",
    does="The result of a dot that meets a value of another layout is cast to float32 and transposed where they meet.",
    source=_LAYOUTS,
    made_after=("llama",),
    test="tests/xla/test_transposed.py::test_gradients_of_grouped_attention_are_transposed_in_float32",
)
WRITTEN_IN_BOTH_LAYOUTS = CompilerRule(
    name="one-fusion-writes-both-layouts",
    backends=("gpu",),
    stage="layouts",
    does="What the backward pass reads in another layout is written in both, or again where a tiled kernel moves it.",
    source=_TILED,
    made_after=("llama", "qwen"),
    test="tests/xla/test_transposed.py::test_what_is_not_transposed_at_first_is_written_in_both_orders",
)
SAVED_EXPONENTIALS = CompilerRule(
    name="exponentials-of-many-capped-scores-are-saved",
    backends=("gpu",),
    stage="layouts",
    does="Exponentials of scores that a `tanh` caps are saved beside it where a device has many.",
    source=Fitted(
        value=2**27,
        unit="elements",
        evidence="a Gemma of 8, 16, 24 and 32 sequences of 8 heads and 1024 positions compiled for H100",
        command=zoo("h100:8", "gemma"),
    ),
    made_after=("gemma",),
    test="tests/xla/test_transposed.py::test_exponentials_of_many_capped_scores_are_saved",
)
PADDED_MATRICES = CompilerRule(
    name="matrices-of-16-bits-are-padded",
    backends=("gpu",),
    stage="layouts",
    does="Rows and columns of 16-bit matrices are padded to multiples of eight, and kept so.",
    source=f"{XLA}service/gpu/transforms/cublas_pad_for_gemms.cc",
    made_after=("vit", "swin"),
    test="tests/cost/test_work.py::test_what_is_padded_is_kept_so",
)
POOLING_INDICES = CompilerRule(
    name="pooling-gradients-write-indices",
    backends=("gpu",),
    stage="layouts",
    does="The gradient of max pooling writes an index for each dimension of each maximum, and the maxima again.",
    source=_POOLING,
    made_after=("vgg", "unet"),
    test="tests/xla/test_pooling.py::test_places_and_values_of_the_maxima",
)
POOLING_IN_FLOAT32 = CompilerRule(
    name="poolings-of-16-bits-are-float32",
    backends=("gpu",),
    stage="layouts",
    does="Max pooling over 16 bits is computed in float32, which is kept beside the result for readers that cast it.",
    source=_POOLING,
    made_after=("densenet",),
    test="tests/xla/test_pooling.py::test_results_are_there_in_float32_for_whom_casts_them",
)
GATHERS_IN_PIECES = CompilerRule(
    name="inner-gathers-are-transposed",
    backends=("gpu",),
    stage="liveness",
    does="What is gathered along an inner dimension arrives in pieces and is transposed: it is there twice for a dot.",
    source=_LAYOUTS,
    made_after=("gpt",),
    test="tests/cost/test_prediction.py::test_what_is_gathered_between_dimensions_is_transposed_for_a_product",
)
IMAGES_WITH_EDGES = CompilerRule(
    name="convolutions-read-images-with-edges",
    backends=("gpu",),
    stage="liveness",
    does="A library reads whole arrays: a block and its neighbours' edges are put together, and saved so.",
    source=Observed(
        evidence="a DenseNet with split rows compiled for H100", command=zoo("h100:8", "densenet")
    ),
    made_after=("densenet",),
    test="tests/cost/test_extended.py::test_blocks_with_edges",
)
DOT_WORKSPACE = CompilerRule(
    name="dots-have-workspace",
    backends=("gpu",),
    stage="liveness",
    does="A dot has scratch memory while it runs, also where it waits for the scatter of its partial sum.",
    source=f"{XLA}service/gpu/transforms/gemm_workspace_rewriter.cc",
    made_after=("gpt",),
    test="tests/cost/test_prediction.py::test_peak_of_a_chain_of_products",
)
