"""Parts of a machine: the topology of a job that gets fewer of its devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from jaxplan.errors import TopologyError
from jaxplan.mesh._chips import ChipSpec, Link
from jaxplan.mesh._profile_table import Key, ProfileTable
from jaxplan.mesh._topology import Topology
from jaxplan.mesh._topology_levels import WRAPS

_NO_PART_MSG = (
    "{name} has no part of {num_devices!r} devices.\n"
    "  expected: {expected}\n"
    "  likely cause: a part is a number of whole nodes, or a divisor of the devices of one node\n"
    "  fix: one of the numbers above, or a topology of its own, such as Topology.parse('{chip}:{num_devices}')"
)


def part_counts(topology: Topology) -> tuple[int, ...]:
    """Numbers of devices into which the machine can be cut evenly, ascending, from 1 to all of them.

    They are the divisors of the devices of a node, then those numbers of whole nodes that divide the number of nodes;
    on a torus the products of divisors of its dimensions.

    Example:
      >>> part_counts(Topology.parse("h100:8"))
      (1, 2, 4, 8)
    """
    return tuple(sorted({math.prod(sizes) for sizes in _shapes(topology, even=True)}))


def part_of(topology: Topology, num_devices: int) -> Topology:
    """The part of a machine that has so many devices: any number of whole nodes, or a divisor of one node's devices.

    On a torus it is the slice with the shortest longest side. Links are those of the whole; a ring of which a part is
    taken closes where a slice of that size does. Measured prices are kept, for groups that fit into the part.

    Raises:
      TopologyError: there is no such part; names the numbers there are.

    Example:
      >>> part_of(Topology.parse("h100:2x8"), 4).name
      'h100:4'
    """
    shapes = [s for s in _shapes(topology, even=False) if math.prod(s) == num_devices]
    if isinstance(num_devices, bool) or not shapes:
        counts = ", ".join(map(str, part_counts(topology)))
        raise TopologyError(
            _NO_PART_MSG.format(
                name=topology.name, num_devices=num_devices, expected=counts, chip=topology.chip.name
            )
        )
    sizes = min(shapes, key=lambda shape: (max(shape, default=1) if topology.chip.torus_rank else 0, shape))
    if sizes == tuple(level.size for level in topology.levels):
        return topology
    levels = tuple(
        level if level.size == size else replace(level, size=size, link=_link(topology.chip, level.link, size))
        for level, size in zip(topology.levels, sizes, strict=True)
        if size > 1
    )
    shown = [size for size in sizes if size > 1] or [1]
    if topology.chip.torus_rank:
        shown = list(sizes)
    name = f"{topology.chip.name}:{'x'.join(map(str, shown))}"
    return replace(
        topology, name=name, levels=levels, profile=_profile(topology.profile, name, sizes)
    )


def _shapes(topology: Topology, *, even: bool) -> Iterator[tuple[int, ...]]:
    """Sizes per level of the parts; without ``even`` any number of whole nodes is one."""
    sizes = [level.size for level in topology.levels]
    divisors = [[d for d in range(1, size + 1) if size % d == 0] for size in sizes]
    if topology.chip.torus_rank:
        yield from itertools.product(*divisors)
        return
    inner: tuple[int, ...] = ()
    for size, even_parts in reversed(list(zip(sizes, divisors))):
        is_node = bool(inner)
        outer = (1,) * (len(sizes) - 1 - len(inner))
        for part in even_parts if even or not is_node else range(1, size + 1):
            if part > 1:
                yield (*outer, part, *inner)
        inner = (size, *inner)
    yield (1,) * len(sizes)


def _link(chip: ChipSpec, link: Link, size: int) -> Link:
    """The link of a level of which so many children are left."""
    if not link.wraps or size % WRAPS[chip.torus_rank] == 0:
        return link
    return replace(link, bandwidth_bytes_per_second=link.bandwidth_bytes_per_second / 2, wraps=False)


def _profile(table: ProfileTable | None, name: str, sizes: tuple[int, ...]) -> ProfileTable | None:
    """The measurements of groups that fit into the part, levels of one child left out."""
    if table is None:
        return None
    entries: list[tuple[Key, float]] = []
    for key, seconds in table.entries:
        if key[0] != "collective":
            entries.append((key, seconds))
            continue
        kind, collective, shape, num_bytes = key
        if all(size % n == 0 for n, size in zip(shape, sizes, strict=True)):
            left = tuple(n for n, size in zip(shape, sizes) if size > 1)
            entries.append(((kind, collective, left, num_bytes), seconds))
    return replace(table, topology=name, entries=tuple(entries))
