"""The machine that plans are made for, and how it is named, detected, measured, saved and compiled for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxplan.core._files import write_whole
from jaxplan.core._json import read_json
from jaxplan.errors import TopologyError
from jaxplan.mesh._aot import aot_devices, aot_environment
from jaxplan.mesh._chips import ChipSpec
from jaxplan.mesh._detect import detect
from jaxplan.mesh._profile_check import check_profile, read_profile
from jaxplan.mesh._profile_table import ProfileTable
from jaxplan.mesh._topology_data import TopologyData
from jaxplan.mesh._topology_json import topology_from_json, topology_to_json
from jaxplan.mesh._topology_levels import levels_of
from jaxplan.mesh._topology_text import read_topology, unreadable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Topology(TopologyData):
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
      (16, ['node', 'gpu0', 'gpu1', 'gpu2'])
    """

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Read `h100:2x8` (nodes x devices per node), `a100-pcie:8`, `cpu:8`, a TPU slice such as `v5e:2x4`, or
        several slices of one shape joined by the network, the number of slices first: `v5e:4x16x16`.

        Raises:
          TopologyError: unknown chip (the nearest name is shown) or malformed sizes.
        """
        chip, sizes = read_topology(text)
        return cls.of(chip, sizes, given=text)

    @classmethod
    def of(cls, chip: ChipSpec, sizes: tuple[int, ...], given: str | None = None) -> Topology:
        """A topology of a chip, which may be one of your own, and sizes outermost first."""
        given = given or f"{chip.name}:{'x'.join(map(str, sizes))}"
        most = chip.torus_rank + 1 if chip.torus_rank and chip.node_link else chip.torus_rank or 2
        if not 1 <= len(sizes) <= most or min(sizes) < 1:
            raise unreadable(
                given or chip.name,
                f"it has sizes {sizes}, and {chip.name} takes one to {most} sizes of at least 1",
            )
        name = f"{chip.name}:{'x'.join(map(str, sizes))}"
        return cls(name=name, chip=chip, levels=levels_of(chip, sizes, given))

    @classmethod
    def detect(cls, devices: Sequence[Any] | None = None) -> Topology:
        """The topology of `jax.devices()`, or of the devices given, in their order."""
        return cls.of(*detect(devices))

    def aot_devices(self) -> list[Any]:
        """Compile-only devices of this topology, in order; call it in a process started with
        `aot_environment()`.

        Raises:
          TopologyError: the chip cannot be compiled for, or the compiler plugin is missing or has found no
            place to run.
        """
        return aot_devices(self)

    def aot_environment(self) -> dict[str, str]:
        """Environment variables for the process that calls `aot_devices()`."""
        return aot_environment(self)

    def with_profile(self, table: ProfileTable | str | Path) -> Topology:
        """This topology with measured prices.

        Args:
          table: from `jaxplan.mesh.profile.measure`, or the file that `jaxplan profile` wrote.

        Raises:
          ProfileError: the table is of another machine or incomplete (the message names the difference), or cannot be
            read.
        """
        table = table if isinstance(table, ProfileTable) else read_profile(table)
        check_profile(self, table)
        chip = replace(self.chip, launch_seconds=table.launch_seconds)
        return replace(self, chip=chip, profile=table)

    def save(self, path: str | Path) -> None:
        """Write JSON, the chip's figures included, so that measured ones can be put in by hand."""
        write_whole(path, json.dumps(self.to_json(), indent=1) + "\n")

    def to_json(self) -> dict[str, Any]:
        """Plain data with schema and version."""
        return topology_to_json(self)

    @classmethod
    def from_json(cls, body: Any) -> Topology:
        """Read the output of `to_json`.

        Raises:
          TopologyError: not such data; the message names the field.
        """
        return cls._of_data(topology_from_json(body, "topology"))

    @classmethod
    def load(cls, path: str | Path) -> Topology:
        """Read a file of `save`; `chip` may also be the name of a known one.

        Raises:
          TopologyError: not such a file; the message names the field.
          ProfileError: the measurements are of another machine; the message says how it differs.
        """
        body = read_json(
            path,
            kind="topology file",
            writer="Topology.save",
            fix="save the topology again, or give one by name, such as 'h100:2x8'",
            error=TopologyError,
        )
        topology = cls._of_data(topology_from_json(body, str(path)))
        if topology.profile is not None:
            check_profile(topology, topology.profile)
        return topology

    @classmethod
    def _of_data(cls, data: TopologyData) -> Topology:
        return cls(name=data.name, chip=data.chip, levels=data.levels, profile=data.profile)
