"""A collective that stands inside of an operator."""

from __future__ import annotations

from typing import NamedTuple

from jaxplan.mesh import Topology, collective_seconds


class InnerCollective(NamedTuple):
    """``count`` collectives of one equation: kind, atomic axes, bytes per device of the larger side of one.

    ``beside`` are seconds that the equation computes while one is under way.
    """

    equation: int
    kind: str
    axes: tuple[int, ...]
    num_bytes: int
    count: int
    beside: float = 0.0

    def seconds(self, topology: Topology) -> float:
        return self.count * self._each(topology)

    def visible_seconds(self, topology: Topology) -> float:
        """Those for which the equation waits."""
        return self.count * max(0.0, self._each(topology) - self.beside)

    def _each(self, topology: Topology) -> float:
        return float(collective_seconds(topology, self.kind, self.num_bytes, self.axes))
