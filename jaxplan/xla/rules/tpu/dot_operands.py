"""Operands that compilers which fuse into matrix products write nevertheless."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from jaxplan.ir import Equation, StepGraph
from jaxplan.xla._kernels import runs_inside_readers
from jaxplan.xla._target import Target
from jaxplan.xla.rules.tpu.dot_results import computed_of
from jaxplan.xla.rules.tpu.fusion import (
    FLATTENED_IMAGES,
    IMAGES_OF_ARGUMENTS,
    IMAGES_OF_ERFC,
    ROWS_OF_BATCHES,
    TRANSPOSED_FOR_DOTS,
)
from jaxplan.xla.rules.tpu.inner_dims import mixed_tokens


def is_batch_larger(shape: Sequence[int]) -> bool:
    """Whether tokens `[B, T, D]` are fewer than sequences: batch and features are innermost then."""
    return len(shape) == 3 and shape[0] > shape[1] > 1


def _is_batch_larger_on(num_devices: int | None, shape: Sequence[int]) -> bool:
    return bool(num_devices) and len(shape) == 3 and is_batch_larger((shape[0] // num_devices, *shape[1:]))


def batches_of_rows(graph: StepGraph, target: Target, wide: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Operands that products of the forward pass read as batches of matrices whose rows are several dimensions (tokens
    of experts), and their batch dimensions.

    Compiled TPU programs wrote such operands, beside what they are computed from; but not attention weights that are
    computed of ``wide``, scores in float32 (`widened_outputs`).
    """
    if not ROWS_OF_BATCHES.applies_to(target):
        return {}
    of_wide = {u for t in wide for u in computed_of(graph, t)}
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
    return found


def turned_operands(
    graph: StepGraph, target: Target, inner: Mapping[int, tuple[int, int]]
) -> dict[int, tuple[int, ...]]:
    """What a product over features reads, and what is computed of its result for the next product, where the product
    may have other dimensions innermost than what it reads; and those of what it reads (`are_turned`).

    ``inner`` are the innermost dimensions of images, batch and features (`inner_dims`); those of `mixed_tokens` are
    tokens and features. Compiled TPU programs turn what is read, and write it and both sides of the rectifier behind
    the product: a ConvNeXt's normalised images and a mixer's tokens; of an exact GELU ``erfc`` as well. So they do with
    fewer tokens than there are sequences on a device (`is_batch_larger`; no dimensions are given for these), however
    many devices share them: 50 of each of 64 images of a masked autoencoder or a CLIP.
    """
    if not TRANSPOSED_FOR_DOTS.applies_to(target):
        return {}
    products = {e.index: e for e in graph.program.equations if e.name == "dot_general" and e.phase == "forward"}
    found: dict[int, tuple[int, ...]] = {}
    tokens = mixed_tokens(graph, target)
    for eqn in products.values():
        t = eqn.operands[0]
        rank = len(graph.program.tensors[t].shape)
        is_image = rank > 2 and inner.get(t, (rank - 2, rank - 1)) != (rank - 2, rank - 1)
        is_large_batch = t not in inner and _is_batch_larger_on(target.num_devices, graph.program.tensors[t].shape)
        if (is_image or is_large_batch or t in tokens) and _sums_features(eqn, rank):
            turned = _computed_alone(graph, eqn.results[0])
            turned = {u for u in turned if _is_erfc(graph, u) or any(c in products for c in graph.values.consumers[u])}
            for u in (t, *turned):
                found[u] = inner[t] if t in inner else found.get(u, ())
    made = graph.values.producer
    return {t: dims for t, dims in found.items() if made[t] >= 0 and runs_inside_readers(graph, target, made[t])}


def _computed_alone(graph: StepGraph, t: int) -> set[int]:
    """What the forward pass computes of a value element by element and of nothing else of its size but what is repeated
    along dimensions: not what it is added to."""
    program, producer, alone = graph.program, graph.values.producer, {t}
    for e in sorted({producer[u] for u in computed_of(graph, t)} - {producer[t]}):
        eqn, size = program.equations[e], program.tensors[t].num_elements
        others = [u for u in eqn.operands if u not in alone and program.tensors[u].num_elements == size]
        made = [producer[u] for u in others if not graph.values.free[u]]
        if all(e >= 0 and program.equations[e].name == "broadcast_in_dim" for e in made):
            alone.update(eqn.results)
    return alone


def flattened_images(graph: StepGraph, target: Target, inner: Mapping[int, tuple[int, int]]) -> frozenset[int]:
    """Images whose features, and pixels beside them, become the rows of a matrix that a product reads.

    Features and batch are innermost, and pixels lie apart from them: compiled TPU programs of a Conformer wrote the
    flattened images, beside what they are computed from.
    """
    if not FLATTENED_IMAGES.applies_to(target):
        return frozenset()
    equations, tensors = graph.program.equations, graph.program.tensors
    found = set()
    for eqn in equations:
        if eqn.name == "reshape" and eqn.phase == "forward":
            (t,), (flat,) = eqn.operands, eqn.results
            image, rows = tensors[t].shape, tensors[flat].shape
            is_image = len(image) > 2 and inner.get(t) == (0, len(image) - 1)
            if is_image and math.prod(rows[-1:]) >= math.prod(image[-2:]) > math.prod(image[-1:]):
                found.update(flat for c in graph.values.consumers[flat] if equations[c].name == "dot_general")
    return frozenset(found)


def costly_images(graph: StepGraph, target: Target, inner: Mapping[int, tuple[int, int]]) -> frozenset[int]:
    """Images of ``erfc``, with batch and features innermost: the exact GELU behind a convolution is a kernel of its
    own, and writes it for the backward pass (two layers of a Whisper's spectrograms)."""
    if not IMAGES_OF_ERFC.applies_to(target):
        return frozenset()
    shapes = {t: graph.program.tensors[t].shape for t in inner if _is_erfc(graph, t)}
    return frozenset(t for t, shape in shapes.items() if inner[t] == (0, len(shape) - 1))


def _is_erfc(graph: StepGraph, t: int) -> bool:
    made = graph.values.producer[t]
    return made >= 0 and graph.program.equations[made].name == "erfc"


def images_of_arguments(graph: StepGraph, target: Target) -> frozenset[int]:
    """What convolutions read that is computed of the batch alone: arguments do not lie as images do.

    Compiled TPU programs write it, with batch and features innermost, and keep it for the gradient of the kernel.
    """
    if not IMAGES_OF_ARGUMENTS.applies_to(target):
        return frozenset()
    images = (e.operands[0] for e in graph.program.equations if e.name == "conv_general_dilated")
    return frozenset(t for t in images if graph.values.producer[t] >= 0 and _is_of_arguments(graph, t))


def _is_of_arguments(graph: StepGraph, t: int) -> bool:
    """Whether a value is computed, element by element, of nothing but arguments and constants."""
    stack, seen = [t], {t}
    while stack:
        u = stack.pop()
        made = graph.values.producer[u]
        if made < 0 or graph.values.free[u]:
            continue
        if graph.rules[made].family not in ("elementwise", "shape"):
            return False
        operands = set(graph.program.equations[made].operands) - seen
        seen |= operands
        stack += operands
    return True


def _sums_features(eqn: Equation, rank: int) -> bool:
    (contracted, _), batch = eqn.params["dimension_numbers"]
    return tuple(contracted) == (rank - 1,) and not any(batch)
