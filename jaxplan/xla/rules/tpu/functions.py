"""Functions that TPU programs save rather than compute twice."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.xla._effects import KeepResults
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import CompilerRule, Observed

NOT_RECOMPUTED = frozenset({"erf", "erf_inv", "sin", "cos", "lgamma", "digamma"})
"""Not saved are ``tanh``, ``tan``, ``atan2``, ``pow`` and ``cbrt``, nor ``erfc`` of a GELU but for a bit (and
`jaxplan.xla.rules.tpu.dot_operands.IMAGES_OF_ERFC`)."""


def _saved(facts: Facts) -> Iterator[KeepResults]:
    return (KeepResults(e.index) for e in facts.equations if e.name in NOT_RECOMPUTED)


SAVED_FUNCTIONS = CompilerRule(
    name="erf-and-trigonometry-are-saved",
    backends=("tpu",),
    stage="residuals",
    does="`erf`, `erf_inv`, `sin`, `cos`, `lgamma` and `digamma` are saved for the backward pass.",
    source=Observed(
        evidence="perceptrons with each function between their dots, compiled for v5e",
        command="python -m pytest -m tpu_aot tests/cost/test_functions.py",
    ),
    made_after=(),
    test="tests/cost/test_functions.py::test_what_tpus_save_of_a_function",
    find=_saved,
)
