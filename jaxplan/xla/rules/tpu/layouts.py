"""Tiles: which dimensions are innermost, and the width of elements."""

from __future__ import annotations

from jaxplan.xla._rule import CompilerRule, Observed, zoo

TILES = CompilerRule(
    name="arrays-lie-in-tiles",
    backends=("tpu",),
    stage="layouts",
    does="An array takes whole tiles of 8 x 128 elements of its two innermost dimensions: those of least padding.",
    source="https://openxla.org/xla/tiled_layout",
    made_after=("resnet50", "gpt"),
    test="tests/cost/test_tiles.py::test_sizes_are_those_of_compiled_programs",
)
IMAGES = CompilerRule(
    name="images-have-batch-and-features-innermost",
    backends=("tpu",),
    stage="layouts",
    does="What convolutions read and make has batch and features innermost, whatever padding that takes.",
    source=Observed(evidence="ResNet-50 compiled for v5e", command=zoo("v5e:2x4", "resnet50")),
    made_after=("resnet50",),
    test="tests/partition/test_torus_memory.py::test_images_have_batch_and_features_innermost",
)
MATRICES_OF_BATCHES = CompilerRule(
    name="batched-dots-have-their-matrices-innermost",
    backends=("tpu",),
    stage="layouts",
    does="What batched dots read and make has the dimensions of the matrices innermost.",
    source=Observed(evidence="ViT and Swin transformers compiled for v5e", command=zoo("v5e:2x4", "vit", "swin")),
    made_after=("vit", "swin", "dit"),
    test="tests/cost/test_tiles.py::test_matrices_of_a_batch_are_innermost",
)
MIXED_TOKENS = CompilerRule(
    name="mixed-tokens-keep-tokens-and-features-innermost",
    backends=("tpu",),
    stage="layouts",
    does="Tokens that are transposed for a dot over tokens have tokens and features innermost.",
    source=Observed(evidence="a Mixer compiled for v5e", command=zoo("v5e:2x4", "mixer")),
    made_after=("mixer",),
    test="tests/cost/test_tiles.py::test_tokens_are_turned_for_products_of_batches_of_whole_columns",
)
REARRANGED_WIDE = CompilerRule(
    name="rearranged-values-are-written-widened",
    backends=("tpu",),
    stage="layouts",
    does="A reshape that is written and only read as cast to a wider dtype is written in that.",
    source=Observed(evidence="a Swin transformer compiled for v5e", command=zoo("v5e:2x4", "swin")),
    made_after=("swin",),
    test="tests/xla/test_rearranged.py::test_what_is_only_read_widened_is_written_so",
)
ROUNDED_FOR_LOOPS = CompilerRule(
    name="dot-operands-of-loops-are-rounded-once",
    backends=("tpu",),
    stage="layouts",
    does="Float32 that the dots of a loop alone read is rounded to bfloat16 once, before the first loop.",
    source=Observed(evidence="an LSTM compiled for v5e", command=zoo("v5e:2x4", "lstm")),
    made_after=("lstm",),
    test="tests/cost/test_tiles.py::test_what_loops_read_through_products_is_rounded",
)
ROUNDED_TRANSFERS = CompilerRule(
    name="dot-operands-travel-rounded",
    backends=("tpu",),
    stage="layouts",
    does="Float32 that dots alone read is rounded to bfloat16 before it is gathered.",
    source=Observed(evidence="ResNet-50 and an LSTM compiled for v5e", command=zoo("v5e:2x4", "resnet50", "lstm")),
    made_after=("resnet50", "lstm"),
    test="tests/xla/test_rounding.py::test_a_carry_that_products_alone_read_in_the_next_trip_is_rounded",
)
ROUNDED_TABLES = CompilerRule(
    name="tables-are-rounded-whole",
    backends=("tpu",),
    stage="layouts",
    does="A table in which dots alone look up rows is rounded as a whole where it is stored, all tables at once.",
    source=Observed(evidence="DLRM compiled for v5e", command=zoo("v5e:2x4", "dlrm")),
    made_after=("dlrm",),
    test="tests/partition/test_torus_memory.py::test_tables_are_gathered_in_the_width_in_which_products_read_their_rows",
)
SCATTERED_IN_TILES = CompilerRule(
    name="reduce-scatters-move-whole-tiles",
    backends=("tpu",),
    stage="layouts",
    does="A reduce-scatter of small pieces, or of images that end in a part of a tile, moves whole tiles.",
    source=Observed(
        evidence="reshardings compiled one by one for v5e",
        command="python -m pytest -m tpu_aot tests/partition/test_edges.py",
    ),
    made_after=("resnet50", "densenet"),
    test="tests/cost/test_tiles.py::test_small_pieces_are_scattered_in_whole_tiles",
)
