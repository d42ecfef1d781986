"""What TPU kernels compute inside of them, and what is written all the same."""

from __future__ import annotations

from jaxplan.xla._rule import CompilerRule, Observed, zoo

DOTS_READ_FUSED = CompilerRule(
    name="dots-compute-their-operands",
    backends=("tpu",),
    stage="fusion",
    does="A dot or convolution computes what it reads inside of its kernel, however often it is read.",
    source=Observed(
        evidence="attention probabilities, GELUs and gradients of logits of transformers compiled for v5e",
        command=zoo("v5e:2x4", "gpt", "llama"),
    ),
    made_after=("gpt", "bert", "resnet50"),
    test="tests/partition/test_torus_memory.py::test_compiled_memory_is_the_predicted_one",
)
RECTIFIED_SUMS = CompilerRule(
    name="rectifiers-of-sums-are-recomputed",
    backends=("tpu",),
    stage="fusion",
    does="Behind a residual sum the sum is kept, and dots compute the rectifier of it as they read it.",
    source=Observed(evidence="ResNet-50 compiled for v5e", command=zoo("v5e:2x4", "resnet50")),
    made_after=("resnet50",),
    test="tests/partition/test_torus_memory.py::test_images_have_batch_and_features_innermost",
)
REARRANGED = CompilerRule(
    name="reshapes-that-no-layout-frees-are-written",
    backends=("tpu",),
    stage="fusion",
    does="A reshape that merges dimensions which are adjacent in no layout (windows of an image) is written.",
    source=Observed(evidence="a Swin transformer compiled for v5e", command=zoo("v5e:2x4", "swin")),
    made_after=("swin",),
    test="tests/xla/test_rearranged.py::test_windows_are_written_on_tpus_and_kept_for_the_backward_pass",
)
INTERLEAVED = CompilerRule(
    name="interleaving-pads-are-written",
    backends=("tpu",),
    stage="fusion",
    does="Arrays padded between their elements are written, and slices of their sum are computed of the two.",
    source=Observed(evidence="a Mamba compiled for v5e", command=zoo("v5e:2x4", "mamba")),
    made_after=("mamba",),
    test="tests/xla/test_slices.py::test_every_level_of_a_scan_saves_what_it_combines_and_both_halves_of_its_result",
)
STRIDED_SLICES = CompilerRule(
    name="strided-slices-read-buffers",
    backends=("tpu",),
    stage="fusion",
    does="What a slice takes every other element of is written.",
    source=Observed(evidence="a Mamba compiled for v5e", command=zoo("v5e:2x4", "mamba")),
    made_after=("mamba",),
    test="tests/xla/test_slices.py::test_every_level_of_a_scan_saves_what_it_combines_and_both_halves_of_its_result",
)
WIDENED_SCORES = CompilerRule(
    name="widened-scores-are-kept-in-float32",
    backends=("tpu",),
    stage="fusion",
    does="Scores that are widened and then scaled, biased or masked are written so by their dot.",
    source=Observed(evidence="T5 and Gemma compiled for v5e", command=zoo("v5e:2x4", "t5", "gemma")),
    made_after=("t5", "gemma", "llama"),
    test="tests/xla/test_dot_results.py::test_scores_that_are_widened_and_changed_are_kept_wide",
)
GRADIENTS_OF_WIDENED = CompilerRule(
    name="gradients-of-widened-scores-are-written",
    backends=("tpu",),
    stage="fusion",
    does="The gradient of scores that are kept in float32 is written, narrowed, for the two dots that read it.",
    source=Observed(evidence="T5 compiled for v5e", command=zoo("v5e:2x4", "t5")),
    made_after=("t5",),
    test="tests/xla/test_dot_results.py::test_gradients_of_scores_that_are_kept_wide_are_written",
)
DOTS_WRITE_FUSED = CompilerRule(
    name="backward-dots-write-what-is-computed-of-them",
    backends=("tpu",),
    stage="fusion",
    does="A backward dot of which one value of its size is computed, element by element, writes that value.",
    source=Observed(evidence="GELUs of GPT and ViT compiled for v5e", command=zoo("v5e:2x4", "gpt", "vit")),
    made_after=("gpt", "vit"),
    test="tests/xla/test_dot_results.py::test_the_gradient_in_front_of_a_gelu_is_what_its_product_writes",
)
ROWS_OF_BATCHES = CompilerRule(
    name="batches-of-rows-are-written",
    backends=("tpu",),
    stage="fusion",
    does="Operands of batched dots whose rows are several dimensions (tokens of experts) are written.",
    source=Observed(evidence="mixtures of experts and Llama compiled for v5e", command=zoo("v5e:2x4", "moe", "llama")),
    made_after=("moe", "llama"),
    test="tests/cost/test_tiles.py::test_rows_that_products_read_in_batches_are_written",
)
TRANSPOSED_FOR_DOTS = CompilerRule(
    name="images-are-transposed-for-dots",
    backends=("tpu",),
    stage="fusion",
    does="Images and tokens that a dot over features reads are written transposed where its layout is another.",
    source=Observed(
        evidence="ConvNeXt, Mixer, Whisper, a masked autoencoder and CLIP compiled for v5e",
        command=zoo("v5e:2x4", "convnext", "mixer", "whisper", "mae", "clip"),
    ),
    made_after=("convnext", "mixer", "whisper", "mae", "clip"),
    test="tests/cost/test_tiles.py::test_normalised_images_are_turned_for_products_where_rows_of_pixels_are_not_padded",
)
FLATTENED_IMAGES = CompilerRule(
    name="flattened-images-are-written",
    backends=("tpu",),
    stage="fusion",
    does="An image whose features and pixels become the rows of a dot's matrix is written flattened.",
    source=Observed(evidence="a Conformer compiled for v5e", command=zoo("v5e:2x4", "conformer")),
    made_after=("conformer",),
    test="tests/xla/test_rearranged.py::test_images_are_written_where_their_features_are_flattened",
)
IMAGES_OF_ARGUMENTS = CompilerRule(
    name="images-of-arguments-are-written",
    backends=("tpu",),
    stage="fusion",
    does="What a convolution reads that is computed of the batch alone is written and kept for the kernel's gradient.",
    source=Observed(evidence="a ViT compiled for v5e", command=zoo("v5e:2x4", "vit")),
    made_after=("vit", "conformer"),
    test="tests/xla/test_rearranged.py::test_images_of_the_batch_are_written_for_convolutions_alone",
)
IMAGES_OF_ERFC = CompilerRule(
    name="erfc-of-images-is-written",
    backends=("tpu",),
    stage="fusion",
    does="The exact GELU behind a convolution is a kernel of its own, which writes `erfc` for the backward pass.",
    source=Observed(evidence="a Whisper compiled for v5e", command=zoo("v5e:2x4", "whisper")),
    made_after=("whisper",),
    test="tests/cost/test_tiles.py::test_tokens_of_convolutions_are_turned_where_their_rows_nearly_fill_tiles",
)
GATED_GROUPS = CompilerRule(
    name="gated-images-of-channel-groups-are-written",
    backends=("tpu",),
    stage="fusion",
    does="An image that dots on its own mean weigh is written if a convolution of channel groups is before it.",
    source=Observed(evidence="a RegNetY compiled for v5e", command=zoo("v5e:2x4", "regnet")),
    made_after=("regnet",),
    test="tests/xla/test_gated.py::test_tpus_compute_it_again",
)
SAVED_FUNCTIONS = CompilerRule(
    name="erf-and-trigonometry-are-saved",
    backends=("tpu",),
    stage="residuals",
    does="`erf`, `erf_inv`, `sin`, `cos`, `lgamma` and `digamma` are saved for the backward pass.",
    source=Observed(
        evidence="perceptrons with each function between their dots, compiled for v5e",
        command="python -m pytest -m tpu_aot tests/cost/test_functions.py",
    ),
    made_after=(),
    test="tests/cost/test_functions.py::test_what_tpus_save_of_a_function",
)
SLICED_BUFFERS = CompilerRule(
    name="buffers-are-saved-rather-than-their-slices",
    backends=("tpu",),
    stage="residuals",
    does="A buffer of which the backward pass reads slices of nearly all is saved, and no slice beside it.",
    source=Observed(evidence="Mamba and Swin transformers compiled for v5e", command=zoo("v5e:2x4", "mamba", "swin")),
    made_after=("mamba", "swin"),
    test="tests/xla/test_slices.py::test_a_slice_is_not_saved_beside_nearly_the_same",
)
