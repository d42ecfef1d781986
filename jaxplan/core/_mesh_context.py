"""The mesh that a person has set around a call, and the one that a planned program is traced under."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, cast

import jax
from jax.sharding import AbstractMesh, AxisType, use_abstract_mesh


def explicit_mesh(values: Iterable[Any] = ()) -> AbstractMesh | None:
    """The mesh with Explicit axes that is set, or else that some of the values are typed by; None without any.

    Args:
      values: arrays, traced or not.
    """
    meshes = [jax.sharding.get_abstract_mesh()]
    meshes += [jax.typeof(x).sharding.mesh for x in values if isinstance(x, jax.Array)]
    return next((mesh for mesh in meshes if not mesh.empty and AxisType.Explicit in mesh.axis_types), None)


def without_explicit_axes() -> contextlib.AbstractContextManager[Any]:
    """While a step is traced, Explicit axes of the mesh around are Auto: a plan decides the sharding of every value.

    Under Explicit axes each value would be typed by a sharding, and arrays created by the step by one of their own.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or AxisType.Explicit not in mesh.axis_types:
        return contextlib.nullcontext()
    kinds = tuple(AxisType.Auto if kind == AxisType.Explicit else kind for kind in mesh.axis_types)
    return use_abstract_mesh(AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds))


def without_mesh() -> contextlib.AbstractContextManager[Any]:
    """While programs on parts of the devices run, no mesh is set, whatever is set around them."""
    if jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    return jax.set_mesh(cast("Any", None))  # accepted, though its type does not say so


def under(mesh: Any) -> contextlib.AbstractContextManager[Any]:
    """While a planned program is traced, its own mesh is the one that is set, whatever is set around it.

    Args:
      mesh: with devices or abstract.
    """
    return use_abstract_mesh(getattr(mesh, "abstract_mesh", mesh))
