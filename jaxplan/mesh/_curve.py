"""Measured seconds against a size, interpolated between the sizes that were measured (TensorOpt, section 3.2)."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Seconds that never fall as the size grows; straight between two measured sizes where both axes are logarithms.

    Below the smallest size it is constant, above the largest it grows in proportion.

    Attributes:
      sizes: ascending, positive (bytes, say).
      seconds: one for each, positive, never falling.
    """

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]]) -> Curve:
        """The curve nearest to measured (size, seconds), in squares of log seconds, among those that never fall."""
        ordered = sorted(points)
        logs = _never_falling([math.log(seconds) for _, seconds in ordered])
        return cls(sizes=tuple(float(size) for size, _ in ordered), seconds=tuple(map(math.exp, logs)))

    @overload
    def at(self, size: float) -> float: ...
    @overload
    def at(self, size: npt.NDArray[np.number]) -> npt.NDArray[np.float64]: ...
    def at(self, size: float | npt.NDArray[np.number]) -> float | npt.NDArray[np.float64]:
        """Seconds at a size, or at an array of them."""
        if isinstance(size, np.ndarray):
            clipped = np.clip(size.astype(np.float64), self.sizes[0], self.sizes[-1])
            inside = np.exp(np.interp(np.log(clipped), np.log(self.sizes), np.log(self.seconds)))
            return inside * np.maximum(1.0, size / self.sizes[-1])
        if size <= self.sizes[0]:
            return self.seconds[0]
        if size >= self.sizes[-1]:
            return self.seconds[-1] * size / self.sizes[-1]
        high = bisect.bisect_right(self.sizes, size)
        low = high - 1
        share = math.log(size / self.sizes[low]) / math.log(self.sizes[high] / self.sizes[low])
        return self.seconds[low] * (self.seconds[high] / self.seconds[low]) ** share


def _never_falling(values: list[float]) -> list[float]:
    """Least squares among sequences that never fall: pool adjacent violators (Ayer et al. 1955)."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (high, m), (low, n) = blocks[-2:]
            blocks[-2:] = [((m * high + n * low) / (m + n), m + n)]
    return [value for value, count in blocks for _ in range(count)]
