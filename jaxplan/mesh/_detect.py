"""Recognise the machine from the devices that JAX sees."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from jaxplan.errors import TopologyError
from jaxplan.mesh._chips import CHIPS, ChipSpec


def detect(devices: Sequence[Any] | None = None) -> tuple[ChipSpec, tuple[int, ...]]:
    """Chip, and sizes outermost first, of `devices` (default `jax.devices()`), of which nodes are hosts, or processes.

    Raises:
      TopologyError: no devices, several kinds, an unknown kind, or nodes of different sizes.
    """
    if devices is None:
        import jax

        return detect(jax.devices())
    devices = checked_devices(devices)
    kinds = sorted({str(device.device_kind) for device in devices})
    if len(kinds) != 1:
        raise TopologyError(
            f"found devices of kinds {kinds}; expected at least one device, all of the same kind"
        )
    chip = _chip_of_kind(kinds[0])
    return chip, _torus_shape(devices) if chip.torus_rank else _cluster_shape(devices)


def other_kinds(chip: ChipSpec, devices: Sequence[Any]) -> list[str]:
    """Kinds of the devices that are known not to be that chip, sorted: of another platform, or of another chip's name.

    A kind that no chip names may stand for a similar chip, and is not among them.
    """
    platform = "tpu" if chip.torus_rank else "cpu" if chip.aot_platform == "cpu" else "gpu"
    return sorted(
        {
            str(device.device_kind)
            for device in devices
            if device.platform != platform
            or (chip.device_kinds and _is_another(chip, str(device.device_kind)))
        }
    )


def _is_another(chip: ChipSpec, kind: str) -> bool:
    if _names(chip, kind):
        return False
    return any(_names(other, kind) for other in CHIPS.values())


def _names(chip: ChipSpec, kind: str) -> bool:
    return any(part.lower() in kind.lower() for part in chip.device_kinds)


def checked_devices(devices: Any) -> list[Any]:
    """The devices as a list; raises TopologyError for anything but devices of JAX in a sequence."""
    found = list(devices) if isinstance(devices, Iterable) and not isinstance(devices, str | bytes) else [devices]
    if not all(hasattr(device, "device_kind") for device in found):
        raise TopologyError(
            f"devices is {reprlib.repr(devices)}, of type {type(devices).__name__}.\n"
            "  expected:     a list of devices of JAX\n"
            "  likely cause: a number of devices, or their names, were given\n"
            "  fix:          devices=jax.devices()[:8], or leave it out for all devices"
        )
    names = [(getattr(device, "platform", ""), getattr(device, "id", place)) for place, device in enumerate(found)]
    twice = [device for device, name in zip(found, names, strict=True) if names.count(name) > 1]
    if twice:
        raise TopologyError(
            f"devices has {twice[0]} twice.\n"
            "  expected:     each device once\n"
            "  likely cause: a list of one device was multiplied\n"
            "  fix:          devices=jax.devices()[:8]; on CPU jax.config.update('jax_num_cpu_devices', 8) makes more"
        )
    return found


def _chip_of_kind(kind: str) -> ChipSpec:
    for chip in CHIPS.values():
        if _names(chip, kind):
            return chip
    raise TopologyError(
        f"unknown device kind {kind!r}; known chips: {' '.join(CHIPS)}. Name a similar one with "
        "Topology.parse('<chip>:<devices>'), or save one, edit its figures and use Topology.load"
    )


def _cluster_shape(devices: Sequence[Any]) -> tuple[int, ...]:
    in_order = [_node(device) for device in devices]
    per_node = Counter(in_order)
    counts = set(per_node.values())
    if len(counts) != 1 or in_order != sorted(in_order):
        raise TopologyError(
            f"devices per node are {dict(per_node)}; expected the same number in each node, in the order of nodes"
        )
    size = counts.pop()
    return (len(per_node), size) if len(per_node) > 1 else (size,)


def _node(device: Any) -> int:
    """The node of a device: of GPUs the host, which several processes may share; of others the process."""
    names = ("slice_index", "partition_index") if getattr(device, "platform", "") == "gpu" else ()
    found = (getattr(device, name, None) for name in names)
    return next((index for index in found if index is not None), device.process_index)


def _torus_shape(devices: Sequence[Any]) -> tuple[int, ...]:
    """Extent of the slice in each direction, leaving out a trailing direction of extent 1."""
    coordinates = [tuple(device.coords) for device in devices]
    extents = [max(c) - min(c) + 1 for c in zip(*coordinates)]
    while len(extents) > 1 and extents[-1] == 1:
        extents.pop()
    return tuple(extents)
