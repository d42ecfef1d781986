"""JSON that anyone may have written: read within limits, and turned into typed data or one clear error."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
import reprlib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

MAX_FILE_BYTES = 256 << 20
"""A larger file is refused before it is parsed."""
MOST_INT = (1 << 63) - 1
"""Counts and bytes fit 64 bits, as arrays need them."""
MOST_FLOAT = 1e30
"""Above every rate, time and number of operations there is; sums and products of such numbers stay finite."""

_SURROGATES = re.compile("[\ud800-\udfff]")

_UNREADABLE_MSG = (
    "cannot read {kind} {path!r}: {reason}.\n"
    "  expected: JSON that {writer} wrote\n"
    "  likely cause: {cause}\n"
    "  fix: {fix}"
)


class MalformedError(ValueError):
    """A JSON value does not fit its field; inside jaxplan only: each loader raises its own type instead."""


def read_json(path: Any, *, kind: str, writer: str, fix: str, error: type[Exception]) -> Any:
    """The content of a JSON file of at most `MAX_FILE_BYTES`.

    Args:
      kind, writer, fix: of the file, such as "plan file" and "Plan.save", for the message.
      error: raised when it cannot be read.
    """

    def refuse(reason: object, cause: str) -> Exception:
        shown = os.fspath(path) if isinstance(path, str | os.PathLike) else path
        return error(
            _UNREADABLE_MSG.format(kind=kind, path=shown, reason=reason, writer=writer, cause=cause, fix=fix)
        )

    if not isinstance(path, str | os.PathLike):
        raise refuse(f"a path is expected, not a value of type {type(path).__name__}", "an argument is missing")
    try:
        with open(path, "rb") as file:
            is_large = os.fstat(file.fileno()).st_size > MAX_FILE_BYTES
            content = b"" if is_large else file.read(MAX_FILE_BYTES + 1)
        if is_large or len(content) > MAX_FILE_BYTES:
            raise refuse(f"it has more than {MAX_FILE_BYTES} bytes", "another file")
        return json.loads(content.decode("utf-8"))
    except error:
        raise
    except RecursionError as found:
        raise refuse("its lists and objects are nested too deeply", "it was made or edited by a program") from found
    except (OSError, ValueError) as found:
        cause = "another file, or one that was cut short or edited" if isinstance(found, ValueError) else "the path"
        raise refuse(found, cause) from found


def typed(hint: Any, value: Any, where: str) -> Any:
    """A value of JSON as the type that an annotation says: numbers that are not negative, text, and structures of them.

    Args:
      hint: bool, int, float, str or Any; one of them or None; a Literal; a tuple, a Mapping or
        a dataclass of such types.
      where: the place of the value in the file, such as ``chip.node_link``.

    Raises:
      MalformedError: the value has another type, is out of range, or lacks a field; names the place.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (hint,) = (each for each in arguments if each is not types.NoneType)
        return typed(hint, value, where)
    if dataclasses.is_dataclass(hint):
        return _object(hint, value, where)
    if origin is typing.Literal:
        _expect(value in arguments, value, where, f"one of {arguments}")
        return value
    if origin is tuple:
        return _tuple(arguments, value, where)
    if origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(value, dict), value, where, "an object")
        return {key: typed(arguments[1], each, f"{where}.{key}") for key, each in value.items()}
    return value if hint is Any else _PLAIN[hint](value, where)


def required(data: Mapping[str, Any], name: str) -> Any:
    """A field that has to be there."""
    if name not in data:
        raise MalformedError(f"field {name!r} is missing")
    return data[name]


def whole(value: Any, where: str, *, least: int = 0, most: int = MOST_INT) -> int:
    """A whole number within bounds."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    _expect(is_int and least <= value <= most, value, where, f"a whole number from {least} to {most}")
    return value


def number(value: Any, where: str) -> float:
    """A number that is finite and not negative."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    _expect(
        is_number and not (isinstance(value, float) and math.isnan(value)) and 0 <= value <= MOST_FLOAT,
        value,
        where,
        f"a number from 0 to {MOST_FLOAT:g}",
    )
    return float(value)


def text(value: Any, where: str) -> str:
    """A string that can be encoded as UTF-8: JSON can spell halves of characters."""
    _expect(isinstance(value, str) and not _SURROGATES.search(value), value, where, "text")
    return value


def _truth(value: Any, where: str) -> bool:
    _expect(isinstance(value, bool), value, where, "true or false")
    return value


_PLAIN: dict[Any, Callable[[Any, str], Any]] = {int: whole, float: number, str: text, bool: _truth}


def _tuple(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    """Of any length where the annotation ends in an ellipsis."""
    _expect(isinstance(value, list | tuple), value, where, "a list")
    if arguments == (int, ...) and all(type(each) is int and 0 <= each <= MOST_INT for each in value):
        return tuple(value)
    if arguments[1:] == (...,):
        arguments = arguments[:1] * len(value)
    _expect(len(value) == len(arguments), value, where, f"a list of {len(arguments)} values")
    return tuple(typed(hint, each, f"{where}[{i}]") for i, (hint, each) in enumerate(zip(arguments, value)))


@functools.cache
def _fields(kind: Any) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((field, hints[field.name]) for field in dataclasses.fields(kind) if field.init)


def _object(kind: Any, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), value, where, "an object")
    known = {field.name: hint for field, hint in _fields(kind)}
    required = [f.name for f, _ in _fields(kind) if f.default is f.default_factory is dataclasses.MISSING]
    missing, unknown = [name for name in required if name not in value], [name for name in value if name not in known]
    if missing or unknown:
        said = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(unknown)}"] * bool(unknown)
        raise MalformedError(f"{where} {' and '.join(said)}; expected the fields {', '.join(known)}")
    return kind(**{name: typed(known[name], each, f"{where}.{name}") for name, each in value.items()})


def _expect(holds: bool, value: Any, where: str, expected: str) -> None:
    if not holds:
        raise MalformedError(f"{where} is {reprlib.repr(value)}; expected {expected}")
