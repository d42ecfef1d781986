"""The machine: a chip, and the levels of links between its copies."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jaxplan.core._files import write_whole
from jaxplan.core._json import read_json
from jaxplan.errors import TopologyError
from jaxplan.mesh._axes import AtomicAxis, atomic_axes
from jaxplan.mesh._chips import CHIPS, ChipSpec, Link
from jaxplan.mesh._profile_table import ProfileTable

_UNREADABLE_MSG = (
    "cannot read topology {text!r}: {reason}.\n"
    "  expected:     <chip>:<devices>, <chip>:<nodes>x<devices per node>, or for TPUs the slice, such as v5e:2x4;\n"
    "                chips: {chips}\n"
    "  likely cause: {cause}\n"
    "  fix:          {fix}"
)
_TORUS_NAMES = "xyz"
_MOST_DIGITS = 20
_MOST_DEVICES = 1 << 20
"""More than any machine has, and factored into primes in no time: a hostile file must not hang the reader."""
# TPU v5e and v6e wrap around at 16 chips, v5p at multiples of 4: https://jax-ml.github.io/scaling-book/tpus/
WRAPS = {2: 16, 3: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of the machine.

    Attributes:
      name: `node`, `device` or a torus dimension `x`, `y`, `z`.
      prefix: of the names of its atomic axes.
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
class Topology:
    """Devices in order, outermost level first; hashable and cheap to use as a cache key.

    Attributes:
      name: the string it was parsed from, or one of the same form.
      chip: rates and memory of one device.
      levels: outermost (slowest) first; levels of size 1 are left out.
      profile: measurements of this machine, which then replace the figures of data sheets in prices.
      axes: the atomic axes, in the order of the devices.
      num_devices: product of the sizes of the levels.

    Example:
      >>> topology = Topology.parse("h100:2x8")
      >>> topology.num_devices, [axis.name for axis in topology.axes]
      (16, ['n0', 'g0', 'g1', 'g2'])
    """

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
    def memory_limit_bytes(self) -> int:
        """Bytes per device that a plan may fill: the capacity times the chip's usable fraction."""
        return int(self.chip.memory_bytes * self.chip.usable_fraction)

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Read `h100:2x8` (nodes x devices per node), `a100-pcie:8`, `cpu:8`, or a TPU slice such as
        `v5e:2x4`.

        Raises:
          TopologyError: unknown chip (the nearest name is shown) or malformed sizes.
        """
        if not isinstance(text, str):
            raise _unreadable(repr(text), f"it is of type {type(text).__name__}, and a string is expected")
        match = re.fullmatch(r"\s*([a-z0-9-]+)\s*:\s*([0-9]+(?:x[0-9]+)*)\s*", text.lower())
        if match is None:
            raise _unreadable(text)
        chip = known_chip(match[1], given=text)
        if max(map(len, match[2].split("x"))) > _MOST_DIGITS:
            raise _unreadable(text, "its numbers are too long")
        sizes = tuple(int(size) for size in match[2].split("x"))
        return cls.of(chip, sizes, given=text)

    @classmethod
    def of(cls, chip: ChipSpec, sizes: tuple[int, ...], given: str | None = None) -> Topology:
        """A topology of a chip, which may be one of your own, and sizes outermost first."""
        given = given or f"{chip.name}:{'x'.join(map(str, sizes))}"
        most = chip.torus_rank or 2
        if not 1 <= len(sizes) <= most or min(sizes) < 1:
            raise _unreadable(
                given or chip.name,
                f"it has sizes {sizes}, and {chip.name} takes one to {most} sizes of at least 1",
            )
        levels = _torus_levels(chip, sizes) if chip.torus_rank else _cluster_levels(chip, sizes, given)
        return cls(
            name=f"{chip.name}:{'x'.join(map(str, sizes))}",
            chip=chip,
            levels=tuple(level for level in levels if level.size > 1),
        )

    @classmethod
    def detect(cls, devices: Sequence[Any] | None = None) -> Topology:
        """The topology of `jax.devices()`, or of the devices given, in their order."""
        from jaxplan.mesh._detect import detect

        return detect(devices)

    def aot_devices(self) -> list[Any]:
        """Compile-only devices of this topology, in order; call it in a process started with
        `aot_environment()`.

        Raises:
          TopologyError: the chip cannot be compiled for, or the compiler plugin is missing or has found no
            place to run.
        """
        from jaxplan.mesh._aot import aot_devices

        return aot_devices(self)

    def aot_environment(self) -> dict[str, str]:
        """Environment variables for the process that calls `aot_devices()`."""
        from jaxplan.mesh._aot import aot_environment

        return aot_environment(self)

    def with_profile(self, table: ProfileTable | str | Path) -> Topology:
        """This topology with measured prices.

        Args:
          table: from `jaxplan.mesh.profile.measure`, or the file that `jaxplan profile` wrote.

        Raises:
          ProfileError: the table is of another machine or incomplete (the message names the difference), or cannot be
            read.
        """
        from jaxplan.mesh._profile_check import check_profile, read_profile

        table = table if isinstance(table, ProfileTable) else read_profile(table)
        check_profile(self, table)
        chip = replace(self.chip, launch_seconds=table.launch_seconds)
        return replace(self, chip=chip, profile=table)

    def save(self, path: str | Path) -> None:
        """Write JSON, the chip's figures included, so that measured ones can be put in by hand."""
        write_whole(path, json.dumps(self.to_json(), indent=1) + "\n")

    def to_json(self) -> dict[str, Any]:
        """Plain data with schema and version."""
        from jaxplan.mesh._topology_json import topology_to_json

        return topology_to_json(self)

    @classmethod
    def from_json(cls, body: Any) -> Topology:
        """Read the output of `to_json`.

        Raises:
          TopologyError: not such data; the message names the field.
        """
        from jaxplan.mesh._topology_json import topology_from_json

        return topology_from_json(body, "topology")

    @classmethod
    def load(cls, path: str | Path) -> Topology:
        """Read a file of `save`; `chip` may also be the name of a known one.

        Raises:
          TopologyError: not such a file; the message names the field.
          ProfileError: the measurements are of another machine; the message says how it differs.
        """
        from jaxplan.mesh._profile_check import check_profile
        from jaxplan.mesh._topology_json import topology_from_json

        body = read_json(
            path,
            kind="topology file",
            writer="Topology.save",
            fix="save the topology again, or give one by name, such as 'h100:2x8'",
            error=TopologyError,
        )
        topology = topology_from_json(body, str(path))
        if topology.profile is not None:
            check_profile(topology, topology.profile)
        return topology


