"""Tiles in memory."""

from __future__ import annotations

from jaxplan.xla._effects import Tile
from jaxplan.xla._plan_effects import MoveTiles
from jaxplan.xla._rule import CompilerRule, Observed, always

TILES = CompilerRule(
    name="arrays-lie-in-tiles",
    backends=("tpu",),
    stage="storage",
    does="An array takes whole tiles of 8 x 128 elements of its two innermost dimensions: those of least padding.",
    source="https://openxla.org/xla/tiled_layout",
    made_after=("resnet50", "gpt"),
    test="tests/cost/test_tiles.py::test_sizes_are_those_of_compiled_programs",
    find=always(Tile()),
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
    find=always(MoveTiles()),
)
