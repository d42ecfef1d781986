"""From when to when the buffers of one device live, and the peak that follows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxplan.xla._heap import heap_gaps

GAPS = "gaps in the heap"
COUNTED_GAPS = 0.03
"""Share of the live bytes in main memory at the peak that gaps in the heap of a compiled TPU program add, chosen by
the errors of compiled plans (docs/measured.md). Another share:
``python -m benchmarks.accuracy --read benchmarks/records/accuracy.jsonl --topology v5e:2x4 --gaps 0.02``."""
_SHORTLY = 300
"""Positions that a buffer lives at most to be kept beside the cores, about a transformer block. Chosen, as the size
of these buffers, by the errors of plans compiled for v5e (`benchmarks.accuracy`); 150 or 600 do nearly as well."""


@dataclass(frozen=True, kw_only=True, eq=False)
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
      is_packed: these buffers are packed into one heap (GPU), see `jaxplan.xla._heap`.
      most_gaps: bytes of gaps that are counted at most.
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
    is_packed: bool = False
    on_host: float = 0.0
    most_gaps: float = math.inf

    def curve(self) -> np.ndarray:
        """(length + 2,) bytes alive in main memory at each position, resident ones not included."""
        return self._curve

    @cached_property
    def _curve(self) -> np.ndarray:
        alive = self._alive(self.first, self.last, self.sizes)
        if not self.on_chip:
            return alive
        short = self._is_short
        return alive - np.minimum(self._alive(self.first[short], self.last[short], self.sizes[short]), self.on_chip)

    def curve_of(self, label: str) -> np.ndarray:
        """The part of `curve` that arrays of one kind take; what is beside the cores is shared by all short ones."""
        mine = np.array([other == label for other in self.labels], dtype=bool)
        alive = self._alive(self.first[mine], self.last[mine], self.sizes[mine])
        if not self.on_chip:
            return alive
        short, some = self._is_short, self._is_short & mine
        total = self._alive(self.first[short], self.last[short], self.sizes[short])
        share = np.minimum(total, self.on_chip) / np.maximum(total, 1.0)
        return alive - share * self._alive(self.first[some], self.last[some], self.sizes[some])

    @property
    def _is_short(self) -> np.ndarray:
        return self.last - self.first <= _SHORTLY

    def _alive(self, first: np.ndarray, last: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        changes = np.zeros(self.length + 2)
        np.add.at(changes, first, sizes)
        np.add.at(changes, last + 1, -sizes)
        return np.cumsum(changes)

    def peaks_after(self, equation: int) -> bool:
        """Whether the most bytes are live at an equation or later."""
        return bool(len(self.sizes)) and int(np.argmax(self.curve())) >= 2 * equation

    def live_bytes(self) -> float:
        """The largest sum of live bytes, without gaps between them."""
        return float(self.curve().max(initial=0.0)) + sum(self.resident.values())

    def peak(self) -> tuple[int, dict[str, int]]:
        """The largest sum of live bytes with the gaps between them, and its parts by label."""
        total, parts = self._peak
        return total, dict(parts)

    @cached_property
    def gaps(self) -> float:
        """Bytes of the gaps between buffers that are counted."""
        return min(self._gaps(float(self.curve().max(initial=0.0))), self.most_gaps)

    @cached_property
    def _peak(self) -> tuple[int, dict[str, int]]:
        curve = self.curve()
        top = int(np.argmax(curve)) if len(self.sizes) else 0
        parts = {label: int(size) for label, size in self.resident.items() if size}
        left, there = self.on_chip, np.flatnonzero((self.first <= top) & (top <= self.last))
        for i, size, is_short in zip(there.tolist(), self.sizes[there].tolist(), self._is_short[there].tolist()):
            beside = min(left, size) if is_short else 0
            left -= beside
            parts[self.labels[i]] = parts.get(self.labels[i], 0) + int(size - beside)
        if gaps := int(self.gaps):
            parts[GAPS] = gaps
        return sum(parts.values()), parts

    def _gaps(self, most: float) -> float:
        if self.has_gaps:
            return COUNTED_GAPS * most
        return heap_gaps(self.first, self.last, self.sizes, most) if self.is_packed else 0.0
