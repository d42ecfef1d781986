"""The documented table of forms is that of the benchmark; no further form costs more than its program."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.quality.references import END, START, Compiler, all_lines, table
from tests.versions import until_0_12


@pytest.mark.slow
@until_0_12("dots keep less scratch: the ratio of the document is x1.061 for x1.105")
def test_forms_that_cost_more_are_those_of_the_documentation() -> None:
    lines = list(all_lines(Compiler("h100:8", compiles=False)))
    assert all(line.compiled is not None for line in lines)
    missed = [(line.what, *line.missed) for line in lines if line.missed]
    assert missed == [("perceptron, features first: data", "memory")]
    text = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()
    shown = text.partition(START)[2].partition(END)[0].split("\n")
    assert [row for row in shown if row] == table(lines)
