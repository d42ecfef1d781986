"""The rows of the last run of each experiment that was kept: benchmarks/records/papers.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._record import read_lines, write_lines
from benchmarks.papers._experiment import Row

PATH = Path(__file__).parents[1] / "records" / "papers.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run.

    Attributes:
      seconds: of the processor, or by the clock beside other work, which is more.
    """

    experiment: str
    seconds: float
    rows: tuple[Row, ...]


def read(path: Path = PATH) -> dict[str, Record]:
    """The records by experiment."""
    records = [Record(**{**line, "rows": tuple(line["rows"])}) for line in read_lines(path)]
    return {record.experiment: record for record in records}


def save(record: Record, path: Path = PATH) -> None:
    """Put the record in the place of the one before; numbers keep five digits."""
    rounded = Record(
        experiment=record.experiment,
        seconds=record.seconds,
        rows=tuple({key: _rounded(value) for key, value in row.items()} for row in record.rows),
    )
    records = {**read(path), record.experiment: rounded}
    write_lines(path, [records[name] for name in sorted(records)])


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value
