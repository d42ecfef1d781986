"""How sharding constraints and `jax.shard_map` of the step enter the program, with the mesh and shardings they name.

A constraint that cannot be respected is an error here, with the line that asks for it.
"""

from __future__ import annotations

from typing import Any

import jax

from jaxplan.core import _compat
from jaxplan.errors import UnsupportedError
from jaxplan.ir._builder import Builder, keep, register_inline
from jaxplan.ir._program import Equation, Tensor
from jaxplan.ir._user_mesh import IN_DIMS, MESH, OUT_DIMS, SpecDims, UserMesh, spec_dims

_UNSUPPORTED_MSG = """\
a sharding that the step asks for cannot be respected.
  given:    {given}
  at:       {where}
  expected: {expected}
  likely cause: {cause}
  fix: {fix}"""
_DEFAULT_MEMORY = frozenset({None, "device"})


@register_inline("sharding_constraint")
def _inline_constraint(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    sharding, aval = eqn.params["sharding"], eqn.outvars[0].aval
    mesh = _mesh_of(eqn, sharding)
    dims = spec_dims(sharding.spec, len(aval.shape), frozenset(eqn.params["unconstrained_dims"]))
    params = {MESH: mesh, OUT_DIMS: (dims,)}
    return builder.append(eqn.primitive, params, operands, [aval], stack, eqn)


@register_inline("shard_map")
def _inline_shard_map(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    """An operand that is read in two shardings is two tensors, so that each has one."""
    _check_axis_types(eqn, eqn.params["mesh"])
    mesh = UserMesh.of(eqn.params["mesh"])
    in_dims = _all_dims(eqn.params["in_specs"], eqn.invars)
    out_dims = _all_dims(eqn.params["out_specs"], eqn.outvars)
    params = {**eqn.params, MESH: mesh, IN_DIMS: in_dims, OUT_DIMS: out_dims}
    wanted: dict[int, SpecDims] = {}
    operands = [
        t
        if wanted.setdefault(t, dims) == dims
        else builder.append(jax.lax.copy_p, {}, [t], [var.aval], stack, eqn)[0]
        for t, dims, var in zip(operands, in_dims, eqn.invars, strict=True)
    ]
    return builder.append(eqn.primitive, params, operands, [v.aval for v in eqn.outvars], stack, eqn)


@register_inline("reshard", "mesh_cast")
def _inline_reshard(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    """Of explicit types; JAX puts some that change nothing where there is no mesh."""
    mesh = getattr(eqn.params.get("dst_sharding"), "mesh", None)
    if mesh is not None:
        _check_axis_types(eqn, mesh)
    return keep(builder, eqn, operands, stack)


def inline_body(jaxpr: Any) -> tuple[list[Tensor], list[Equation], list[int], list[int]]:
    """The body of a `jax.shard_map` on local shapes, calls and loops inlined: tensors, equations, inputs, outputs."""
    builder = Builder()
    opened, consts = _compat.open_jaxpr(jaxpr)
    inputs = [builder.add(var.aval, "input") for var in opened.invars]
    outputs = builder.inline(opened, consts, inputs, "")
    return builder.tensors, builder.equations, inputs, outputs


def _all_dims(specs: Any, atoms: Any) -> tuple[SpecDims, ...]:
    return tuple(spec_dims(spec, len(atom.aval.shape)) for spec, atom in zip(specs, atoms, strict=True))


def _mesh_of(eqn: Any, sharding: Any) -> UserMesh:
    """The mesh of a constraint, if it is one that can be respected."""
    if not isinstance(sharding, jax.sharding.NamedSharding):
        raise _unsupported(
            eqn,
            given=f"a constraint to {sharding}",
            expected="a NamedSharding, or a PartitionSpec within a mesh",
            cause="a sharding without named axes, such as that of a single device",
            fix="name axes of a mesh, jax.sharding.NamedSharding(mesh, PartitionSpec(...))",
        )
    if sharding.memory_kind not in _DEFAULT_MEMORY or eqn.params.get("layout") is not None:
        raise _unsupported(
            eqn,
            given=f"memory kind {sharding.memory_kind!r}, device layout {eqn.params.get('layout')}",
            expected="the memory and the layout that the device computes in",
            cause="an array is kept in the memory of the host (with_memory_kind)",
            fix="leave the memory kind out of the step, and lower memory= so that plans keep less on a device",
        )
    _check_axis_types(eqn, sharding.mesh)
    return UserMesh.of(sharding.mesh)


def _check_axis_types(eqn: Any, mesh: Any) -> None:
    explicit = [
        n
        for n, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind != jax.sharding.AxisType.Auto
    ]
    if explicit:
        raise _unsupported(
            eqn,
            given=f"mesh {UserMesh.of(mesh)} with axes {explicit} that are not of the type Auto",
            expected="a mesh with axes of the type AxisType.Auto only",
            cause="jax.make_mesh makes Explicit axes, along which types carry shardings that leave a plan no choice",
            fix="jax.sharding.Mesh(devices, names), or jax.make_mesh(..., axis_types=(AxisType.Auto, ...))",
        )


def _unsupported(eqn: Any, **parts: str) -> UnsupportedError:
    where = _compat.eqn_source_line(eqn) or "unknown line"
    return UnsupportedError(_UNSUPPORTED_MSG.format(where=where, **parts))
