"""One plan, predicted and compiled, as a line of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import _record


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One plan, predicted and compiled; bytes and FLOPs per device and step.

    Attributes:
      kind: ``reference``, ``leanest``, ``fastest``, ``knee`` or ``between``.
      data_parallel: nothing but sums of gradients is communicated and every parameter is whole.
      collectives: (kind, predicted bytes, compiled bytes).
      unexpected: collectives that the plan does not have, with the operator and line they come from.
      failure: why it could not be compiled.
    """

    model: str
    topology: str
    point: str
    kind: str
    data_parallel: bool
    predicted_memory: int
    compiled_memory: int
    predicted_parts: dict[str, int]
    predicted_flops: int
    compiled_flops: int
    collectives: tuple[tuple[str, int, int], ...]
    unexpected: tuple[str, ...]
    rematerialised: bool
    failure: str = ""


def read_records(paths: Iterable[Path]) -> list[Record]:
    """The records of files of JSON lines, in order."""
    return _record.read_records(Record, *paths)


def write_records(path: Path, records: Sequence[Record]) -> None:
    """One JSON line for each record."""
    _record.write_lines(path, records)
