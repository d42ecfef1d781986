"""Whether a profile table belongs to a topology and is whole."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from jaxplan.core._json import read_json
from jaxplan.errors import ProfileError
from jaxplan.mesh._collective_kinds import COLLECTIVES
from jaxplan.mesh._machine import host_cores, host_processor
from jaxplan.mesh._profile_table import ProfileTable
from jaxplan.mesh._topology_data import TopologyData


def group_shapes(topology: TopologyData) -> tuple[tuple[int, ...], ...]:
    """Sizes per level of all groups over atomic axes, at least two devices, in ascending number of devices."""
    per_level = []
    for index in range(len(topology.levels)):
        sizes = [axis.size for axis in topology.axes if axis.level == index]
        chosen = (c for r in range(len(sizes) + 1) for c in itertools.combinations(sizes, r))
        per_level.append(sorted({math.prod(c) for c in chosen}))
    shapes = [shape for shape in itertools.product(*per_level) if math.prod(shape) > 1]
    return tuple(sorted(shapes, key=lambda shape: (math.prod(shape), shape)))


def read_profile(path: str | Path) -> ProfileTable:
    """Read a table that `jaxplan profile` wrote.

    Raises:
      ProfileError: no such file, or not a table.
    """
    body = read_json(
        path,
        kind="profile table",
        writer="`jaxplan profile`",
        fix="run `jaxplan profile` on the machine to plan for",
        error=ProfileError,
    )
    try:
        return ProfileTable.from_json(body)
    except ProfileError as error:
        raise ProfileError(f"{str(path)!r}: {error}") from error


def check_profile(topology: TopologyData, table: ProfileTable) -> None:
    """Raise ProfileError, naming the difference or the gap, unless the table prices this topology.

    Virtual devices run on the host, so for them the host must be the one that was measured. Elsewhere the device kind
    must be the chip's: a table may be used on a machine that has none.
    """
    differences = []
    if table.topology != topology.name:
        differences.append(f"topology is {table.topology!r}, not {topology.name!r}")
    kinds = topology.chip.device_kinds
    if kinds and not any(kind.lower() in table.machine.device_kind.lower() for kind in kinds):
        differences.append(f"device_kind is {table.machine.device_kind!r}, not a {topology.chip.name}")
    if topology.chip.aot_platform == "cpu":
        here = {"processor": host_processor(), "num_cores": host_cores()}
        there = {name: getattr(table.machine, name) for name in here}
        differences += [f"{k} is {there[k]!r}, not {here[k]!r}" for k in here if here[k] != there[k]]
    if differences:
        raise ProfileError(
            f"the profile table is of another machine.\n  in the table: {'; '.join(differences)}\n"
            f"  expected: a table of {topology.name}\n  fix: run `jaxplan profile` on the machine to plan for"
        )
    missing = [
        f"{kind} in groups of {'x'.join(map(str, shape))}"
        for kind in COLLECTIVES
        for shape in group_shapes(topology)
        if (kind, shape) not in table.collectives
    ]
    if missing:
        raise ProfileError(
            f"the profile table lacks {len(missing)} of the collectives of {topology.name}, such as {missing[0]}.\n"
            "  likely cause: it was made for some kinds or groups only\n"
            "  fix: run `jaxplan profile` with the same file; its entries are not measured again"
        )
