"""Records of benchmarks: frozen dataclasses, one to a line of JSON, in files that are written whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from jaxplan.core._files import write_whole

R = TypeVar("R")


def encode(record: Any) -> str:
    """A record, or a mapping, as one line of JSON without its end; keys are sorted."""
    return json.dumps(asdict(record) if is_dataclass(record) else record, sort_keys=True)


def decode(kind: Any, value: Any) -> Any:
    """A value of JSON as the annotated type `kind`: lists become tuples, and objects the dataclasses that they were.

    Example:
      >>> decode(tuple[tuple[str, int], ...], [["all-gather", 8]])
      (('all-gather', 8),)
    """
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return kind(**{name: decode(hints.get(name, Any), item) for name, item in value.items()})
    if isinstance(value, list):
        kinds = get_args(kind)
        if len(kinds) != len(value) or kinds[-1] is Ellipsis:
            kinds = (kinds[0] if kinds else Any,) * len(value)
        return tuple(map(decode, kinds, value))
    return value


def read_lines(*paths: Path) -> list[dict[str, Any]]:
    """The JSON object of each line of files, in order; a file that does not exist has none."""
    texts = [path.read_text(encoding="utf-8") for path in paths if path.exists()]
    return [json.loads(line) for text in texts for line in text.splitlines() if line]


def read_records(kind: type[R], *paths: Path) -> list[R]:
    """The records of files of JSON lines, in order; a file that does not exist has none."""
    return [decode(kind, line) for line in read_lines(*paths)]


def write_lines(path: Path, records: Iterable[Any | Mapping[str, Any]]) -> None:
    """Write the file anew, one record or mapping to a line."""
    write_whole(path, "".join(encode(record) + "\n" for record in records))
