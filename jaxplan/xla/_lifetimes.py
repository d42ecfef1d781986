"""From when to when the buffers of one device live, and the peak that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

GAPS = "gaps in the heap"
COUNTED_GAPS = 0.03
"""Share of the live bytes in main memory at the peak that gaps in the heap of a compiled TPU program add, chosen by
the errors of compiled plans (docs/measured.md). Another share:
``python -m benchmarks.accuracy --read benchmarks/records/accuracy.jsonl --topology v5e:2x4 --gaps 0.02``."""
_SHORTLY = 300
"""Positions that a buffer lives at most to be kept beside the cores, about a transformer block. Chosen, as the size
of these buffers, by the errors of plans compiled for v5e (`benchmarks.accuracy`); 150 or 600 do nearly as well."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lifetimes:
    """N buffers of one device, each over a range of positions: two per equation, results are born at the first,
    operands die at the second.

    Attributes:
      first, last: (N,) positions.
      sizes: (N,) bytes.
      labels: (N,) kind of array.
      resident: label -> bytes that live throughout.
      length: number of positions.
      home: tensor -> the buffer in which it is made.
      copies: (transfer, its span) -> the buffer that holds the copy.
      on_chip: bytes of short-lived buffers beside the cores, not in main memory, at any position (TPU).
      on_host: bytes of values that wait on the host for the backward pass.
      has_gaps: the compiler's heap has gaps (TPU), see `COUNTED_GAPS`.
    """

    first: np.ndarray
    last: np.ndarray
    sizes: np.ndarray
    labels: tuple[str, ...]
    resident: Mapping[str, float]
    length: int
    home: Mapping[int, int]
    copies: Mapping[tuple[int, int], int]
    on_chip: float = 0.0
    has_gaps: bool = False
    on_host: float = 0.0

    def curve(self) -> np.ndarray:
        """(length + 2,) bytes alive in main memory at each position, resident ones not included."""
        alive = self._alive(np.ones(len(self.sizes), dtype=bool))
        return alive - np.minimum(self._alive(self._is_short), self.on_chip) if self.on_chip else alive

    @property
    def _is_short(self) -> np.ndarray:
        return self.last - self.first <= _SHORTLY

    def _alive(self, counted: np.ndarray) -> np.ndarray:
        changes = np.zeros(self.length + 2)
        np.add.at(changes, self.first[counted], self.sizes[counted])
        np.add.at(changes, self.last[counted] + 1, -self.sizes[counted])
        return np.cumsum(changes)

    def peaks_after(self, equation: int) -> bool:
        """Whether the most bytes are live at an equation or later."""
        return bool(len(self.sizes)) and int(np.argmax(self.curve())) >= 2 * equation

    def peak(self) -> tuple[int, dict[str, int]]:
        """The largest sum of live bytes, and its parts by label."""
        curve = self.curve()
        top = int(np.argmax(curve)) if len(self.sizes) else 0
        parts = {label: int(size) for label, size in self.resident.items() if size}
        left, is_short = self.on_chip, self._is_short
        for i in np.flatnonzero((self.first <= top) & (top <= self.last)).tolist():
            beside = min(left, self.sizes[i]) if is_short[i] else 0
            left -= beside
            parts[self.labels[i]] = parts.get(self.labels[i], 0) + int(self.sizes[i] - beside)
        if self.has_gaps and (gaps := int(COUNTED_GAPS * curve[top])):
            parts[GAPS] = gaps
        return sum(parts.values()), parts
