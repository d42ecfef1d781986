"""Units at the boundary: inside, ints of bytes and seconds; outside, "40GiB", "12.3 ms" and "300 GB/s"."""

from __future__ import annotations

import math
import operator
import re
import reprlib
from fractions import Fraction

from jaxplan.errors import ArgumentError

BYTES_PER_GIB = 1024**3
BYTES_PER_GB = 10**9

_BYTES_PER_UNIT = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgtp", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgtp", start=1)},
}
_MEMORY_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]+)\s*", re.IGNORECASE)
_MOST_BYTES = (1 << 63) - 1
_MOST_DIGITS = 100
_LEAST_LIMIT = 4096
"""Bytes: devices have fewer GiB, and no step worth planning fits."""
_MEMORY_MSG = (
    "memory={value} is not an amount of memory.\n"
    "  expected: a positive int of bytes, or a number with a unit: '40GiB' (binary) or '40GB' (decimal)\n"
    "  fix: {fix}"
)
_SECONDS_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def parse_memory(value: int | str) -> int:
    """Return the bytes that an int of bytes or a string such as "40GiB" or "40GB" stands for.

    A fraction of a byte is dropped, so that a limit never grows. Raises ArgumentError for anything else.
    """
    if isinstance(value, str):
        num_bytes = _parse_memory_string(value)
    elif isinstance(value, (bool, float)):
        raise _memory_error(value, "write the unit, for instance '40GiB'")
    else:
        try:
            num_bytes = operator.index(value)
        except TypeError:
            raise _memory_error(value, "pass an int or a str") from None
    if num_bytes > _MOST_BYTES:
        raise _memory_error(value, "give less than 8 EiB; is the unit right?")
    if num_bytes <= 0:
        raise _memory_error(value, "give a positive amount, or None for what the device has")
    return num_bytes


def parse_limit(value: int | str) -> int:
    """As `parse_memory`, for a limit per device: an int below 4 KiB is an error, since GiB were meant.

    An amount with its unit, such as "2KiB", is taken as it is.
    """
    num_bytes = parse_memory(value)
    if not isinstance(value, str) and num_bytes < _LEAST_LIMIT:
        raise ArgumentError(
            f"memory={value!r} is {num_bytes} bytes per device, too little for any step.\n"
            f"  expected: an int of bytes, at least {_LEAST_LIMIT}, or an amount with its unit\n"
            "  likely cause: a number of GiB was meant\n"
            f"  fix: memory='{value}GiB', or memory='{value}B' if bytes are meant"
        )
    return num_bytes


def _parse_memory_string(value: str) -> int:
    match = _MEMORY_PATTERN.fullmatch(value)
    if match is None:
        raise _memory_error(value, "write a number and then a unit, such as '40GiB'")
    number, unit = match.groups()
    if len(number) > _MOST_DIGITS:
        raise _memory_error(f"{value[:_MOST_DIGITS]}...", "give a number of fewer digits")
    if unit.lower() not in _BYTES_PER_UNIT:
        units = "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"
        raise _memory_error(value, f"the unit {unit!r} is unknown; use one of {units}")
    return math.floor(Fraction(number) * _BYTES_PER_UNIT[unit.lower()])


def _memory_error(value: object, fix: str) -> ArgumentError:
    shown = reprlib.repr(value) if isinstance(value, int) else repr(value)
    return ArgumentError(_MEMORY_MSG.format(value=shown, fix=fix))


def counted(number: int, noun: str) -> str:
    """A number and its noun: ``1 device``, ``8 devices``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_bytes(num_bytes: int | float) -> str:
    """Return bytes in GiB, or in MiB, KiB or B where that would round to less than 0.1 GiB."""
    sign = "-" if num_bytes < 0 else ""
    size = abs(num_bytes)
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 0.1 * 1024**power:
            return f"{sign}{_three_digits(size / 1024**power)} {unit}"
    return f"{sign}{size:.0f} B"


def format_gib(num_bytes: int | float) -> str:
    """Return bytes as a bare number of GiB, for a table column."""
    return _three_digits(num_bytes / BYTES_PER_GIB)


def format_seconds(seconds: float) -> str:
    """Return a duration in the unit that shows it best: s, ms, us or ns."""
    if seconds == 0 or not math.isfinite(seconds):
        return f"{seconds:.0f} s"
    for scale, unit in _SECONDS_UNITS:
        # Just under a unit rounds up to it: 999.96 us is written 1.00 ms. Nothing is smaller than ns.
        if abs(seconds) >= 0.9995 * scale or unit == "ns":
            return f"{_three_digits(seconds / scale)} {unit}"
    raise AssertionError("the last unit takes every duration")


def format_milliseconds(seconds: float) -> str:
    """Return seconds as a bare number of milliseconds, for a table column."""
    return _three_digits(seconds * 1e3) if math.isfinite(seconds) else f"{seconds:.0f}"


def format_bandwidth(bytes_per_second: float) -> str:
    """Return a bandwidth in GB/s (1 GB = 1e9 bytes)."""
    return f"{_three_digits(bytes_per_second / BYTES_PER_GB)} GB/s"


def _three_digits(number: float) -> str:
    """Three significant digits, all digits of the integer part, and never an exponent."""
    if number == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(float(f"{number:.2e}"))))
    return f"{number:.{min(max(2 - magnitude, 0), 9)}f}"
