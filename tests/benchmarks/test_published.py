"""Published runs: rows become steps and machines, scanned layers cost as much as written-out, errors are figures."""

import dataclasses

import pytest

from benchmarks.published.__main__ import Result, figures, main, order, report
from benchmarks.published._choices import HEADER, choice, run_choices
from benchmarks.published._predict import Predicted, _predicted, predict
from benchmarks.published._rows import Row, UnknownRowError, read_rows
from benchmarks.published._sharding import grid_of
from benchmarks.published._sources import FITTED, HELD_OUT, is_held_out
from jaxplan.mesh import Topology

ROWS = read_rows()
SMALL = {
    "id": "small", "source": "somebody", "model": "small", "layers": "6", "d_model": "2048", "heads": "16",
    "kv_heads": "8", "head_dim": "128", "ffn": "8192", "mlp": "swiglu", "vocab": "8192", "seq": "1024",
    "global_batch": "64", "hardware": "H100-80GB", "devices": "8", "dp": "2", "fsdp": "2", "tp": "2", "remat": "full",
    "framework": "MaxText", "notes": "", "step_s": "0.01", "grad_accum": "", "memory_gib": "", "usable": "A",
}  # fmt: skip


def small(**fields: str) -> Row:
    return Row(fields=SMALL | fields)


def test_every_row_has_a_step_a_machine_and_degrees() -> None:
    assert len(ROWS) == 56
    for row in ROWS:
        data, fsdp, tensor = row.degrees
        assert row.topology.num_devices == data * fsdp * tensor == row.number("devices"), row.name
        assert row.overrides["batch_size"] % (data * fsdp) == 0, row.name
        grid_of(row.topology, data, fsdp, tensor)


def test_whole_sources_are_held_out_and_about_half_of_the_rows() -> None:
    assert all(row.fields["source"].startswith(HELD_OUT) != row.fields["source"].startswith(FITTED) for row in ROWS)
    assert sum(row.is_held_out for row in ROWS) == 27
    assert is_held_out("a table that was not there")


@pytest.mark.slow
def test_a_scanned_step_costs_what_it_costs_written_out() -> None:
    """Nearly: slices of stacks are read on top, and a loop starts no collective before its trip."""
    row = small()
    scanned = predict(row)
    written = predict(small(notes="written out"))
    assert written.compute_seconds == pytest.approx(scanned.compute_seconds, rel=0.1)
    whole = _predicted(row, row.overrides | {"scan": False})
    for name in ("compute_seconds", "communication_seconds", "seconds", "memory_bytes"):
        assert getattr(written, name) == pytest.approx(getattr(whole, name), rel=0.03), name


def test_gradients_of_micro_batches_cost_as_much_compute() -> None:
    """Twice the slices, half of the work in each."""
    one, two = (predict(small(tp="1", dp="4", grad_accum=number)) for number in ("1", "2"))
    assert two.compute_seconds == pytest.approx(one.compute_seconds, rel=0.25)
    assert two.communication_seconds > one.communication_seconds  # parameters are gathered for each of them


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hardware": "abacus"}, "the hardware 'abacus' has no preset"),
        ({"devices": "9"}, "degrees are not 9 devices"),
        ({"layers": ""}, "the column layers is empty"),
        ({"remat": "some of it"}, "the rematerialisation 'some of it'"),
        ({"dp": "1", "fsdp": "8", "tp": "1", "hardware": "TPU v6e"}, "no slice of v6e has 8 chips"),
    ],
)
def test_rows_that_cannot_be_built_say_why(fields: dict[str, str], message: str) -> None:
    row = small(**fields)
    with pytest.raises(UnknownRowError, match=message):
        assert row.degrees and row.overrides and row.topology


def test_errors_and_order() -> None:
    def result(name: str, published: float, predicted: float) -> Result:
        found = Predicted(seconds=predicted, compute_seconds=0, communication_seconds=0, memory_bytes=0)
        return Result(row=small(id=name, step_s=str(published)), predicted=found)

    results = [result("a", 1.0, 1.1), result("b", 2.0, 1.6), result("c", 1.02, 0.9), result("d", 3.0, 1.5)]
    # a and c differ by less than 5 %; of the five other pairs, predictions have d before b alone.
    assert order(results) == (4, 5)
    assert "median  15.9%" in figures("", results) and "signed median -15.9%" in figures("", results)
    held_out = report([dataclasses.replace(r) for r in results * 2])
    assert held_out[0].startswith("never fitted, h100 ") and " 8 rows" in held_out[0]


def test_another_table_of_the_same_columns(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runs.csv"
    rows = [SMALL, SMALL | {"id": "odd", "hardware": "abacus"}, SMALL | {"usable": "C"}]
    file.write_text("\n".join([",".join(SMALL), *(",".join(row.values()) for row in rows)]) + "\n")
    assert main(["--rows", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "| small | h100:8 |" in printed and "| odd | not built: the hardware 'abacus'" in printed
    assert "1 of 2 rows" in printed


def test_axes_are_dealt_from_the_slowest_link_on() -> None:
    grid = grid_of(Topology.parse("h100:2x8"), 2, 4, 2)
    assert (grid.data, grid.fsdp, grid.tensor) == ((0,), (1, 2), (3,))
    with pytest.raises(UnknownRowError, match="no product of neighbouring axes"):
        grid_of(Topology.parse("h100:2x8"), 3, 4, 2)


def test_a_published_choice_is_priced_as_the_search_prices_its_own() -> None:
    """Twice the devices for a tensor than is good: the search, which is not given that, finds a faster plan."""
    found = choice(small(dp="1", fsdp="1", tp="8"))
    assert found.theirs.time_seconds == pytest.approx(found.theirs.simulate().time_seconds, rel=1e-6)
    assert found.ours.time_seconds == pytest.approx(found.ours.simulate().time_seconds, rel=1e-6)
    assert found.ratio > 1.03 and not found.is_missed
    assert "less communication seen" in found.reason and found.theirs.summary in found.reason
    missed = dataclasses.replace(found, theirs=found.ours, ours=found.theirs)
    assert missed.is_missed and "more communication seen" in missed.reason
    assert dataclasses.replace(found, ours=found.theirs).reason == "it does not"


def test_choices_have_a_line_each_and_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_choices([small(fsdp="8", dp="1", tp="1"), small(remat="as you like")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == HEADER and lines[0].count("|") == lines[1].count("|") == lines[2].count("|")
    assert "as you like" in lines[3]
    assert lines[-1] == "1 published choices, 0 faster than ours by more than 3%"
