"""A machine with other links or more devices than it has, to ask how a step would run there."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from jaxplan.errors import ArgumentError, TopologyError
from jaxplan.mesh._chips import Link
from jaxplan.mesh._topology import Topology


def with_bandwidth(topology: Topology, factors: float | Mapping[str, float]) -> Topology:
    """The same devices with links of other bandwidth; latencies stay.

    Args:
      factors: one factor for all links, or a factor for each level by name, such as ``{"node": 2.0}`` for a network
        between the nodes that is twice as fast.

    Raises:
      ArgumentError: a factor that is not positive, a level that the machine does not have, or measured links, which
        no factor describes.

    Example:
      >>> slow = Topology.parse("h100:2x8")
      >>> fast = with_bandwidth(slow, {"node": 4})
      >>> fast.levels[0].link.bandwidth_bytes_per_second / slow.levels[0].link.bandwidth_bytes_per_second
      4.0
    """
    names = [level.name for level in topology.levels]
    by_level: Mapping[str, Any] = factors if isinstance(factors, Mapping) else dict.fromkeys(names, factors)
    for name, factor in by_level.items():
        if name not in names:
            raise ArgumentError(
                f"bandwidth names the level {name!r}, which {topology.name} does not have; expected one of {names}"
            )
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise ArgumentError(f"bandwidth is {factors!r}; expected a positive factor, or one per level by name")
    if topology.profile is not None:
        raise ArgumentError(
            f"the links of {topology.name} were measured, and a factor does not describe what others would measure.\n"
            f"  fix: ask on the topology without its measurements, topology={topology.name!r}"
        )
    levels = tuple(
        dataclasses.replace(level, link=_scaled(level.link, by_level.get(level.name, 1))) for level in topology.levels
    )
    factors_text = ", ".join(f"{name} x{factor:g}" for name, factor in by_level.items())
    return dataclasses.replace(topology, name=f"{topology.name} ({factors_text})", levels=levels)


def enlarged(topology: Topology, factor: int = 2) -> Topology:
    """A machine of the same kind with so many times the devices: more nodes, or a torus longer where it is shortest.

    Raises:
      TopologyError: the links are not those of a preset, so the larger machine is not known.

    Example:
      >>> enlarged(Topology.parse("h100:8")).name, enlarged(Topology.parse("v5e:2x4"), 4).name
      ('h100:2x8', 'v5e:8x4')
    """
    known = Topology.parse(topology.name) if topology.profile is None else None
    if known != topology:
        raise TopologyError(f"the links of {topology.name} are not those of a preset: give the larger machine itself")
    sizes = [int(size) for size in topology.name.partition(":")[2].split("x")]
    if not topology.chip.torus_rank and len(sizes) == 1:
        sizes = [1, *sizes]
    shortest = sizes.index(min(sizes)) if topology.chip.torus_rank else 0
    sizes[shortest] *= factor
    return Topology.of(topology.chip, tuple(sizes))


def _scaled(link: Link, factor: float) -> Link:
    shared = link.shared_bytes_per_second
    return dataclasses.replace(
        link,
        bandwidth_bytes_per_second=link.bandwidth_bytes_per_second * factor,
        shared_bytes_per_second=None if shared is None else shared * factor,
    )
