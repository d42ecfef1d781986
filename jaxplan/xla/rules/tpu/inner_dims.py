"""Innermost dimensions, in tiled memory, of images, of tokens and of operands and results of batched dots."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.ir import Equation, StepGraph
from jaxplan.xla._effects import Innermost
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import CompilerRule, Observed, zoo

_SLICED = frozenset({"slice", "split", "squeeze", "transpose", "unstack"})


def _of_images(facts: Facts) -> Iterator[Innermost]:
    """Batch and features, of operands and results of convolutions."""
    for eqn in facts.equations:
        if eqn.name == "conv_general_dilated":
            numbers = eqn.params["dimension_numbers"]
            specs = zip((*eqn.operands, *eqn.results), (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec))
            for t, (one, other, *_) in specs:
                yield Innermost(t, (min(one, other), max(one, other)), eqn.index)


def _of_tokens(facts: Facts) -> Iterator[Innermost]:
    """Tokens `[B, T, D]` that are transposed for a dot over T, a mixer's: T and D, as without the transposition."""
    graph = facts.graph
    for eqn in facts.equations:
        if eqn.name != "dot_general" or eqn.phase != "forward":
            continue
        (contracted, _), (batch, _) = eqn.params["dimension_numbers"]
        made = graph.values.producer[eqn.operands[0]]
        if tuple(contracted) == (2,) and not batch and made >= 0:
            transpose = facts.equations[made]
            if transpose.name == "transpose" and tuple(transpose.params["permutation"]) == (0, 2, 1):
                yield Innermost(transpose.operands[0], (1, 2), eqn.index, default=True)


def _of_batched_dots(facts: Facts) -> Iterator[Innermost]:
    for eqn in facts.equations:
        if eqn.name == "dot_general":
            yield from _of_dot(facts.graph, eqn)


def _of_dot(graph: StepGraph, eqn: Equation) -> Iterator[Innermost]:
    """Batch dimensions come first in a result, then those of the left operand, then those of the right one."""
    contracted, batch = eqn.params["dimension_numbers"]
    (result,) = eqn.results
    left, right = (len(graph.program.tensors[t].shape) for t in eqn.operands)
    first = left - len(contracted[0])
    own = first - len(batch[0]), right - len(contracted[1]) - len(batch[1])
    if batch[0] and all(own):
        yield Innermost(result, (first - 1, first + own[1] - 1), eqn.index)
    for side, t in enumerate(eqn.operands):
        taken = {*contracted[side], *batch[side]}
        free = [d for d in range(len(graph.program.tensors[t].shape)) if d not in taken]
        if batch[0] and len(free) == len(contracted[side]) == 1:
            one, other = free[0], contracted[side][0]
            for u, dims in _of_view(graph, t, (min(one, other), max(one, other))):
                yield Innermost(u, dims, eqn.index)


def _of_view(graph: StepGraph, t: int, dims: tuple[int, int]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Of a dot's operand, and of the tensor that it is a slice of."""
    yield t, dims
    while (made := graph.values.producer[t]) >= 0 and graph.program.equations[made].name in _SLICED:
        eqn = graph.program.equations[made]
        t = eqn.operands[0]
        if eqn.name == "squeeze":
            kept = [d for d in range(len(graph.program.tensors[t].shape)) if d not in eqn.params["dimensions"]]
            dims = kept[dims[0]], kept[dims[1]]
        elif eqn.name == "transpose":
            one, other = (eqn.params["permutation"][d] for d in dims)
            dims = min(one, other), max(one, other)
        elif eqn.name == "unstack":
            one, other = (d + (d >= eqn.params["axis"]) for d in dims)
            dims = one, other
        yield t, dims


IMAGES = CompilerRule(
    name="images-have-batch-and-features-innermost",
    backends=("tpu",),
    stage="storage",
    does="Operands and results of convolutions have batch and features innermost, whatever padding that takes.",
    source=Observed(evidence="ResNet-50 compiled for v5e", command=zoo("v5e:2x4", "resnet50")),
    made_after=("resnet50",),
    test="tests/partition/test_torus_memory.py::test_images_have_batch_and_features_innermost",
    find=_of_images,
)
MATRICES_OF_BATCHES = CompilerRule(
    name="batched-dots-have-their-matrices-innermost",
    backends=("tpu",),
    stage="storage",
    does="Operands and results of batched dots have the dimensions of the matrices innermost.",
    source=Observed(evidence="ViT and Swin transformers compiled for v5e", command=zoo("v5e:2x4", "vit", "swin")),
    made_after=("vit", "swin", "dit"),
    test="tests/cost/test_tiles.py::test_matrices_of_a_batch_are_innermost",
    find=_of_batched_dots,
)
MIXED_TOKENS = CompilerRule(
    name="mixed-tokens-keep-tokens-and-features-innermost",
    backends=("tpu",),
    stage="storage",
    does="Tokens that are transposed for a dot over tokens have tokens and features innermost.",
    source=Observed(evidence="a Mixer compiled for v5e", command=zoo("v5e:2x4", "mixer")),
    made_after=("mixer",),
    test="tests/cost/test_tiles.py::test_tokens_are_turned_for_dots_of_batches_of_whole_columns",
    find=_of_tokens,
)
