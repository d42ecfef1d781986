"""The heap of a compiled GPU program: where its temporaries lie, and the gaps between them.

XLA places buffers one after the other, each in the smallest gap that is large enough beside those that live at the same
time, or above them (``GlobalDecreasingSizeBestFitHeap``). It does so twice, once with the largest first and once with
those that live longest first, and takes the smaller heap:
https://github.com/openxla/xla/blob/main/xla/service/heap_simulator/heap_simulator.cc
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEAST_SHARE = 0.01
"""Of the live bytes at the peak, no unit: smaller buffers fill gaps, and are not placed. Chosen: errors of 197 plans of
`benchmarks.accuracy.population` are the same with 0.002."""
MOST_BUFFERS = 256
"""How many are placed, the largest: time grows with the square. Chosen: no plan of these has more."""


def heap_gaps(first: np.ndarray, last: np.ndarray, sizes: np.ndarray, peak: float) -> float:
    """Bytes of the heap above the most live ones.

    Args:
      first, last: (N,) positions between which each buffer lives.
      sizes: (N,) bytes.
      peak: the most bytes that live at once.

    >>> first, last = np.array([4, 0, 2, 1]), np.array([5, 2, 4, 2])
    >>> heap_gaps(first, last, np.array([6.0, 5.0, 4.0, 3.0]), peak=12.0)  # 5 + 4 + 3 live, and 1 is between 5 and 4
    1.0
    """
    placed = np.flatnonzero((sizes > LEAST_SHARE * peak) & (last >= first))
    if len(placed) > MOST_BUFFERS:
        placed = np.sort(placed[np.argsort(-sizes[placed], kind="stable")[:MOST_BUFFERS]])
    first, last, sizes = first[placed], last[placed], sizes[placed]
    length = last - first
    largest_first, longest_first = np.lexsort((-length, -sizes)), np.lexsort((-sizes, -length))
    size = min(_heap(first, last, sizes, order) for order in (largest_first, longest_first))
    return max(size - _most_live(first, last, sizes), 0.0)


def _most_live(first: np.ndarray, last: np.ndarray, sizes: np.ndarray) -> float:
    changes = np.zeros(int(last.max(initial=0)) + 2)
    np.add.at(changes, first, sizes)
    np.add.at(changes, last + 1, -sizes)
    return float(np.cumsum(changes).max())


def _heap(first: np.ndarray, last: np.ndarray, sizes: np.ndarray, order: np.ndarray) -> float:
    """Size of the heap if buffers are placed in this order."""
    first, last = first[order], last[order]
    places: list[tuple[float, float]] = []
    for i, size in enumerate(sizes[order].tolist()):
        beside = np.flatnonzero((first[:i] <= last[i]) & (last[:i] >= first[i])).tolist()
        at = _best_fit(sorted([places[j] for j in beside]), size)
        places.append((at, at + size))
    return max((end for _, end in places), default=0.0)


def _best_fit(taken: Sequence[tuple[float, float]], size: float) -> float:
    """Begin of the smallest gap that is large enough, or the end of all that is taken."""
    best, at, end = np.inf, None, 0.0
    for begin, stop in taken:
        if size <= begin - end < best:
            best, at = begin - end, end
        end = max(end, stop)
    return end if at is None else at
