"""Names beside the points of a picture, without overlap; lengths in pixels, whatever draws it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_DISTANCES = (9, 18, 30, 44, 60, 80)
"""From a point to its label, in units of ``Canvas.unit``."""
_DIRECTIONS = 16
_NEAR = 6
"""Points closer than that share a label."""


class Box(NamedTuple):
    """A rectangle: left, bottom, right, top."""

    x0: float
    y0: float
    x1: float
    y1: float

    @classmethod
    def around(cls, x: float, y: float, width: float, height: float) -> Box:
        return cls(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    def overlap(self, other: Box) -> float:
        """The area that two boxes share."""
        width = min(self.x1, other.x1) - max(self.x0, other.x0)
        height = min(self.y1, other.y1) - max(self.y0, other.y0)
        return max(width, 0.0) * max(height, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """Where labels may stand: inside a box, and not on the points. ``unit`` is the length of one typographic point."""

    inside: Box
    points: tuple[tuple[float, float], ...]
    unit: float = 1.0

    def joined(
        self, named: Sequence[tuple[str, tuple[float, float]]]
    ) -> list[tuple[str, tuple[float, float]]]:
        """The names of points that lie on each other as one label."""
        found: list[tuple[list[str], tuple[float, float]]] = []
        for text, at in named:
            for texts, other in found:
                if math.dist(at, other) < _NEAR * self.unit:
                    texts.append(text)
                    break
            else:
                found.append(([text], at))
        return [(", ".join(texts), at) for texts, at in found]

    def placed(self, labels: Sequence[tuple[tuple[float, float], tuple[float, float]]]) -> list[tuple[float, float]]:
        """The offset of each label's centre from its point, of (width, height) and point; the nearest place that
        overlaps nothing, or else the one that overlaps least."""
        diameter = 2 * _NEAR * self.unit
        taken = [Box.around(x, y, diameter, diameter) for x, y in self.points]
        offsets = []
        for size, at in labels:
            offset, box = self._free_place(size, at, taken)
            offsets.append(offset)
            taken.append(box)
        return offsets

    def _free_place(
        self, size: tuple[float, float], at: tuple[float, float], taken: Sequence[Box]
    ) -> tuple[tuple[float, float], Box]:
        best: tuple[float, tuple[float, float], Box] | None = None
        for distance, step in itertools.product(_DISTANCES, range(_DIRECTIONS)):
            angle = math.pi / 4 + step * 2 * math.pi / _DIRECTIONS
            dx = math.cos(angle) * (distance * self.unit + size[0] / 2)
            dy = math.sin(angle) * (distance * self.unit + size[1] / 2)
            box = Box.around(at[0] + dx, at[1] + dy, *size)
            overlap = sum(box.overlap(other) for other in taken) + size[0] * size[1] - box.overlap(self.inside)
            if best is None or overlap < best[0] - 1e-6:
                best = (overlap, (dx, dy), box)
            if best[0] <= 1e-6:
                break
        assert best is not None
        return best[1], best[2]
