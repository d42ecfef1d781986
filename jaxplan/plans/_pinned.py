"""Pins that a plan was searched under, as the plan keeps and explains them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from jaxplan.core._json import MalformedError, typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """One pin.

    Attributes:
      text: as it was given, such as ``'heads': Split(2)``.
      paths: of the arguments that it limits; empty where it limits computed values alone.
    """

    text: str
    paths: tuple[str, ...] = ()


def pins_from_json(value: Any, paths: Collection[str]) -> tuple[Pinned, ...]:
    """Pins of a plan file; files without the field have none."""
    found = typed(tuple[Pinned, ...], value or (), "pins")
    for pin in found:
        if not set(pin.paths) <= set(paths):
            raise MalformedError(f"pin {pin.text} limits {list(pin.paths)}; expected paths of arguments")
    return found


def pin_lines(pins: Sequence[Pinned]) -> list[str]:
    """One line a pin, with the number of arguments that it limits."""
    return [f"  {pin.text:<40} {_limited(pin)}".rstrip() for pin in pins]


def _limited(pin: Pinned) -> str:
    count = len(pin.paths)
    return "operators alone" if not count else f"{count} argument{'s' if count > 1 else ''}"
