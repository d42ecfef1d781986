"""The turning point of a frontier: the memory below which time rises rapidly (TensorOpt, section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def turning_point(points: Sequence[Any]) -> int:
    """Index of the point farthest below the line from the leanest to the fastest, both axes scaled to their ranges.

    Args:
      points: rows with ``gib`` and ``ms``, leanest first.

    Example:
      >>> turning_point([{"gib": 1, "ms": 10}, {"gib": 2, "ms": 3}, {"gib": 9, "ms": 2}])
      1
    """
    lean, fast = points[0], points[-1]
    memory, time = fast["gib"] - lean["gib"], lean["ms"] - fast["ms"]
    if memory <= 0 or time <= 0:
        return 0
    below = [(lean["ms"] - p["ms"]) / time - (p["gib"] - lean["gib"]) / memory for p in points]
    return max(range(len(points)), key=lambda k: below[k])


def slopes(points: Sequence[Any]) -> tuple[float, float]:
    """Milliseconds per GiB on either side of the turning point; the second is 0 where it is the fastest."""
    turn = points[turning_point(points)]

    def slope(one: Any, other: Any) -> float:
        return (one["ms"] - other["ms"]) / (other["gib"] - one["gib"]) if other["gib"] > one["gib"] else 0.0

    return slope(points[0], turn), slope(turn, points[-1])
