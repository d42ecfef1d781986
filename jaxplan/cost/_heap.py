"""What a heap takes beyond what is alive at once.

Compiled TPU programs put each buffer, in program order, into the smallest gap between those that are alive that it fits
in, or behind them: the places of all buffers of 40 MiB or more of a Conformer are that. Small gradients that wait for
the update come to lie where large activations were, and what is made last finds no gap.
"""

from __future__ import annotations

import bisect
import heapq
import math

import numpy as np


def heap_bytes(first: np.ndarray, last: np.ndarray, sizes: np.ndarray) -> int:
    """Bytes of the heap of N buffers that live from position ``first`` to ``last``, both included, each (N,).

    They are put into it in the order of their first position, the larger first: each into the smallest gap that it
    fits in, or at the end.
    """
    heap = _Heap()
    ending: list[tuple[int, int, int]] = []
    for i in np.lexsort((-sizes, first)).tolist():
        if sizes[i] > 0 and last[i] >= first[i]:
            while ending and ending[0][0] < first[i]:
                _, start, size = heapq.heappop(ending)
                heap.free(start, size)
            size = math.ceil(sizes[i])
            heapq.heappush(ending, (int(last[i]), heap.take(size), size))
    return heap.most


class _Heap:
    """Gaps below ``end``, above which all is free; by size and by place.

    Attributes:
      most: the largest ``end`` so far.
    """

    def __init__(self) -> None:
        self.most = self._end = 0
        self._by_size: list[tuple[int, int]] = []
        self._starts: list[int] = []
        self._size_at: dict[int, int] = {}

    def take(self, size: int) -> int:
        """Where something of a size is put."""
        k = bisect.bisect_left(self._by_size, (size, -1))
        if k == len(self._by_size):
            start, self._end = self._end, self._end + size
            self.most = max(self.most, self._end)
            return start
        found, start = self._by_size[k]
        self._remove(start)
        if found > size:
            self._add(start + size, found - size)
        return start

    def free(self, start: int, size: int) -> None:
        """Give back what was taken, and join it with the gaps around it."""
        k = bisect.bisect_left(self._starts, start)
        if k < len(self._starts) and self._starts[k] == start + size:
            size += self._remove(self._starts[k])
        if k > 0 and (before := self._starts[k - 1]) + self._size_at[before] == start:
            size += self._remove(before)
            start = before
        if start + size == self._end:
            self._end = start
        else:
            self._add(start, size)

    def _add(self, start: int, size: int) -> None:
        bisect.insort(self._by_size, (size, start))
        bisect.insort(self._starts, start)
        self._size_at[start] = size

    def _remove(self, start: int) -> int:
        size = self._size_at.pop(start)
        del self._by_size[bisect.bisect_left(self._by_size, (size, start))]
        del self._starts[bisect.bisect_left(self._starts, start)]
        return size
