"""Records on disk: the committed ones are read and written unchanged, nested dataclasses and tuples included."""

from pathlib import Path

import pytest

from benchmarks import _record
from benchmarks.accuracy import Record as AccuracyRecord
from benchmarks.accuracy._effects import Effect
from benchmarks.calibration._record import read_records as read_calibration
from benchmarks.compat._measure import Record as CompatRecord
from benchmarks.quality._record import Record as QualityRecord
from benchmarks.solvers._models import Record as SolverRecord

RECORDS = Path(_record.__file__).parent / "records"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("accuracy", AccuracyRecord),
        ("compat", CompatRecord),
        ("quality", QualityRecord),
        ("solvers", SolverRecord),
    ],
)
def test_committed_records_are_written_as_they_were_read(name: str, kind: type, tmp_path: Path) -> None:
    records = _record.read_records(kind, RECORDS / f"{name}.jsonl")
    assert records
    _record.write_lines(tmp_path / "again.jsonl", records)
    assert _record.read_records(kind, tmp_path / "again.jsonl") == records
    assert _record.read_lines(tmp_path / "again.jsonl") == _record.read_lines(RECORDS / f"{name}.jsonl")


def test_committed_calibration_is_read() -> None:
    origin, records = read_calibration(RECORDS / "calibration_cpu.jsonl")
    assert origin.platform == "cpu"
    assert records


def test_an_absent_file_has_no_records(tmp_path: Path) -> None:
    assert _record.read_records(AccuracyRecord, tmp_path / "absent.jsonl") == []


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        _record.decode(Effect, {"colour": "red"})
