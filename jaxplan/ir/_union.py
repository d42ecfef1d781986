"""Disjoint sets with the smallest member as representative (Tarjan 1975), so that results are deterministic."""

from __future__ import annotations


class UnionFind:
    """Disjoint sets over ``range(size)``; `find` returns the smallest member of a set."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def add(self) -> int:
        """A new singleton; returns its element."""
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def find(self, element: int) -> int:
        parent = self._parent
        while parent[element] != element:
            parent[element] = parent[parent[element]]
            element = parent[element]
        return element

    def join(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            low, high = (a, b) if a < b else (b, a)
            self._parent[high] = low
