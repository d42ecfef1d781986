"""One plan, predicted and compiled, as a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxplan.core._files import write_whole


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
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return [_record(json.loads(line)) for line in lines]


def write_records(path: Path, records: Sequence[Record]) -> None:
    """One JSON line for each record."""
    write_whole(path, "".join(json.dumps(asdict(r), sort_keys=True) + "\n" for r in records))


def _record(saved: dict[str, Any]) -> Record:
    collectives = tuple((kind, asked, made) for kind, asked, made in saved["collectives"])
    return Record(**{**saved, "collectives": collectives, "unexpected": tuple(saved["unexpected"])})
