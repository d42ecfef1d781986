"""The residuals that the forward pass saves for the backward pass."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.xla._effects import Compare, SaveNarrowest, SaveStatistics
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import ALL, XLA, CompilerRule, Fitted, always, zoo

SMALL_FRACTION = 1 / 8
"""Statistics (a row's maximum, mean or variance) this much smaller than their source are saved beside it."""
COMPARISONS = frozenset({"eq", "ne", "ge", "gt", "le", "lt", "is_finite", "not"})
"""A mask is a quarter of its source, and still never written by compiled GPU programs: each fusion that reads
it compares again, and the compared value is saved."""


def _comparisons(facts: Facts) -> Iterator[Compare]:
    return (Compare(e.index) for e in facts.equations if e.name in COMPARISONS)


SMALL_STATISTICS = CompilerRule(
    name="small-statistics-are-saved",
    backends=ALL,
    stage="residuals",
    does="Of a normalised value its statistics (maximum, mean, variance) are saved and it is recomputed of them.",
    source=Fitted(
        value=SMALL_FRACTION,
        unit="of the bytes of the value",
        evidence="norms and softmax of GPT and ResNet-50 compiled for H100: statistics of a row or channel are saved",
        command=zoo("h100:8", "gpt", "resnet50"),
    ),
    made_after=("gpt", "resnet50"),
    test="tests/cost/test_prediction.py::test_what_is_saved_for_the_backward_pass",
    find=always(SaveStatistics(SMALL_FRACTION)),
)
NARROWEST_IS_SAVED = CompilerRule(
    name="narrowest-value-of-a-chain-is-saved",
    backends=ALL,
    stage="residuals",
    does="Of an element-wise chain that the backward pass recomputes, the value of the fewest bytes is saved.",
    source=f"{XLA}service/instruction_fusion.cc",
    made_after=("gpt", "resnet50"),
    test="tests/cost/test_prediction.py::test_what_is_saved_for_the_backward_pass",
    find=always(SaveNarrowest()),
)
MASKS_ARE_RECOMPUTED = CompilerRule(
    name="masks-are-compared-again",
    backends=ALL,
    stage="residuals",
    does="A comparison is never saved, though it has fewer bytes than its operand: each fusion compares again.",
    source=f"{XLA}service/instruction_fusion.cc",
    made_after=("resnet50",),
    test="tests/cost/test_prediction.py::test_a_rectifier_saves_what_it_read_and_not_its_mask",
    find=_comparisons,
)
