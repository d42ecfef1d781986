"""One compiled plan of `benchmarks.quality` as plain data, and the file that keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxplan.core._files import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTraffic:
    """What one kind of collective moves across one level of the machine: seconds, and bytes per device, of a step."""

    kind: str
    link: str
    group_size: int
    count: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One plan, predicted and compiled; bytes and seconds per device and step.

    Attributes:
      size: what of the model was compiled, such as ``4 of 24 layers``.
      point: ``#3`` of the frontier, or the name of the reference strategy.
      roles: of ``fastest``, ``knee``, ``leanest`` and ``reference`` those that it has; ``between``: a point that was
        looked at because it should beat a reference.
      fits: the compiled memory is at most the machine's limit.
      compute_seconds, communication_seconds, overlapped_seconds: as in `Timeline`.
      failure: why it could not be compiled.
    """

    model: str
    topology: str
    size: str
    point: str
    roles: tuple[str, ...]
    predicted_memory: int
    predicted_seconds: float
    compiled_memory: int = 0
    fits: bool = False
    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    overlapped_seconds: float = 0.0
    traffic: tuple[LinkTraffic, ...] = ()
    rematerialised: bool = False
    collectives_ok: bool = True
    compile_seconds: float = 0.0
    failure: str = ""

    @property
    def pair(self) -> str:
        return f"{self.model}@{self.topology}"

    @property
    def serial_seconds(self) -> float:
        """Kernels and collectives one after the other."""
        return self.compute_seconds + self.communication_seconds

    @property
    def is_reference(self) -> bool:
        return "reference" in self.roles

    @property
    def is_ours(self) -> bool:
        """A point of the frontier, which may be a reference as well."""
        return self.roles != ("reference",)


def read_records(paths: Iterable[Path]) -> list[Record]:
    """The records of files of JSON lines; files that are not there have none."""
    lines = [line for path in paths if path.exists() for line in path.read_text().splitlines()]
    return [_record(json.loads(line)) for line in lines]


def _record(saved: dict[str, Any]) -> Record:
    traffic = tuple(LinkTraffic(**item) for item in saved["traffic"])
    return Record(**{**saved, "traffic": traffic, "roles": tuple(saved["roles"])})


def save_pair(path: Path, records: Sequence[Record]) -> None:
    """Put the records of one pair into a file, in place of what it had of that pair."""
    pair = records[0].pair
    kept = [r for r in read_records([path]) if r.pair != pair]
    lines = [json.dumps(asdict(r), sort_keys=True) for r in [*kept, *records]]
    write_whole(path, "".join(line + "\n" for line in lines))
