"""Chains of moves as lines: seconds against bytes."""

from __future__ import annotations

from typing import NamedTuple

from jaxplan.mesh._moves import Move

# Times are compared as whole units of 1e-14 s, so that sums in any order tie exactly and plans are
# deterministic.
TICKS_PER_SECOND = 1e14
# A lower bound stays one however its sums are rounded.
BOUND_TICKS = TICKS_PER_SECOND * (1 - 1e-9)
# Differences of prices below this are rounding.
ROUNDING_TICKS = 16
# Sizes between which the cheapest chains are found: one byte, and more than any tensor.
LEAST_BYTES, MOST_BYTES = 1.0, 1e15

Cost = tuple[int, int, int]
"""Time in ticks, number of collectives, bytes in units of the finest piece: compared in this order."""


class Line(NamedTuple):
    """A chain and its price, fixed + slope x, for x bytes on a device when no label splits the tensor."""

    fixed: float
    slope: float
    moves: tuple[Move, ...]


def ticks(fixed: float, slope: float, num_bytes: float) -> int:
    """A price in whole ticks."""
    return round((fixed + slope * num_bytes) * TICKS_PER_SECOND)
