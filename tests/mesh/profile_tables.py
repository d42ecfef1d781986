"""Profile tables written by hand: no machine is measured."""

from __future__ import annotations

from collections.abc import Callable

from jaxplan.mesh import COLLECTIVES, ProfileTable, Topology
from jaxplan.mesh._machine import Machine, host_cores, host_processor
from jaxplan.mesh._profile_check import group_shapes
from jaxplan.mesh._profile_table import Key

SIZES = tuple(1 << i for i in range(10, 27, 4))


def machine_of(topology: Topology, **changes: object) -> Machine:
    """A machine on which a table of the topology may have been measured."""
    kinds = topology.chip.device_kinds
    body = {
        "device_kind": kinds[0],
        "num_devices": topology.num_devices,
        "num_processes": topology.num_nodes,
        "processor": host_processor(),
        "num_cores": host_cores(),
        "jax": "0.10.2",
        "jaxlib": "0.10.2",
    }
    return Machine(**{**body, **changes})  # pyright: ignore[reportArgumentType]


def table_of(
    topology: Topology,
    collective: Callable[[str, tuple[int, ...], int], float],
    *,
    flops_per_second: float = 1e12,
    bytes_per_second: float = 1e11,
    launch_seconds: float = 1e-6,
    **changes: object,
) -> ProfileTable:
    """A table with the given seconds of collectives, and constant rates of everything else."""
    entries: list[tuple[Key, float]] = [
        (("collective", kind, shape, size), collective(kind, shape, size))
        for kind in COLLECTIVES
        for shape in group_shapes(topology)
        for size in SIZES
    ]
    extents = (1, 64, 4096)
    for dtype in ("float32", "bfloat16"):
        for m in extents:
            for k in extents:
                for n in extents:
                    entries.append((("matmul", dtype, 1, m, k, n), 2.0 * m * k * n / flops_per_second))
    entries += [(("memory", size), launch_seconds + size / bytes_per_second) for size in SIZES]
    return ProfileTable(
        machine=machine_of(topology, **changes), topology=topology.name, entries=tuple(entries)
    )
