"""Devices that exist for the compiler only, so that plans for any machine compile on any machine."""

from __future__ import annotations

import math
import os
import re
from importlib import resources
from typing import Any

from jaxplan.errors import TopologyError
from jaxplan.mesh._chips import ChipSpec
from jaxplan.mesh._topology_data import TopologyData

# Autotuning needs the device, and so do the tile sizes of Triton's matrix products.
_CUDA_XLA_FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
_CAPABILITY = re.compile(r"cuda_compute_capability\s*\{\s*major:\s*(\d+)(?:\s*minor:\s*(\d+))?")
_OLD = (7, 0)
"""Of GPUs without a compile target, all older than those with fused attention."""
_TPU_ACCELERATOR_TYPES = {"v5e": "v5litepod", "v5p": "v5p", "v6e": "v6e"}


def aot_environment(topology: TopologyData) -> dict[str, str]:
    """Variables to set, over the present ones, for the process that compiles for this topology."""
    platform = topology.chip.aot_platform
    environment = {"JAX_PLATFORMS": "cpu"}
    if platform == "cuda":
        environment["XLA_FLAGS"] = _CUDA_XLA_FLAGS
    elif platform == "cpu":
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={topology.num_devices}"
    elif platform == "tpu":
        kind = _TPU_ACCELERATOR_TYPES.get(topology.chip.name, topology.chip.name)
        cores = topology.num_devices * (
            2 if topology.chip.name == "v5p" else 1
        )  # v5p types count cores, two a chip
        environment |= {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": f"{kind}-{cores}",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nothing opens a TPU here, so several may compile at once
        }
    return environment


def target_config(name: str) -> str:
    """Text of the target description of a GPU, a `GpuTargetConfigProto`."""
    return (resources.files("jaxplan.mesh") / "targets" / f"{name}.textproto").read_text(encoding="utf-8")


def compute_capability(chip: ChipSpec) -> tuple[int, int] | None:
    """(major, minor) that a GPU's compile target states, `_OLD` where it has none; None for other chips."""
    if not chip.is_gpu:
        return None
    if chip.aot_target is None or not re.fullmatch(r"[\w-]+", chip.aot_target):
        return _OLD
    try:
        found = _CAPABILITY.search(target_config(chip.aot_target))
    except FileNotFoundError:  # a chip of the user's own
        return _OLD
    return (int(found[1]), int(found[2] or 0)) if found else _OLD


def aot_devices(topology: TopologyData) -> list[Any]:
    """Compile-only devices in the order of `topology.axes`; see `Topology.aot_devices`."""
    chip = topology.chip
    if chip.aot_platform == "cpu":
        return _cpu_devices(topology)
    if chip.aot_platform is None or (chip.aot_platform == "cuda" and chip.aot_target is None):
        raise TopologyError(
            f"{chip.name} has no target for compilation without the device: it can be planned, not audited"
        )
    if os.environ.get("JAX_PLATFORMS") != "cpu":
        raise TopologyError(
            f"compiling for {topology.name} without the device needs JAX_PLATFORMS=cpu, and it is "
            f"{os.environ.get('JAX_PLATFORMS')!r}; start a process with Topology.aot_environment()"
        )
    extra = "gpu-aot" if chip.aot_platform == "cuda" else "tpu-aot"
    try:
        devices = _cuda_devices(topology) if chip.aot_platform == "cuda" else _tpu_devices(topology)
    except Exception as error:
        raise TopologyError(
            f"no compile-only devices for {topology.name}: {error}. The compiler comes with the extra "
            f"`pip install 'jaxplan[{extra}]'` (Linux), and runs with Topology.aot_environment()"
        ) from error
    if len(devices) != topology.num_devices:
        raise TopologyError(
            f"the compiler made {len(devices)} devices for {topology.name}, not {topology.num_devices}"
        )
    return devices


def _cuda_devices(topology: TopologyData) -> list[Any]:
    from jax.experimental import topologies

    per_node = topology.num_devices // topology.num_nodes
    description = topologies.get_topology_desc(
        platform="cuda",
        topology_name=topology.chip.name,
        target_config=target_config(str(topology.chip.aot_target)),
        topology=f"1x{topology.num_nodes}x{per_node}",  # slices x nodes x devices per node
    )
    return list(description.devices)


def _tpu_devices(topology: TopologyData) -> list[Any]:
    from jax.experimental import topologies

    slices = math.prod(level.size for level in topology.levels if level.name == "slice")
    name, several = topology.name, {}
    if slices > 1:
        name, several = f"{topology.chip.name}:{name.partition('x')[2]}", {"num_slices": slices}
    description = topologies.get_topology_desc(platform="tpu", topology_name=name, **several)
    # Row-major over the slice's coordinates, as the axes x, y, z are.
    return sorted(description.devices, key=lambda device: (getattr(device, "slice_index", 0), tuple(device.coords)))


def _cpu_devices(topology: TopologyData) -> list[Any]:
    import jax

    devices = jax.devices("cpu")
    needed = math.prod(level.size for level in topology.levels)
    if len(devices) < needed:
        raise TopologyError(
            f"{topology.name} needs {needed} CPU devices and this process has {len(devices)}; set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={needed} before JAX starts"
        )
    return list(devices[:needed])
