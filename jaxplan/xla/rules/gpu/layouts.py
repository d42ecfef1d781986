"""Buffers that libraries ask for: whole arrays in their order of dimensions, and scratch memory."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.xla._facts import Facts
from jaxplan.xla._plan_effects import ExtendImages, GatherInPieces, Scratch
from jaxplan.xla._rule import XLA, CompilerRule, Observed, always, zoo

_LAYOUTS = f"{XLA}service/gpu/transforms/layout_assignment.cc"


def _workspaces(facts: Facts) -> Iterator[Scratch]:
    size = facts.target.workspace_bytes
    dots = (e.index for e in facts.equations if facts.family(e.index) == "contraction")
    return (Scratch(e, size) for e in dots if size)


GATHERS_IN_PIECES = CompilerRule(
    name="inner-gathers-are-transposed",
    backends=("gpu",),
    stage="liveness",
    does="An array gathered along an inner dimension arrives in pieces and is transposed: live twice for a dot.",
    source=_LAYOUTS,
    made_after=("gpt",),
    test="tests/cost/test_prediction.py::test_what_is_gathered_between_dimensions_is_transposed_for_a_dot",
    find=always(GatherInPieces()),
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
    find=always(ExtendImages()),
)
DOT_WORKSPACE = CompilerRule(
    name="dots-have-workspace",
    backends=("gpu",),
    stage="liveness",
    does="A dot has scratch memory while it runs, also where it waits for the scatter of its partial sum.",
    source=f"{XLA}service/gpu/transforms/gemm_workspace_rewriter.cc",
    made_after=("gpt",),
    test="tests/cost/test_prediction.py::test_peak_of_a_chain_of_dots",
    find=_workspaces,
)
