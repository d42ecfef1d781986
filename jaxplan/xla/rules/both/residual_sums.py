"""Sums of two activations: residual streams."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.xla._effects import Write
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import ALL, XLA, CompilerRule


def _residual_sums(facts: Facts) -> Iterator[Write]:
    for eqn in facts.equations:
        if facts.family(eqn.index) == "elementwise" and eqn.name in ("add", "add_any", "sub"):
            (result,) = eqn.results
            size = facts.tensors[result].num_elements
            values = facts.graph.values
            large = {t for t in eqn.operands if facts.tensors[t].num_elements == size and not values.free[t]}
            if size > 1 and len(large) >= 2 and len(set(_readers(facts, result))) >= 2:
                yield Write(result)


def _readers(facts: Facts, t: int) -> Iterator[int]:
    """Equations that read a sum, but for those that serve the backward pass alone: these recompute it.

    Those of the rectified sum do where dots compute that as they read it; elsewhere it is a buffer itself.
    """
    consumers = facts.graph.values.consumers
    for c in consumers[t]:
        eqn = facts.equations[c]
        if c >= facts.turning or any(r < facts.turning for result in eqn.results for r in consumers[result]):
            is_inside = c in facts.rectifiers and not facts.written[eqn.results[0]]
            yield from _readers(facts, eqn.results[0]) if is_inside else (c,)


RESIDUAL_SUMS = CompilerRule(
    name="residual-sums-are-written-once",
    backends=ALL,
    stage="fusion",
    does="A sum of two activations that several kernels read is written once and not recomputed in each.",
    source=f"{XLA}service/instruction_fusion.cc",
    made_after=("gpt", "resnet50"),
    test="tests/cost/test_prediction.py::test_what_is_saved_for_the_backward_pass",
    find=_residual_sums,
    priority=2,
)
