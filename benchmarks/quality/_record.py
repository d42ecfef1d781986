"""One compiled plan of `benchmarks.quality` as plain data, and the file that keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import _record


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTraffic:
    """Traffic of one kind of collective across one level of the machine: seconds, and bytes per device, of a step."""

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
      size: the part of the model that was compiled, such as ``4 of 24 layers``.
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
    """The records of files of JSON lines; a file that does not exist has none."""
    return _record.read_records(Record, *paths)


def save_pair(path: Path, records: Sequence[Record]) -> None:
    """Put the records of one pair into a file, in place of its earlier records of that pair."""
    pair = records[0].pair
    _record.write_lines(path, [*(r for r in read_records([path]) if r.pair != pair), *records])