def known_chip(name: str, given: str) -> ChipSpec:
    """The chip of a name, or an error with the nearest one."""
    if name not in CHIPS:
        raise _unreadable(given, f"unknown chip {name!r}", name)
    return CHIPS[name]


def _unreadable(text: str, reason: str = "", chip: str | None = None) -> TopologyError:
    """The error for a string that is no topology: names the nearest chip, or the fault in its sizes."""
    before, colon, _ = text.strip().lower().partition(":")
    chip = before if chip is None else chip
    close = difflib.get_close_matches(chip, CHIPS, n=1, cutoff=0.5)
    cause, fix = (
        "no chip of that name is known",
        "one of the chips above, or Topology.load of a file that describes it",
    )
    if chip in CHIPS:
        cause = (
            "the numbers of nodes and devices are malformed" if colon else "the number of devices is missing"
        )
        fix = f"{chip}:8, {chip}:2x4" if CHIPS[chip].torus_rank else f"{chip}:8, {chip}:2x8"
    elif close:
        cause, fix = "a misspelling", f"did you mean {close[0]!r}?"
    return TopologyError(
        _UNREADABLE_MSG.format(
            text=text, reason=reason or "not of the form below", chips=" ".join(CHIPS), cause=cause, fix=fix
        )
    )


def _cluster_levels(chip: ChipSpec, sizes: tuple[int, ...], given: str) -> tuple[Level, ...]:
    num_nodes, per_node = sizes if len(sizes) == 2 else (1, sizes[0])
    device = Level(name="device", prefix="g", size=per_node, link=chip.device_link)
    if num_nodes == 1:
        return (device,)
    if chip.node_link is None:
        raise TopologyError(
            f"topology {given!r} has {num_nodes} nodes, but {chip.name} has no link between nodes"
        )
    return (Level(name="node", prefix="n", size=num_nodes, link=chip.node_link), device)


def _torus_levels(chip: ChipSpec, sizes: tuple[int, ...]) -> tuple[Level, ...]:
    wrap = WRAPS[chip.torus_rank]

    def link(size: int) -> Link:
        wraps = size % wrap == 0
        bandwidth = (2 if wraps else 1) * chip.device_link.bandwidth_bytes_per_second
        return replace(chip.device_link, bandwidth_bytes_per_second=bandwidth, wraps=wraps)

    return tuple(Level(name=n, prefix=n, size=s, link=link(s)) for n, s in zip(_TORUS_NAMES, sizes))
