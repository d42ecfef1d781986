"""Operands that compilers which fuse into dots write nevertheless."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jaxplan.ir import Equation, StepGraph
from jaxplan.xla._effects import Write
from jaxplan.xla._facts import Facts, walk
from jaxplan.xla._rule import CompilerRule, Observed, zoo
from jaxplan.xla.rules.tpu.dot_results import computed_of, widened_outputs


def is_batch_larger(shape: Sequence[int]) -> bool:
    """Whether tokens `[B, T, D]` are fewer than sequences: batch and features are innermost then."""
    return len(shape) == 3 and shape[0] > shape[1] > 1


def _is_batch_larger_on(num_devices: int | None, shape: Sequence[int]) -> bool:
    return bool(num_devices) and len(shape) == 3 and is_batch_larger((shape[0] // num_devices, *shape[1:]))


def _batches_of_rows(facts: Facts) -> Iterator[Write]:
    """Operands that dots of the forward pass read as batches of matrices with several dimensions as rows (tokens
    of experts), and their batch dimensions.

    Compiled TPU programs wrote such operands, beside their sources; but not attention weights that are
    computed of scores in float32 (`widened_outputs`).
    """
    graph = facts.graph
    of_wide = {u for t in widened_outputs(facts).values() for u in computed_of(graph, t)}
    found = {}
    for eqn in graph.program.equations:
        if eqn.name == "dot_general":
            for side, t in enumerate(eqn.operands):
                contracted, batch = (dims[side] for dims in eqn.params["dimension_numbers"])
                sizes = enumerate(graph.program.tensors[t].shape)
                rows = [d for d, size in sizes if size > 1 and d not in (*contracted, *batch)]
                is_alone = eqn.phase == "backward" and len(set(graph.values.consumers[t])) < 2
                if len(rows) > 1 and batch and t not in of_wide and not is_alone:
                    found[t] = tuple(batch)
    return (Write(t, blocks=batch) for t, batch in found.items())


def _transposed(facts: Facts) -> Iterator[Write]:
    """The operand of a dot over features, and values computed from its result for the next dot, where the dot
    may have other dimensions innermost than its operands; and the operands' own (`are_turned`).

    `Facts.inner` are the innermost dimensions of images, batch and features; those of `Facts.tokens` are tokens and
    features. Compiled TPU programs transpose the operand, and write it and both sides of the rectifier
    behind the dot: a ConvNeXt's normalised images, a mixer's tokens; of an exact GELU ``erfc`` too. So they do with
    fewer tokens than there are sequences on a device (`is_batch_larger`; no dimensions are given for these), however
    many devices share them: 50 of each of 64 images of a masked autoencoder or a CLIP.
    """
    graph, inner = facts.graph, facts.inner
    dots = {e.index: e for e in graph.program.equations if e.name == "dot_general" and e.phase == "forward"}
    found: dict[int, tuple[int, ...]] = {}
    for eqn in dots.values():
        t = eqn.operands[0]
        shape = graph.program.tensors[t].shape
        rank = len(shape)
        is_image = rank > 2 and inner.get(t, (rank - 2, rank - 1)) != (rank - 2, rank - 1)
        is_large_batch = t not in inner and _is_batch_larger_on(facts.target.num_devices, shape)
        if (is_image or is_large_batch or t in facts.tokens) and _sums_features(eqn, rank):
            turned = _computed_alone(graph, eqn.results[0])
            turned = {u for u in turned if _is_erfc(graph, u) or any(c in dots for c in graph.values.consumers[u])}
            for u in (t, *turned):
                found[u] = inner[t] if t in inner else found.get(u, ())
    made = graph.values.producer
    is_inline = {t: made[t] >= 0 and not facts.kernels[made[t]] for t in found}
    return (Write(t, transposes=dims) for t, dims in found.items() if is_inline[t])


def _computed_alone(graph: StepGraph, t: int) -> set[int]:
    """Element-wise forward results of a value and of nothing else of its size except values broadcast
    along dimensions: not sums with other values."""
    program, producer, alone = graph.program, graph.values.producer, {t}
    for e in sorted({producer[u] for u in computed_of(graph, t)} - {producer[t]}):
        eqn, size = program.equations[e], program.tensors[t].num_elements
        others = [u for u in eqn.operands if u not in alone and program.tensors[u].num_elements == size]
        made = [producer[u] for u in others if not graph.values.free[u]]
        if all(e >= 0 and program.equations[e].name == "broadcast_in_dim" for e in made):
            alone.update(eqn.results)
    return alone


def _flattened_images(facts: Facts) -> Iterator[Write]:
    """Images with features, and pixels beside them, as the rows of a matrix that a dot reads.

    Features and batch are innermost, and pixels lie apart from them: compiled TPU programs of a Conformer wrote the
    flattened images, beside their sources.
    """
    graph, equations, tensors, inner = facts.graph, facts.equations, facts.tensors, facts.inner
    for eqn in equations:
        if eqn.name == "reshape" and eqn.phase == "forward":
            (t,), (flat,) = eqn.operands, eqn.results
            image, rows = tensors[t].shape, tensors[flat].shape
            is_image = len(image) > 2 and inner.get(t) == (0, len(image) - 1)
            is_flat = is_image and math.prod(rows[-1:]) >= math.prod(image[-2:]) > math.prod(image[-1:])
            if is_flat and any(equations[c].name == "dot_general" for c in graph.values.consumers[flat]):
                yield Write(flat)


def _images_of_erfc(facts: Facts) -> Iterator[Write]:
    """Images of ``erfc``, with batch and features innermost: the exact GELU behind a convolution is a kernel of its
    own, and writes it for the backward pass (two layers of a Whisper's spectrograms)."""
    for t, dims in facts.inner.items():
        if _is_erfc(facts.graph, t) and dims == (0, len(facts.tensors[t].shape) - 1):
            yield Write(t)


def _is_erfc(graph: StepGraph, t: int) -> bool:
    made = graph.values.producer[t]
    return made >= 0 and graph.program.equations[made].name == "erfc"


def _images_of_arguments(facts: Facts) -> Iterator[Write]:
    """Operands of convolutions computed from the batch alone: arguments have another layout than images.

    Compiled TPU programs write it, with batch and features innermost, and keep it for the gradient of the kernel.
    """
    graph = facts.graph
    images = (e.operands[0] for e in facts.equations if e.name == "conv_general_dilated")
    return (Write(t) for t in images if graph.values.producer[t] >= 0 and _is_of_arguments(graph, t))


def _is_of_arguments(graph: StepGraph, t: int) -> bool:
    """Whether a value is computed, element by element, of nothing but arguments and constants."""
    values, equations = graph.values, graph.program.equations

    def operands(u: int) -> Sequence[int]:
        return equations[values.producer[u]].operands if values.producer[u] >= 0 and not values.free[u] else ()

    made = [values.producer[u] for u in walk([t], operands) if not values.free[u]]
    return all(e < 0 or graph.rules[e].family in ("elementwise", "shape") for e in made)


def _sums_features(eqn: Equation, rank: int) -> bool:
    (contracted, _), batch = eqn.params["dimension_numbers"]
    return tuple(contracted) == (rank - 1,) and not any(batch)


ROWS_OF_BATCHES = CompilerRule(
    name="batches-of-rows-are-written",
    backends=("tpu",),
    stage="fusion",
    does="Operands of batched dots with rows of several dimensions (tokens of experts) are written.",
    source=Observed(evidence="mixtures of experts and Llama compiled for v5e", command=zoo("v5e:2x4", "moe", "llama")),
    made_after=("moe", "llama"),
    test="tests/cost/test_tiles.py::test_rows_that_dots_read_in_batches_are_written",
    find=_batches_of_rows,
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
    test="tests/cost/test_tiles.py::test_normalised_images_are_turned_for_dots_where_rows_of_pixels_are_not_padded",
    find=_transposed,
)
FLATTENED_IMAGES = CompilerRule(
    name="flattened-images-are-written",
    backends=("tpu",),
    stage="fusion",
    does="An image is written flattened where its features and pixels become the rows of a dot's matrix.",
    source=Observed(evidence="a Conformer compiled for v5e", command=zoo("v5e:2x4", "conformer")),
    made_after=("conformer",),
    test="tests/xla/test_rearranged.py::test_images_are_written_where_their_features_are_flattened",
    find=_flattened_images,
)
IMAGES_OF_ERFC = CompilerRule(
    name="erfc-of-images-is-written",
    backends=("tpu",),
    stage="fusion",
    does="The exact GELU behind a convolution is a kernel of its own, which writes `erfc` for the backward pass.",
    source=Observed(evidence="a Whisper compiled for v5e", command=zoo("v5e:2x4", "whisper")),
    made_after=("whisper",),
    test="tests/cost/test_tiles.py::test_tokens_of_convolutions_are_turned_where_their_rows_nearly_fill_tiles",
    find=_images_of_erfc,
)
IMAGES_OF_ARGUMENTS = CompilerRule(
    name="images-of-arguments-are-written",
    backends=("tpu",),
    stage="fusion",
    does="The operand of a convolution that the batch alone determines is written and kept for the kernel's gradient.",
    source=Observed(evidence="a ViT compiled for v5e", command=zoo("v5e:2x4", "vit")),
    made_after=("vit", "conformer"),
    test="tests/xla/test_rearranged.py::test_images_of_the_batch_are_written_for_convolutions_alone",
    find=_images_of_arguments,
)
