"""Measurements of `benchmarks.calibration` as plain data, the machine, and the file that keeps it.

The first line of a file names machine and versions; every other line is one measurement, on the disk before the next
begins. Of two lines with one key the later counts, and a line that was cut off in the middle is measured again.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Hashable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks._record import decode, encode
from jaxplan import ProfileError
from jaxplan.core._files import write_whole
from jaxplan.mesh import Machine, Topology

_SCHEMA, _VERSION = "jaxplan.calibration", 1
# Packages that bring the compiler and runtime of a platform, by how their names begin.
_PLUGINS = {"gpu": ("jax-cuda", "jax-rocm"), "tpu": ("libtpu",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator on one device.

    Attributes:
      shape: as its kind counts it (`_calibration_operators.SHAPES`).
      flops: 0 for operators that move bytes; num_bytes: read and written, each array once.
      seconds: of one, the quickest sample.
      peak_per_second: of the data sheet, FLOP/s where there are any and bytes/s elsewhere; on CPU nominal.
      predicted_seconds: by the model with data sheets.
      profile_seconds: by the model with a table of `jaxplan profile`; None without one.
    """

    operator: str
    dtype: str
    shape: tuple[int, ...]
    flops: int
    num_bytes: int
    seconds: float
    peak_per_second: float
    predicted_seconds: float
    profile_seconds: float | None = None

    @property
    def key(self) -> Hashable:
        return "operator", self.operator, self.dtype, self.shape

    @property
    def per_second(self) -> float:
        """FLOP/s, or bytes/s of operators without FLOPs."""
        return (self.flops or self.num_bytes) / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One plan, run; seconds of a step, bytes per device.

    Attributes:
      model: as in `benchmarks.accuracy.MODELS`; size: the part of it that was run, such as ``gpt-tiny, batch_size=16``.
      point: of the frontier, or a reference strategy.
      priced_by: ``profile`` or ``data sheet``.
      is_mocked: one GPU stood for all devices and collectives took no time, so `compute_seconds` is to be compared.
      measured_seconds: median; spread: distance of the quartiles as a share of it.
      num_samples: taken in turns with the other points; steps_per_sample: one after the other, each on the
        results of the one before.
      compiled_bytes: of the compiled program, arguments + outputs - aliased + temporaries.
      device_bytes: the device's peak after the step; None where the platform does not say, or where something
        before had taken more.
      load: processes that wanted a core of the host in the minute before.
    """

    model: str
    size: str
    topology: str
    num_devices: int
    point: str
    priced_by: str
    is_mocked: bool
    compute_seconds: float
    communication_seconds: float
    measured_seconds: float
    spread: float
    num_samples: int
    steps_per_sample: int
    predicted_bytes: int
    compiled_bytes: int
    device_bytes: int | None
    load: float

    @property
    def key(self) -> Hashable:
        return "step", self.model, self.size, self.topology, self.point, self.priced_by, self.is_mocked

    @property
    def predicted_seconds(self) -> float:
        """Of the measurement."""
        return self.compute_seconds + (0.0 if self.is_mocked else self.communication_seconds)

    @property
    def error(self) -> float:
        return self.predicted_seconds / self.measured_seconds - 1

    @property
    def peak_bytes(self) -> int:
        """Bytes seen on the device, or else compiled."""
        return self.compiled_bytes if self.device_bytes is None else self.device_bytes


Record = Operator | Step
_KINDS: dict[str, type[Operator] | type[Step]] = {"operator": Operator, "step": Step}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The machine and the versions of a measurement.

    Attributes:
      machine: of one device.
      chip: as in a topology string; its data sheet has the peaks.
      platform: ``cpu``, ``gpu`` or ``tpu``.
      runtime: as the platform names itself, such as ``cuda 12090``.
      plugins: packages that bring it, with versions.
    """

    machine: Machine
    chip: str
    platform: str
    runtime: str
    plugins: tuple[str, ...]

    @classmethod
    def of(cls, device: Any) -> Origin:
        begins = _PLUGINS.get(device.platform, ())
        installed = {
            (d.metadata["Name"] or "").lower(): d.version for d in importlib.metadata.distributions()
        }
        return cls(
            machine=Machine.present([device]),
            chip=Topology.detect([device]).chip.name,
            platform=device.platform,
            runtime=" ".join(str(device.client.platform_version).split()),
            plugins=tuple(
                f"{name} {installed[name]}" for name in sorted(installed) if name.startswith(begins)
            )
            if begins
            else (),
        )

    def differences(self, other: Origin) -> tuple[str, ...]:
        """One sentence for each thing that differs, the other's value first."""
        names = [field.name for field in fields(self) if field.name != "machine"]
        differ = [name for name in names if getattr(self, name) != getattr(other, name)]
        return (
            *self.machine.differences(other.machine),
            *(f"{name} is {getattr(other, name)!r}, not {getattr(self, name)!r}" for name in differ),
        )


class RecordFile:
    """A file of one machine that grows by a line for each measurement.

    Attributes:
      records: its lines, by key.
    """

    def __init__(self, path: Path, origin: Origin) -> None:
        self.records: dict[Hashable, Record] = {}
        lines = _lines(path)
        if lines:
            found = _origin(path, lines[0])
            if differences := origin.differences(found):
                raise ProfileError(
                    f"{str(path)!r} was measured on another machine or with other versions.\n"
                    f"  in the file: {'; '.join(differences)}\n"
                    "  fix: write to another file, or remove this one to measure everything again"
                )
            self.records = {record.key: record for record in map(_record, lines[1:])}
        write_records(path, origin, self.records.values())
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, record: Record) -> None:
        self.records[record.key] = record
        self._file.write(encode(_body(record)) + "\n")
        self._file.flush()


def write_records(path: Path, origin: Origin, records: Iterable[Record]) -> None:
    """A whole file of measurements."""
    head = {"schema": _SCHEMA, "version": _VERSION, **asdict(origin)}
    write_whole(path, "".join(encode(body) + "\n" for body in (head, *map(_body, records))))


def read_records(path: Path) -> tuple[Origin, list[Record]]:
    """The machine of a file, and its records.

    Raises:
      ProfileError: not such a file.
    """
    lines = _lines(path)
    if not lines:
        raise ProfileError(
            f"{str(path)!r} has no records; measure some with `python -m benchmarks.calibration`"
        )
    return _origin(path, lines[0]), list({r.key: r for r in map(_record, lines[1:])}.values())


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; none where there is no file."""
    *whole, _ = path.read_text(encoding="utf-8").split("\n") if path.exists() else ("",)
    try:
        return [json.loads(line) for line in whole]  # behind the last end of a line is a cut-off line
    except ValueError as error:
        raise ProfileError(f"{str(path)!r} is no file of `benchmarks.calibration`: {error}") from error


def _origin(path: Path, head: dict[str, Any]) -> Origin:
    if (head.pop("schema", None), head.pop("version", None)) != (_SCHEMA, _VERSION):
        raise ProfileError(
            f"{str(path)!r} is no file of `benchmarks.calibration`: schema {_SCHEMA!r} {_VERSION}"
        )
    return decode(Origin, head)


def _body(record: Record) -> dict[str, Any]:
    return {"kind": type(record).__name__.lower(), **asdict(record)}


def _record(body: dict[str, Any]) -> Record:
    return decode(_KINDS[body["kind"]], {name: value for name, value in body.items() if name != "kind"})
