"""Equations fused into dot kernels on TPUs."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.xla._effects import Absorb, Rectify
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import CompilerRule, Observed, zoo


def _operands_of_dots(facts: Facts) -> Iterator[Absorb]:
    return (Absorb(e.index, t) for e in facts.equations if facts.is_dot(e.index) for t in e.operands)


def _rectifiers(facts: Facts) -> Iterator[Rectify]:
    return (Rectify(e.index) for e in facts.equations if e.name == "max")


DOTS_READ_FUSED = CompilerRule(
    name="dots-compute-their-operands",
    backends=("tpu",),
    stage="kernels",
    does="A dot or convolution computes its operands inside of its kernel, however often these are read.",
    source=Observed(
        evidence="attention probabilities, GELUs and gradients of logits of transformers compiled for v5e",
        command=zoo("v5e:2x4", "gpt", "llama"),
    ),
    made_after=("gpt", "bert", "resnet50"),
    test="tests/partition/test_torus_memory.py::test_compiled_memory_is_the_predicted_one",
    find=_operands_of_dots,
)
RECTIFIED_SUMS = CompilerRule(
    name="rectifiers-of-sums-are-recomputed",
    backends=("tpu",),
    stage="kernels",
    does="Behind a residual sum the sum is kept, and dots compute the rectifier of it as they read it.",
    source=Observed(evidence="ResNet-50 compiled for v5e", command=zoo("v5e:2x4", "resnet50")),
    made_after=("resnet50",),
    test="tests/partition/test_torus_memory.py::test_images_have_batch_and_features_innermost",
    find=_rectifiers,
)
