"""Measurements as they are made, one line each, so that an interruption loses none.

The first line names the machine and the topology. A line that was cut off in the middle is measured again.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxplan.core._files import write_whole
from jaxplan.core._json import number
from jaxplan.errors import ProfileError
from jaxplan.mesh._machine import Machine
from jaxplan.mesh._profile_check import read_profile
from jaxplan.mesh._profile_table import Key, ProfileTable, key_of

_SCHEMA, _VERSION = "jaxplan.mesh.profile-journal", 1


class Journal:
    """The measurements of one machine and topology, in a table file and in the journal beside it.

    Attributes:
      seconds: key -> measured seconds.
      path: of the table; None keeps everything in memory.
    """

    def __init__(
        self, path: str | Path | None, machine: Machine, topology: str, *, writes: bool = True
    ) -> None:
        self.path = None if path is None else Path(path)
        self.seconds: dict[Key, float] = {}
        self._machine, self._topology, self._writes = machine, topology, writes and path is not None
        self._file: Any = None
        if self.path is not None and self.path.exists():
            table = read_profile(self.path)
            self._check(table.machine, table.topology, self.path)
            self.seconds.update(table.entries)
        if self._partial is not None and self._partial.exists():
            self._read(self._partial)

    @property
    def _partial(self) -> Path | None:
        return None if self.path is None else self.path.with_name(self.path.name + ".partial")

    def __enter__(self) -> Journal:
        if self._writes and self._partial is not None:
            is_new = not self._partial.exists() or not self._partial.stat().st_size
            self._file = open(self._partial, "a", encoding="utf-8")
            if is_new:
                self._line({"schema": _SCHEMA, "version": _VERSION, **self._head()})
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, key: Key, seconds: float) -> None:
        """Keep one measurement, on the disk before the next begins."""
        self.seconds[key] = seconds
        if self._file is not None:
            self._line({"key": key, "seconds": seconds})

    def finish(self) -> ProfileTable:
        """The table of everything measured; written, and the journal beside it removed."""
        entries = tuple(sorted(self.seconds.items(), key=lambda item: (item[0][0], repr(item[0]))))
        table = ProfileTable(machine=self._machine, topology=self._topology, entries=entries)
        if self._writes and self.path is not None and self._partial is not None:
            write_whole(self.path, _table_text(table))
            self.__exit__()
            self._partial.unlink(missing_ok=True)
        return table

    def _head(self) -> dict[str, Any]:
        return {"topology": self._topology, "machine": asdict(self._machine)}

    def _line(self, body: dict[str, Any]) -> None:
        self._file.write(json.dumps(body) + "\n")
        self._file.flush()

    def _read(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        try:
            head = json.loads(lines[0])
            machine, topology = Machine(**head["machine"]), head["topology"]
        except (IndexError, KeyError, TypeError, ValueError, RecursionError):
            path.unlink()  # interrupted before its first line was whole
            return
        self._check(machine, topology, path)
        whole = 0
        for line in lines[1:]:
            try:
                body = json.loads(line)
                self.seconds[key_of(body["key"])] = number(body["seconds"], "seconds")
            except (KeyError, TypeError, ValueError, RecursionError):
                break
            whole += 1
        kept = "".join(line + "\n" for line in lines[: 1 + whole])
        if self._writes and kept != text:
            write_whole(path, kept)

    def _check(self, machine: Machine, topology: str, path: Path) -> None:
        differences = list(self._machine.differences(machine))
        if topology != self._topology:
            differences.insert(0, f"topology is {topology!r}, not {self._topology!r}")
        if differences:
            raise ProfileError(
                f"{str(path)!r} was measured on another machine or with other versions.\n"
                f"  in the file: {'; '.join(differences)}\n"
                "  fix: write to another file, or remove this one to measure everything again"
            )


def _table_text(table: ProfileTable) -> str:
    """JSON with one measurement a line."""
    body = table.to_json()
    entries = ",\n  ".join(json.dumps(entry) for entry in body.pop("entries"))
    return json.dumps(body, indent=1)[:-2] + ',\n "entries": [\n  ' + entries + "\n ]\n}\n"
