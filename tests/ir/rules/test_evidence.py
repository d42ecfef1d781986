"""`python -m jaxplan coverage` prints the evidence of the tests, and every primitive is accounted for."""

from __future__ import annotations

import pytest

from jaxplan.cli._coverage import coverage
from jaxplan.cli._main import main
from jaxplan.ir.rules import _elsewhere, _opaque, registered_primitives
from jaxplan.ir.rules._evidence import EVIDENCE
from tests.ir.rules import evidence

_LEAST_SPLIT = 0.92


def test_evidence_and_docs_are_up_to_date() -> None:
    """If not: python -m tests.ir.rules.evidence."""
    assert evidence.evidence() == EVIDENCE
    assert evidence.with_tables(evidence.DOCS.read_text()) == evidence.DOCS.read_text()
    assert not evidence.unregistered()


def test_every_primitive_is_accounted_for_and_most_can_be_split() -> None:
    operators = [entry for entry in coverage() if entry.kind != "elsewhere"]
    assert not [entry.name for entry in operators if entry.kind == "none"]
    assert not [entry.name for entry in operators if not entry.tested]
    assert not [entry.name for entry in operators if not entry.splits and entry.reason == "not tried"]
    assert sum(entry.splits for entry in operators) >= _LEAST_SPLIT * len(operators)


def test_rules_of_whole_primitives_are_listed_as_whole() -> None:
    both = set(_elsewhere.ELSEWHERE) & set(registered_primitives())
    assert both <= {*_opaque.WHOLE_BY_NATURE, "coo_spmm", "coo_spmv", "csr_spmm", "csr_spmv"}


def test_coverage_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage"]) == 0
    printed = capsys.readouterr().out
    assert "unaccounted for: none; without a count: none; without a test of their own: none" in printed
    line = next(line for line in printed.splitlines() if line.startswith("dot_general "))
    assert "map reduce" in line and "Shardy" in line and "pieces" in line and "multiply-adds" in line
