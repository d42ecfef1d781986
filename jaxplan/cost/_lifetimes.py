"""From when to when the buffers of one device live, and the peak that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxplan.cost._heap import heap_bytes

GAPS = "gaps in the heap"
COUNTED_GAPS = 0.5
"""Of the gaps in a heap of what a prediction has. Its buffers are not those of the compiled program to the last one,
and one that lies in the way decides much. Chosen by what compiled TPU programs take:
``python -m benchmarks.accuracy --read benchmarks/records/accuracy.jsonl --topology v5e:2x4 --gaps 0``, or 0.5, or 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lifetimes:
    """N buffers of one device, each over a range of positions: two per equation, results are born at the first,
    operands die at the second.

    Attributes:
      first, last: (N,) positions.
      sizes: (N,) bytes.
      labels: (N,) what they hold.
      resident: label -> bytes that live throughout.
      length: number of positions.
      home: tensor -> the buffer in which it is made.
      copies: (transfer, its span) -> the buffer that holds the copy.
      has_gaps: the compiler puts buffers into its heap in program order (TPU), see `heap_bytes`.
    """

    first: np.ndarray
    last: np.ndarray
    sizes: np.ndarray
    labels: tuple[str, ...]
    resident: Mapping[str, float]
    length: int
    home: Mapping[int, int]
    copies: Mapping[tuple[int, int], int]
    has_gaps: bool = False

    def curve(self) -> np.ndarray:
        """(length + 2,) bytes alive at each position, resident ones not included."""
        changes = np.zeros(self.length + 2)
        np.add.at(changes, self.first, self.sizes)
        np.add.at(changes, self.last + 1, -self.sizes)
        return np.cumsum(changes)

    def peak(self) -> tuple[int, dict[str, int]]:
        """The most bytes that are taken at once, and what they hold."""
        curve = self.curve()
        top = int(np.argmax(curve)) if len(self.sizes) else 0
        parts = {label: int(size) for label, size in self.resident.items() if size}
        for i in np.flatnonzero((self.first <= top) & (top <= self.last)).tolist():
            parts[self.labels[i]] = parts.get(self.labels[i], 0) + int(self.sizes[i])
        if self.has_gaps:
            gaps = heap_bytes(self.first, self.last, self.sizes) - curve[top]
            if counted := max(0, int(COUNTED_GAPS * gaps)):
                parts[GAPS] = counted
        return sum(parts.values()), parts
