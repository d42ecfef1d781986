"""Intervals of memory are those of the recorded compilations."""

import json
from pathlib import Path

import numpy as np
import pytest

import jaxplan
from jaxplan.cost import memory_interval

RECORDS = Path(__file__).parents[2] / "benchmarks" / "records"


@pytest.mark.parametrize(
    ("file", "topology", "platform"),
    [("population.jsonl", "h100:8", "cuda"), ("accuracy.jsonl", "v5e:2x4", "tpu")],
)
@pytest.mark.parametrize("searched", [True, False])
def test_nine_of_ten_recorded_plans_lie_inside(file, topology, platform, searched):
    rows = [json.loads(line) for line in (RECORDS / file).read_text().splitlines()]
    ratios = [
        row["compiled_memory"] / row["predicted_memory"]
        for row in rows
        if row["topology"] == topology and (row["kind"] != "reference") == searched and row["compiled_memory"]
    ]
    interval = memory_interval(platform, searched=searched)
    assert interval.num_plans == len(ratios)
    assert [interval.low, interval.high] == pytest.approx([*np.percentile(ratios, [5, 95])], abs=6e-4)


def test_plans_say_their_interval(tmp_path):
    def step(w, x):
        return w - x.T @ (x @ w)

    frontier = jaxplan.plan(step, np.ones((64, 64), "f4"), np.ones((64, 64), "f4"), topology="h100:8")
    plan = frontier.fastest()
    low, high = plan.memory_interval_bytes
    assert low < plan.memory_bytes < high
    assert "in 9 of 10" in plan.explain()
    assert "9 of 10" in frontier.table()
    frontier.plot(tmp_path / "f.svg")
    assert jaxplan.plan(step, np.ones((64, 64), "f4"), np.ones((64, 64), "f4"), topology="cpu:8").fastest(
    ).memory_interval_bytes is None
