"""Run a user's `jax.shard_map` over the plan's devices: its body as it is, over a mesh with its own axes.

That mesh holds the devices of the plan's in the same order, so both stand in one program: compiled for CPU and GPU it
was seen to be the one that a body over the atomic axes gives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxplan.core import _compat
from jaxplan.ir import IN_DIMS, MESH, OUT_DIMS, Equation
from jaxplan.partition._steps import Executor


def user_params(eqn: Equation, executor: Executor) -> dict[str, Any]:
    """Parameters of a `jax.shard_map` of the user's over the executor's devices."""
    params, mesh = as_traced(eqn), eqn.params[MESH]
    assert mesh.is_in_order, "checked when it was planned"
    if isinstance(executor.mesh, Mesh):
        return {**params, "mesh": Mesh(np.reshape(executor.mesh.devices, mesh.sizes), mesh.names)}
    return {**params, "mesh": _abstract(params["mesh"]) or _compat.auto_abstract_mesh(mesh.sizes, mesh.names)}


def _abstract(traced: Any) -> AbstractMesh | None:
    """The mesh that a body was traced over, without its devices: its equations name their kind, and are bound to it."""
    if not isinstance(traced, Mesh):
        return None
    return traced.abstract_mesh.update_axis_types(dict.fromkeys(traced.axis_names, AxisType.Auto))


def as_traced(eqn: Equation) -> dict[str, Any]:
    """The parameters that an equation was traced with."""
    return {name: value for name, value in eqn.params.items() if name not in (MESH, IN_DIMS, OUT_DIMS)}
