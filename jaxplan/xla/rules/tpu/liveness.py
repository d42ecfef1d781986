"""Live ranges, copies and the heap of TPU programs."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.xla._facts import Facts
from jaxplan.xla._plan_effects import (
    CopyLargestUpdate,
    ExtendPoolings,
    ExtendSources,
    Gaps,
    HoldPieces,
    OnChip,
    ShortLivedOnChip,
    TransposeUpdates,
    WriteForEdges,
)
from jaxplan.xla._rule import XLA, CompilerRule, Fitted, Observed, always, zoo

_ERRORS = "python -m benchmarks.accuracy --read benchmarks/records/accuracy.jsonl --topology v5e:2x4"

SHORT_LIVED_SHARE = 0.6
"""Of the memory beside the cores. Chosen by the errors of plans compiled for v5e (`benchmarks.accuracy`)."""


def _images_of_convolutions(facts: Facts) -> Iterator[WriteForEdges]:
    """Operands of convolutions that the forward pass computes, and not as a cast alone, and that are no buffers."""
    convolutions = (e for e in facts.equations if facts.family(e.index) == "convolution")
    for t in sorted({t for e in convolutions for t in e.operands}):
        made = facts.maker(t)
        is_computed = made is not None and made.phase == "forward" and made.name != "convert_element_type"
        if is_computed and not facts.written[t]:
            yield WriteForEdges(t)


def _updates(facts: Facts) -> Iterator[TransposeUpdates]:
    """Scatters with a leading dimension of their updates that belongs to the windows.

    XLA moves those dimensions that are looked up to the front, and writes the updates so, where the memory beside the
    cores has no room for them.
    """
    for eqn in facts.equations:
        if facts.family(eqn.index) == "scatter" and 0 in eqn.params["dimension_numbers"].update_window_dims:
            yield TransposeUpdates(eqn.index, facts.target.on_chip_bytes)


def _stacks(facts: Facts) -> Iterator[OnChip]:
    """Stacks of loops of the forward pass, in program order."""
    exits = [facts.equations[e] for region in facts.graph.program.regions for e in region.exits]
    stacks = sorted(e.results[0] for e in exits if e.params["role"] == "y" and e.phase == "forward")
    return map(OnChip, stacks)


RECOMPUTED_SOURCES = CompilerRule(
    name="sources-live-where-a-layout-is-not-written",
    backends=("tpu",),
    stage="liveness",
    does="Where a transposed operand is not written, the buffers that it is computed of live to its last use.",
    source=Observed(evidence="a Whisper compiled for v5e", command=zoo("v5e:2x4", "whisper")),
    made_after=("whisper",),
    test="tests/cost/test_tiles.py::test_what_a_dot_makes_is_kept_where_what_is_computed_of_it_is_not_written",
    find=always(ExtendSources()),
)
POOLINGS_WITH_EDGES = CompilerRule(
    name="poolings-read-images-with-edges",
    backends=("tpu",),
    stage="liveness",
    does="The operand of a pooling with neighbours' edges around it is written as soon as it can be.",
    source=Observed(evidence="ResNet-50 with split rows compiled for v5e", command=zoo("v5e:2x4", "resnet50")),
    made_after=("resnet50", "densenet"),
    test="tests/cost/test_tiles.py::test_images_are_written_where_their_edges_are_sent",
    find=always(ExtendPoolings()),
)
EDGES_OF_IMAGES = CompilerRule(
    name="images-whose-edges-are-sent-are-written",
    backends=("tpu",),
    stage="liveness",
    does="An image that a convolution would compute as it reads it is written where its edges go to neighbours.",
    source=Observed(evidence="split rows compiled for v5e", command=zoo("v5e:2x4", "efficientnet", "densenet")),
    made_after=("efficientnet", "densenet"),
    test="tests/cost/test_tiles.py::test_images_are_written_where_their_edges_are_sent",
    find=_images_of_convolutions,
)
TRANSPOSED_UPDATES = CompilerRule(
    name="updates-of-scatters-are-transposed",
    backends=("tpu",),
    stage="liveness",
    does="A scatter moves the dimension that is looked up to the front of its updates, in a copy.",
    source=f"{XLA}service/scatter_simplifier.cc",
    made_after=("unet",),
    test="tests/cost/test_tiles.py::test_updates_of_scatters_are_turned",
    find=_updates,
)
SENT_PIECES = CompilerRule(
    name="gathers-hold-the-piece-they-send",
    backends=("tpu",),
    stage="liveness",
    does="A piece that would be computed by its reader is written while it is gathered.",
    source=Observed(evidence="a Gemma compiled for v5e", command=zoo("v5e:2x4", "gemma")),
    made_after=("gemma",),
    test="tests/partition/test_torus_memory.py::test_what_a_gather_waits_for_is_in_memory_anyway",
    find=always(HoldPieces()),
)
COPIED_PARAMETER = CompilerRule(
    name="largest-gathered-update-is-copied",
    backends=("tpu",),
    stage="liveness",
    does="The largest parameter that is gathered after its update is copied at the beginning of the program.",
    source=Observed(evidence="GPT under ZeRO-1 compiled for v5e", command=zoo("v5e:2x4", "gpt")),
    made_after=("gpt",),
    test="tests/partition/test_torus_memory.py::test_compiled_memory_is_the_predicted_one",
    find=always(CopyLargestUpdate()),
)
STACKS_ON_CHIP = CompilerRule(
    name="stacks-of-loops-are-on-chip",
    backends=("tpu",),
    stage="heap",
    does="Stacks of loops of the forward pass lie in the memory beside the cores, as far as that goes.",
    source=Observed(evidence="LSTMs compiled for v5e put 64 to 112 MiB there", command=zoo("v5e:2x4", "lstm")),
    made_after=("lstm",),
    test="tests/xla/test_lifetimes.py::test_the_curve_is_of_main_memory",
    find=_stacks,
)
SHORT_LIVED_ON_CHIP = CompilerRule(
    name="short-lived-buffers-are-on-chip",
    backends=("tpu",),
    stage="heap",
    does="Buffers that live no longer than about a block of a transformer fill a share of the memory beside the cores.",
    source=Fitted(
        value=SHORT_LIVED_SHARE,
        unit="of the memory beside the cores",
        evidence="errors of the plans compiled for v5e; the span of 300 positions was chosen with it",
        command=_ERRORS,
    ),
    made_after=("gpt", "vit", "resnet50"),
    test="tests/xla/test_lifetimes.py::test_what_lives_shortly_is_beside_the_cores_and_heaps_have_gaps",
    find=always(ShortLivedOnChip(SHORT_LIVED_SHARE)),
)
HEAP_GAPS = CompilerRule(
    name="heaps-have-gaps",
    backends=("tpu",),
    stage="heap",
    does="The heap is a few percent larger than the live bytes at its peak.",
    source=Fitted(
        value=0.03,
        unit="of the live bytes at the peak",
        evidence="errors of the plans compiled for v5e, with 0, 2 and 3 %",
        command=f"{_ERRORS} --gaps 0.02",
    ),
    made_after=("llama",),
    test="tests/xla/test_lifetimes.py::test_what_lives_shortly_is_beside_the_cores_and_heaps_have_gaps",
    find=always(Gaps()),
)
