"""The rows of the last run of each experiment that was kept: benchmarks/records/papers.jsonl."""

from __future__ import annotations

import dataclasses
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
      seconds: of the processor, those for causes among them.
      causes: rows that reasons of disagreements are read off.
    """

    experiment: str
    seconds: float
    rows: tuple[Row, ...]
    causes: tuple[Row, ...] = ()
    cause_seconds: float = 0.0


def read(path: Path = PATH) -> dict[str, Record]:
    """The records by experiment."""
    records = [
        Record(**{**line, "rows": tuple(line["rows"]), "causes": tuple(line.get("causes", ()))})
        for line in read_lines(path)
    ]
    return {record.experiment: record for record in records}


def save(record: Record, path: Path = PATH) -> None:
    """Put the record in the place of the one before; numbers keep five digits."""
    rounded = dataclasses.replace(
        record, rows=tuple(map(_rounded_row, record.rows)), causes=tuple(map(_rounded_row, record.causes))
    )
    records = {**read(path), record.experiment: rounded}
    write_lines(path, [records[name] for name in sorted(records)])


def _rounded_row(row: Row) -> Row:
    return {key: _rounded(value) for key, value in row.items()}


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value
