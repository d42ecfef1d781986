"""The machine as data: a chip, and the levels of links between its copies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jaxplan.errors import TopologyError
from jaxplan.mesh._axes import AtomicAxis, atomic_axes
from jaxplan.mesh._chips import ChipSpec, Link
from jaxplan.mesh._profile_table import ProfileTable

_MOST_DEVICES = 1 << 20
"""More than any machine has, and factored into primes in no time: a hostile file must not hang the reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of the machine.

    Attributes:
      name: `node`, `device`, `slice` or a torus dimension `x`, `y`, `z`.
      prefix: name of its atomic axis; where it has several, they are numbered behind it.
      size: number of children, at least 2.
      link: how the children talk to each other.
    """

    name: str
    prefix: str
    size: int
    link: Link

    def __post_init__(self) -> None:
        if isinstance(self.size, int) and self.size > _MOST_DEVICES:
            raise TopologyError(
                f"level {self.name!r} has {self.size} children; at most {_MOST_DEVICES} are expected"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyData:
    """Devices in order, outermost level first; `jaxplan.Topology` describes the fields, and adds constructors."""

    name: str
    chip: ChipSpec
    levels: tuple[Level, ...]
    profile: ProfileTable | None = None
    axes: tuple[AtomicAxis, ...] = field(init=False, compare=False, repr=False)
    num_devices: int = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        num_devices = math.prod(level.size for level in self.levels)
        if num_devices > _MOST_DEVICES:
            raise TopologyError(f"{self.name!r} has {num_devices} devices; at most {_MOST_DEVICES} are expected")
        object.__setattr__(self, "axes", atomic_axes((level.prefix, level.size) for level in self.levels))
        object.__setattr__(self, "num_devices", num_devices)
        object.__setattr__(self, "_hash", hash((self.name, self.chip, self.levels, self.profile)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def num_nodes(self) -> int:
        """Hosts joined by a network; 1 where the only links are those of one node or one TPU slice."""
        return math.prod(level.size for level in self.levels if level.name == "node")

    @property
    def hides_communication(self) -> bool:
        """Whether collectives run beside compute: not on one device, nor where the computing cores carry them out."""
        return self.num_devices > 1 and self.chip.efficiency.contention < 1.0

    @property
    def memory_limit_bytes(self) -> int:
        """Bytes per device that a plan may fill: the capacity times the chip's usable fraction."""
        return int(self.chip.memory_bytes * self.chip.usable_fraction)
