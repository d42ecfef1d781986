"""A machine from text such as `h100:2x8`: its chip and its sizes, or the error that says how to write it."""

from __future__ import annotations

import difflib
import re

from jaxplan.errors import TopologyError
from jaxplan.mesh._chips import CHIPS, ChipSpec

_UNREADABLE_MSG = (
    "cannot read topology {text!r}: {reason}.\n"
    "  expected:     <chip>:<devices>, <chip>:<nodes>x<devices per node>, or for TPUs the slice, such as v5e:2x4;\n"
    "                chips: {chips}\n"
    "  likely cause: {cause}\n"
    "  fix:          {fix}"
)
_MOST_DIGITS = 20


def read_topology(text: str) -> tuple[ChipSpec, tuple[int, ...]]:
    """The chip and the sizes, outermost first.

    Raises:
      TopologyError: unknown chip (the nearest name is shown) or malformed sizes.

    Example:
      >>> chip, sizes = read_topology("h100:2x8")
      >>> chip.name, sizes
      ('h100', (2, 8))
    """
    if not isinstance(text, str):
        raise unreadable(repr(text), f"it is of type {type(text).__name__}, and a string is expected")
    match = re.fullmatch(r"\s*([a-z0-9-]+)\s*:\s*([0-9]+(?:x[0-9]+)*)\s*", text.lower())
    if match is None:
        raise unreadable(text)
    chip = known_chip(match[1], given=text)
    if max(map(len, match[2].split("x"))) > _MOST_DIGITS:
        raise unreadable(text, "its numbers are too long")
    sizes = tuple(int(size) for size in match[2].split("x"))
    return chip, sizes


def known_chip(name: str, given: str) -> ChipSpec:
    """The chip of a name, or an error with the nearest one."""
    if name not in CHIPS:
        raise unreadable(given, f"unknown chip {name!r}", name)
    return CHIPS[name]


def unreadable(text: str, reason: str = "", chip: str | None = None) -> TopologyError:
    """The error for a string that is no topology: names the nearest chip, or the fault in its sizes."""
    before, colon, _ = text.strip().lower().partition(":")
    chip = before if chip is None else chip
    close = difflib.get_close_matches(chip, CHIPS, n=1, cutoff=0.5)
    cause, fix = (
        "no chip of that name is known",
        "one of the chips above, or Topology.load of a file that describes it",
    )
    if chip in CHIPS:
        cause = (
            "the numbers of nodes and devices are malformed" if colon else "the number of devices is missing"
        )
        fix = f"{chip}:8, {chip}:2x4" if CHIPS[chip].torus_rank else f"{chip}:8, {chip}:2x8"
    elif close:
        cause, fix = "a misspelling", f"did you mean {close[0]!r}?"
    return TopologyError(
        _UNREADABLE_MSG.format(
            text=text, reason=reason or "not of the form below", chips=" ".join(CHIPS), cause=cause, fix=fix
        )
    )
