"""The four papers, repeated: verdicts on the rows on record, the page made of them, and one tiny experiment."""

import dataclasses

import pytest

from benchmarks.papers import pase_table1
from benchmarks.papers.__main__ import main
from benchmarks.papers._baselines import (
    LIMIT_BYTES,
    LayerOnGpu,
    OneGpu,
    ideal,
    placement,
    small_batch,
    swapping,
)
from benchmarks.papers._experiment import Claim, Column, Experiment
from benchmarks.papers._page import PAGE, page
from benchmarks.papers._records import Record, read, save
from benchmarks.papers._registry import EXPERIMENTS
from benchmarks.papers._turning_point import slopes, turning_point

RECORDED = read()


def test_the_page_is_that_of_the_records() -> None:
    """`python -m benchmarks.papers --page` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_every_disagreement_has_a_reason_and_a_command(name: str) -> None:
    for verdict in EXPERIMENTS[name].verdicts(RECORDED[name].rows):
        if verdict.outcome == "disagrees":
            assert verdict.claim.reason and verdict.claim.shown_by.startswith("python -m benchmarks."), (
                verdict.ours
            )
        assert verdict.claim.reason or verdict.outcome != "not covered"


def test_every_claim_has_a_source_and_names_are_those_of_the_commands() -> None:
    for name, experiment in EXPERIMENTS.items():
        assert name == experiment.name and experiment.claims
        for claim in experiment.claims:
            assert claim.source.split()[0] in ("FlexFlow", "PaSE", "TensorOpt", "Tofu")


def test_all_experiments_together_take_less_than_an_hour() -> None:
    assert sum(record.seconds for record in RECORDED.values()) < 3600


EXAMPLE = Experiment(
    name="example",
    title="",
    setting="",
    run=lambda: [{"x": 1.0}],
    columns=(Column(key="x", heading="x", digits=1), Column(key="y", heading="y")),
    claims=(
        Claim(
            source="PaSE 1",
            published="x is below 2",
            judge=lambda rows: (rows[0]["x"] < 2, str(rows[0]["x"])),
        ),
        Claim(source="PaSE 2", published="y is there", reason="nothing measures it"),
    ),
)


@pytest.mark.parametrize(("x", "outcome"), [(1.0, "agrees"), (3.0, "disagrees")])
def test_a_claim_is_judged_on_the_rows(x: float, outcome: str) -> None:
    first, second = EXAMPLE.verdicts([{"x": x}])
    assert (first.outcome, first.ours, second.outcome) == (outcome, str(x), "not covered")


def test_a_table_has_a_dash_for_what_a_row_lacks() -> None:
    assert EXAMPLE.table([{"x": 1234.0}, {"x": 2.0, "y": True}]).splitlines()[2:] == [
        "| 1,234.0 | - |",
        "| 2.0 | yes |",
    ]


def test_a_record_takes_the_place_of_the_one_before(tmp_path) -> None:
    path = tmp_path / "records.jsonl"
    for seconds in (1.0, 2.0):
        save(Record(experiment="example", seconds=seconds, rows=({"x": 1 / 3},)), path)
    assert read(path) == {"example": Record(experiment="example", seconds=2.0, rows=({"x": 0.33333},))}


def test_an_unknown_experiment_is_named_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["figure-of-no-paper"])
    assert "figure-of-no-paper" in (text := capsys.readouterr().err) and "tofu-figure11" in text


def test_a_turning_point_is_where_the_slope_changes() -> None:
    points = [{"gib": gib, "ms": ms} for gib, ms in ((1, 100), (2, 52), (3, 10), (6, 8), (9, 6))]
    assert turning_point(points) == 2
    assert slopes(points) == pytest.approx((45, 2 / 3))


def test_baselines_of_tofu_in_closed_form() -> None:
    """One GPU takes 1 s for 8 examples and 6 GB more than it has, and 0.5 s for 2 that fit."""
    large = OneGpu(batch=8, seconds=1.0, memory_bytes=LIMIT_BYTES + 6 * 10**9)
    small = dataclasses.replace(large, batch=2, seconds=0.5, memory_bytes=LIMIT_BYTES)
    assert ideal([small, large]) == 64
    assert small_batch([small, large]) == 32
    assert small_batch([large]) is None
    # Eight GPUs move 6 GB out and in at 10 GB/s together: 9.6 s.
    assert swapping([large]) == pytest.approx(64 / 9.6)


@pytest.mark.parametrize(("num_layers", "num_steps"), [(1, 5), (4, 3), (8, 20)])
def test_pipelined_time_steps_take_as_long_as_the_longest_diagonal(num_layers: int, num_steps: int) -> None:
    """With a GPU for each layer both passes are wavefronts of (time step, layer)."""
    layer = LayerOnGpu(seconds=1.0, state_bytes=100.0, residual_bytes=10.0)
    seconds, num_bytes = placement(layer, num_layers, num_steps)
    assert seconds == pytest.approx(3 * (num_layers + num_steps - 1))
    assert num_bytes == 110


def test_alexnet_on_four_devices_is_solved_faster_than_chains_walk() -> None:
    (row,) = pase_table1.run(("AlexNet",), (4,))
    assert row["width"] <= 3 and row["pase_s"] < row["mcmc_s"]
