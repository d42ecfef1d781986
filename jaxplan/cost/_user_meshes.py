"""Do the meshes that a step names fit the machine that it is planned for?"""

from __future__ import annotations

from jaxplan.core import _compat
from jaxplan.errors import ArgumentError
from jaxplan.ir import IN_DIMS, MESH, Equation, StepGraph, UserMesh
from jaxplan.mesh import Topology

_MESH_MSG = """\
the step asks for shardings over a mesh of its own, and that mesh is no grouping of the topology's axes.
  given:    mesh {mesh}, at {where}
  expected: the {devices} devices of {topology}, whose mesh is ({axes}): every axis of the step's mesh a product of some
            of these{order}
  likely cause: {cause}
  fix: {fix}"""
_SIZES = (
    "",
    "the mesh was made for another number of devices, or splits them where the machine does not",
    "plan for a topology of {size} devices, or make the mesh of jax.devices() reshaped to the sizes of these axes",
)
_ORDER = (
    ", and for jax.shard_map in the same order",
    "jax.make_mesh or mesh_utils.create_device_mesh permuted the devices",
    "make the mesh of the devices in their order, jax.sharding.Mesh(np.array(jax.devices()).reshape(...), names)",
)


def check_user_meshes(graph: StepGraph, topology: Topology) -> None:
    """Raise ArgumentError, naming both meshes, if one of the step's has no counterpart on the machine.

    The body of a `jax.shard_map` was traced with its axes in their order, so there the devices must have theirs.
    """
    sizes = tuple(axis.size for axis in topology.axes)
    for eqn in graph.program.equations:
        mesh = eqn.params.get(MESH)
        if mesh is None:
            continue
        if mesh.atomic_axes(sizes) is None:
            raise _error(eqn, mesh, topology, *_SIZES)
        if IN_DIMS in eqn.params and not mesh.is_in_order:
            raise _error(eqn, mesh, topology, *_ORDER)


def _error(
    eqn: Equation, mesh: UserMesh, topology: Topology, order: str, cause: str, fix: str
) -> ArgumentError:
    return ArgumentError(
        _MESH_MSG.format(
            mesh=mesh,
            where=_compat.eqn_source_line(eqn.origin) or "unknown line",
            devices=topology.num_devices,
            topology=topology.name,
            axes=", ".join(f"{axis.name}={axis.size}" for axis in topology.axes) or "one device",
            order=order,
            cause=cause,
            fix=fix.format(size=len(mesh.order)),
        )
    )
