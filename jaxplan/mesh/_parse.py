"""The machine that a person names."""

from __future__ import annotations

from jaxplan.errors import ArgumentError
from jaxplan.mesh._topology import Topology


def parse_topology(topology: str | Topology | None) -> Topology:
    """A topology from a string, an object, or the devices present.

    Raises:
      ArgumentError: it is of another type.
      TopologyError: the string names no machine.
    """
    if topology is None:
        return Topology.detect()
    if isinstance(topology, Topology):
        return topology
    if isinstance(topology, str):
        return Topology.load(topology) if topology.endswith(".json") else Topology.parse(topology)
    raise ArgumentError(
        f"topology is {topology!r} of type {type(topology).__name__}; expected a string such as 'h100:2x8', a "
        "topology's .json file, a jaxplan.Topology, or None for the devices present"
    )
