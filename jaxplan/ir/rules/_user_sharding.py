"""Rules of the equations that the step itself shards: sharding constraints and `jax.shard_map`."""

from __future__ import annotations

from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import Dimension, Factor, OperatorRule, Shape, TensorFactors
from jaxplan.ir._user_mesh import IN_DIMS, MESH, OUT_DIMS, SpecDims, UserAxes, UserMesh


@register_rule("sharding_constraint")
def constraint_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``i j -> i j``: constrained dimensions as the step says, the others (``P.UNCONSTRAINED``) in any way."""
    factors: list[Factor] = []
    dims = _dims(factors, in_avals[0].shape, params[OUT_DIMS][0], params[MESH])
    return OperatorRule(factors=tuple(factors), operands=(dims,), results=(dims,), family="user")


@register_rule("shard_map")
def shard_map_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Every dimension of every operand and result is split as the specs say, no two of them tied."""
    factors: list[Factor] = []
    sides = ((in_avals, params[IN_DIMS]), (out_avals, params[OUT_DIMS]))
    operands, results = (
        tuple(_dims(factors, aval.shape, dims, params[MESH]) for aval, dims in zip(avals, specs, strict=True))
        for avals, specs in sides
    )
    return OperatorRule(factors=tuple(factors), operands=operands, results=results, family="user")


def _dims(factors: list[Factor], shape: Shape, wanted: SpecDims, mesh: UserMesh) -> TensorFactors:
    return tuple(_dim(factors, size, names, mesh) for size, names in zip(shape, wanted, strict=True))


def _dim(factors: list[Factor], size: int, names: tuple[str, ...] | None, mesh: UserMesh) -> Dimension:
    if size == 1:
        return ()
    axes = None if names is None else UserAxes(mesh=mesh, names=names)
    factors.append(Factor(size=size, kind="fixed" if axes else "map", user_axes=axes))
    return (len(factors) - 1,)
