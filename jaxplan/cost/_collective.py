"""A collective that stands inside of an operator."""

from __future__ import annotations

from typing import NamedTuple

from jaxplan.mesh import Topology, collective_seconds


class InnerCollective(NamedTuple):
    """``count`` collectives of one equation: kind, atomic axes, bytes per device of the larger side of one."""

    equation: int
    kind: str
    axes: tuple[int, ...]
    num_bytes: int
    count: int

    def seconds(self, topology: Topology) -> float:
        return self.count * float(collective_seconds(topology, self.kind, self.num_bytes, self.axes))
