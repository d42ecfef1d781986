"""The levels of a machine from its chip and its sizes."""

from __future__ import annotations

from dataclasses import replace

from jaxplan.errors import TopologyError
from jaxplan.mesh._chips import ChipSpec, Link
from jaxplan.mesh._topology_data import Level

_TORUS_NAMES = "xyz"
# TPU v5e and v6e wrap around at 16 chips, v5p at multiples of 4: https://jax-ml.github.io/scaling-book/tpus/
WRAPS = {2: 16, 3: 4}


def levels_of(chip: ChipSpec, sizes: tuple[int, ...], given: str) -> tuple[Level, ...]:
    """The levels of sizes that are given outermost first; those of size 1 are left out.

    Raises:
      TopologyError: several nodes of a chip without a network.
    """
    levels = _slice_levels(chip, sizes) if chip.torus_rank else _cluster_levels(chip, sizes, given)
    return tuple(level for level in levels if level.size > 1)


def device_prefix(chip: ChipSpec) -> str:
    """Name of the axes inside of a node: `gpu`, or `cpu` for devices that are no accelerators."""
    return "gpu" if chip.is_gpu else "cpu" if chip.aot_platform == "cpu" else "device"


def _cluster_levels(chip: ChipSpec, sizes: tuple[int, ...], given: str) -> tuple[Level, ...]:
    num_nodes, per_node = sizes if len(sizes) == 2 else (1, sizes[0])
    device = Level(name="device", prefix=device_prefix(chip), size=per_node, link=chip.device_link)
    if num_nodes == 1:
        return (device,)
    if chip.node_link is None:
        raise TopologyError(
            f"topology {given!r} has {num_nodes} nodes, but {chip.name} has no link between nodes"
        )
    return (Level(name="node", prefix="node", size=num_nodes, link=chip.node_link), device)


def _slice_levels(chip: ChipSpec, sizes: tuple[int, ...]) -> tuple[Level, ...]:
    """The dimensions of a slice, behind the number of slices where the sizes give one."""
    if len(sizes) <= chip.torus_rank or chip.node_link is None:
        return _torus_levels(chip, sizes)
    slices = Level(name="slice", prefix="slice", size=sizes[0], link=chip.node_link)
    return (slices, *_torus_levels(chip, sizes[1:]))


def _torus_levels(chip: ChipSpec, sizes: tuple[int, ...]) -> tuple[Level, ...]:
    wrap = WRAPS[chip.torus_rank]

    def link(size: int) -> Link:
        wraps = size % wrap == 0
        bandwidth = (2 if wraps else 1) * chip.device_link.bandwidth_bytes_per_second
        return replace(chip.device_link, bandwidth_bytes_per_second=bandwidth, wraps=wraps)

    return tuple(Level(name=n, prefix=n, size=s, link=link(s)) for n, s in zip(_TORUS_NAMES, sizes))
