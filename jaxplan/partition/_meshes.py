"""Meshes of a plan's atomic axes and of groups of them, and shardings in the names of their axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxplan.core import _compat
from jaxplan.core._log import warn_once
from jaxplan.errors import PlanMismatchError
from jaxplan.ir import UserMesh
from jaxplan.mesh import AtomicAxis, Sharding, Topology
from jaxplan.mesh._detect import checked_devices

_OTHER_DEVICES_MSG = (
    "planned for {name}, and run on devices of kind {kind!r}: times and memory of the plan are those of {chip}, and "
    "another plan may be better here. Leave out topology to plan for the devices present"
)
_NO_GROUPING_MSG = (
    "the mesh {mesh} does not group the axes of {topology}, {axes}.\n"
    "  expected: every axis of the mesh is a product of neighbouring axes of the plan, over the devices in order\n"
    "  likely cause: it was made for another number of devices, or its devices come in another order\n"
    "  fix: plan.mesh(names={{'data': 4, 'tensor': 2}}), or names for groups of the plan's axes"
)
_SPLIT_MSG = (
    "{path} is laid out {sharding}, which splits it inside of the mesh axis {name!r}, {group}.\n"
    "  expected: a mesh in which axes that the plan uses apart are apart\n"
    "  likely cause: the mesh has fewer axes than the plan needs\n"
    "  fix: plan.mesh() has all of them, {axes}"
)
_ORDER_MSG = (
    "{path} is laid out {sharding}, which takes the axes of the mesh axis {name!r} in another order, {found}, than the "
    "mesh does, {group}.\n"
    "  expected: a mesh whose devices come in the order of the plan's axes\n"
    "  likely cause: the plan splits from the other end; a spec over this mesh would give devices each other's pieces\n"
    "  fix: plan.mesh(names={{{name!r}: {order}}}) where all arrays take this order, else plan.mesh()"
)
_Groups = Mapping[str, tuple[int, ...]]


def device_mesh(topology: Topology, devices: Sequence[Any] | None = None) -> Mesh:
    """Mesh of the atomic axes over the first devices given (default `jax.devices()`)."""
    is_given = devices is not None
    devices = checked_devices(devices) if devices is not None else jax.devices()
    if len(devices) < topology.num_devices:
        are = "is" if len(devices) == 1 else "are"
        raise PlanMismatchError(
            f"the plan needs {topology.num_devices} devices ({topology.name}), and {len(devices)} {are} there.\n"
            f"  given:    {', '.join(map(str, devices[:4]))}{' ...' if len(devices) > 4 else ''}\n"
            f"  expected: at least {topology.num_devices} devices\n"
            "  likely cause: it was planned for another machine\n"
            "  fix: plan for the devices present (topology=None), or on CPU ask for virtual ones with "
            "jax.config.update('jax_num_cpu_devices', n) before the first use of JAX"
        )
    if not is_given:
        _check_shared(topology, devices)
    kinds, kind = topology.chip.device_kinds, str(devices[0].device_kind)
    if kinds and not any(known.lower() in kind.lower() for known in kinds):
        warn_once(_OTHER_DEVICES_MSG.format(name=topology.name, chip=topology.chip.name, kind=kind))
    sizes = tuple(axis.size for axis in topology.axes) or (1,)
    names = tuple(axis.name for axis in topology.axes) or ("device",)
    return Mesh(np.array(devices[: topology.num_devices]).reshape(sizes), names)


def _check_shared(topology: Topology, devices: Sequence[Any]) -> None:
    """Every process has devices of the plan: one without any would leave the others waiting; an error in all."""
    some = {device.process_index for device in devices[: topology.num_devices]}
    left = sorted({device.process_index for device in devices} - some)
    if left:
        raise PlanMismatchError(
            f"the plan's {topology.num_devices} devices ({topology.name}) leave out process {left[0]}, of "
            f"{len(some) + len(left)} processes with {len(devices)} devices.\n"
            "  expected: devices of every process\n"
            "  likely cause: the plan was made for, or saved by, fewer processes\n"
            "  fix: plan for the devices present (topology=None); state that was saved is restored by any plan: "
            "plan.restore(folder)"
        )


def abstract_mesh(topology: Topology) -> Any:
    """The same mesh without devices, for lowering on a machine that has none."""
    sizes = tuple(axis.size for axis in topology.axes) or (1,)
    names = tuple(axis.name for axis in topology.axes) or ("device",)
    return _compat.auto_abstract_mesh(sizes, names)


def named_mesh(mesh: Mesh, groups: _Groups) -> Mesh:
    """The mesh of atomic axes with an axis for each group; groups hold every atomic axis once."""
    sizes = mesh.devices.shape
    order = [a for group in groups.values() for a in group]
    devices = mesh.devices.transpose(order) if order else mesh.devices
    return Mesh(devices.reshape([math.prod(sizes[a] for a in group) for group in groups.values()]), tuple(groups))


def specs_over(
    mesh: Any, topology: Topology, paths: Sequence[str], shardings: Sequence[Sharding]
) -> list[PartitionSpec]:
    """PartitionSpecs in the names of a mesh: that of atomic axes, or one of groups of them.

    Raises:
      PlanMismatchError: the mesh does not group the axes of the topology, or an axis holds some over which an array is
        split, and some over which it is not.
    """
    axes = topology.axes
    if tuple(mesh.axis_names) == tuple(axis.name for axis in axes) or not axes:
        return [sharding.partition_spec(axes) for sharding in shardings]
    groups = _groups_of(mesh, topology)
    return [_spec(path, sharding, groups, axes) for path, sharding in zip(paths, shardings, strict=True)]


def _groups_of(mesh: Any, topology: Topology) -> _Groups:
    """The atomic axes of every axis, by the numbers of its devices or else by their order in the mesh."""
    sizes = [axis.size for axis in topology.axes]
    user = UserMesh.of(mesh)
    in_order = UserMesh(names=user.names, sizes=user.sizes, order=tuple(range(math.prod(user.sizes))))
    groups = user.atomic_axes(sizes) or in_order.atomic_axes(sizes)
    if groups is None:
        raise PlanMismatchError(
            _NO_GROUPING_MSG.format(
                mesh=user, topology=topology.name, axes=", ".join(map(repr, topology.axes))
            )
        )
    return groups


def _spec(path: str, sharding: Sharding, groups: _Groups, axes: Sequence[AtomicAxis]) -> PartitionSpec:
    by_first = {group[0]: (name, group) for name, group in groups.items() if group}
    entries: list[str | tuple[str, ...] | None] = []
    for dim in sharding.dims:
        names, place = [], 0
        while place < len(dim):
            name, group = by_first.get(dim[place]) or next((n, g) for n, g in groups.items() if dim[place] in g)
            found = dim[place : place + len(group)]
            if found != group:
                is_order = sorted(found) == sorted(group)
                raise PlanMismatchError(
                    (_ORDER_MSG if is_order else _SPLIT_MSG).format(
                        path=path,
                        sharding=sharding.describe(axes),
                        name=name,
                        found=" ".join(axes[a].name for a in found),
                        group=" ".join(axes[a].name for a in group),
                        order=tuple(axes[a].name for a in found),
                        axes=", ".join(axis.name for axis in axes),
                    )
                )
            names.append(name)
            place += len(group)
        entries.append(None if not names else names[0] if len(names) == 1 else tuple(names))
    return PartitionSpec(*entries)
