"""Measurements of `jaxplan profile` on one machine: plain data, and the seconds that follow from it."""

from __future__ import annotations

import reprlib
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxplan.core._json import MalformedError, number, required, text, typed, whole
from jaxplan.errors import ProfileError
from jaxplan.mesh._collective_kinds import COLLECTIVES
from jaxplan.mesh._curve import Curve
from jaxplan.mesh._machine import Machine
from jaxplan.mesh._rates import MatmulRates

_LEAST_SECONDS, _MOST_SECONDS = 1e-12, 1e9
"""Outside of these no clock measures."""

PROFILE_SCHEMA, PROFILE_VERSION = "jaxplan.mesh.profile", 1

Key = tuple[Any, ...]
"""`("collective", kind, sizes per level, bytes)`, `("matmul", dtype, batch, m, k, n)` or `("memory", bytes)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTable:
    """Measured seconds, all devices busy at once.

    Attributes:
      machine: where it was measured.
      topology: name of the topology, such as `h100:8`.
      entries: (key, seconds), in the order of the keys. Bytes of a collective are those of
        `jaxplan.mesh.collective_seconds`, of memory those read and written by an element-wise pass.
      collectives: per (kind, sizes per level) a curve over bytes.
      memory: a curve over bytes.
      matmuls: rates by dtype and shape.
    """

    machine: Machine
    topology: str
    entries: tuple[tuple[Key, float], ...]
    collectives: dict[tuple[str, tuple[int, ...]], Curve] = field(init=False, compare=False, repr=False)
    memory: Curve = field(init=False, compare=False, repr=False)
    matmuls: MatmulRates = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        groups: dict[tuple[str, tuple[int, ...]], list[tuple[float, float]]] = defaultdict(list)
        memory: list[tuple[float, float]] = []
        matmuls: dict[tuple[str, int, int, int, int], float] = {}
        for key, seconds in self.entries:
            if not (isinstance(seconds, float) and _LEAST_SECONDS <= seconds <= _MOST_SECONDS):
                raise ProfileError(
                    f"measurement {key!r} is {seconds!r}; expected positive seconds, "
                    f"from {_LEAST_SECONDS:g} to {_MOST_SECONDS:g}"
                )
            if key[0] == "collective":
                groups[key[1], key[2]].append((key[3], seconds))
            elif key[0] == "matmul":
                matmuls[key[1:]] = seconds
            elif key[0] == "memory":
                memory.append((key[1], seconds))
            else:
                raise ProfileError(f"measurement {key!r} is of no known kind")
        if not memory or not matmuls:
            raise ProfileError(
                "the table measures no matrix products, or no memory: run `jaxplan profile` to the end"
            )
        object.__setattr__(self, "collectives", {key: Curve.of(points) for key, points in groups.items()})
        object.__setattr__(self, "memory", Curve.of(memory))
        object.__setattr__(self, "matmuls", MatmulRates.of(matmuls))
        object.__setattr__(self, "_hash", hash((self.machine, self.topology, self.entries)))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return (
            f"ProfileTable({self.topology} on {self.machine.device_kind}, {len(self.entries)} measurements)"
        )

    @property
    def launch_seconds(self) -> float:
        """Floor of one element-wise kernel."""
        return self.memory.seconds[0]

    def memory_seconds(self, num_bytes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Seconds beyond the launch floor to read or write so many bytes in an element-wise pass."""
        return np.maximum(0.0, self.memory.at(num_bytes) - self.launch_seconds)

    def to_json(self) -> dict[str, Any]:
        """Plain data with schema and version."""
        head = {"schema": PROFILE_SCHEMA, "version": PROFILE_VERSION, "topology": self.topology}
        return {**head, "machine": asdict(self.machine), "entries": [[*key, s] for key, s in self.entries]}

    @classmethod
    def from_json(cls, body: Any) -> ProfileTable:
        """Read the output of `to_json`.

        Raises:
          ProfileError: not such data; the message names the fault.
        """
        if not isinstance(body, dict) or (body.get("schema"), body.get("version")) != (
            PROFILE_SCHEMA,
            PROFILE_VERSION,
        ):
            raise ProfileError(
                f"not a profile table: expected schema {PROFILE_SCHEMA!r} version {PROFILE_VERSION}; "
                "measure one with `jaxplan profile`"
            )
        try:
            rows = _list(required(body, "entries"), "entries")
            return cls(
                machine=typed(Machine, required(body, "machine"), "machine"),
                topology=text(required(body, "topology"), "topology"),
                entries=tuple(_entry(row, f"entries[{i}]") for i, row in enumerate(rows)),
            )
        except MalformedError as error:
            raise ProfileError(
                f"profile table has a missing or malformed field: {error}.\n"
                "  likely cause: the file was edited\n"
                "  fix: measure again with `jaxplan profile`"
            ) from error


def _entry(row: Any, where: str) -> tuple[Key, float]:
    """A key and its seconds, of one list."""
    items = _list(row, where)
    if not items:
        raise MalformedError(f"{where} is empty; expected a kind, a shape and seconds")
    return key_of(items[:-1], where), number(items[-1], f"{where} seconds")


def key_of(items: Any, where: str = "key") -> Key:
    """A key from JSON: sizes per level become a tuple, and everything has the type that it should have.

    Raises:
      MalformedError, ProfileError: it is no such key; names the place.
    """
    kind, *rest = _list(items, where) or [None]
    match kind, rest:
        case "collective", [name, sizes, num_bytes]:
            if name not in COLLECTIVES:
                expected = ", ".join(COLLECTIVES)
                raise ProfileError(f"{where}: collective {reprlib.repr(name)} is not known; expected one of {expected}")
            sizes = tuple(whole(size, f"{where} sizes", least=1) for size in _list(sizes, f"{where} sizes"))
            return kind, name, sizes, whole(num_bytes, f"{where} bytes", least=1)
        case "matmul", [dtype, batch, m, k, n]:
            extents = (whole(extent, f"{where} extents", least=1) for extent in (batch, m, k, n))
            return kind, text(dtype, f"{where} dtype"), *extents
        case "memory", [num_bytes]:
            return kind, whole(num_bytes, f"{where} bytes", least=1)
    raise ProfileError(f"{where}: measurement {reprlib.repr(items)} is of no known kind")


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise MalformedError(f"{where} is {reprlib.repr(value)}; expected a list")
    return list(value)
