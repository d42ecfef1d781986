"""The table of docs/experts.md has the figures that its command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.time.sorted_experts import Config, plans

DOCS = Path(__file__).parents[2] / "docs" / "experts.md"
ROW = re.compile(
    r"^\| (?P<program>[a-z0-9 ]+) \| `?(?P<plan>\w+)`? \| (?P<ms>[\d.]+) \| (?P<gib>[\d.]+) \|", re.MULTILINE
)


@pytest.mark.slow
def test_predicted_figures_are_those_of_the_page() -> None:
    written = {(row["program"], row["plan"]): (row["ms"], row["gib"]) for row in ROW.finditer(DOCS.read_text())}
    found = {
        (program, name): (f"{plan.time_seconds * 1e3:.1f}", f"{plan.memory_bytes / 2**30:.2f}")
        for program, name, plan in plans(Config(), "h100:8")
    }
    assert found == written


@pytest.mark.slow
def test_blocks_are_faster_than_one_sort() -> None:
    """One layer on eight devices: `data` is drawn in blocks alone."""
    seconds = {
        (program, name): plan.time_seconds for program, name, plan in plans(Config(num_layers=1), "h100:8")
    }
    assert seconds["rows sorted in 8 blocks", "fastest"] < seconds["one sort", "fastest"]
    assert ("one sort", "data") not in seconds
    assert ("rows sorted in 8 blocks", "data") in seconds
