"""The body of a `jax.shard_map` of the step, evaluated inside a manual program.

Each axis of the step's own mesh is a group of atomic axes, so a collective over it is one over that group. The body is
evaluated equation by equation (`jax.core.eval_jaxpr`) with the axes of its collectives put in place of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxplan.core import _compat
from jaxplan.errors import UnsupportedError
from jaxplan.ir import MESH, Equation
from jaxplan.partition._steps import Executor

Groups = Mapping[str, tuple[str, ...]]
"""Axis of the step's mesh -> atomic axes, major to minor."""

_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
}
"""Primitive that calls a program -> the parameter that holds it."""
_NO_COPY = frozenset({"pvary", "pcast"})
"""Annotations of values that differ between devices; a manual program checks none."""
_INVARIANT = "_invariant"
"""Ends the names of collectives with results that are known to be equal on all devices."""
_UNKNOWN_MSG = (
    "{name!r} stands inside of a jax.shard_map of the step, and backend='shard_map' cannot name its axes.\n"
    "  given:    {name} over axes {axes} of the step's own mesh\n"
    "  expected: collectives of jax.lax, calls, loops and branches\n"
    "  fix:      backend='jit' runs the body over its own mesh"
)


def run_body(eqn: Equation, executor: Executor, operands: Sequence[Any]) -> list[Any]:
    """Results of a `jax.shard_map` of the step on local operands.

    Raises:
      UnsupportedError: it holds an operator that names axes in an unknown way.
    """
    axes = eqn.params[MESH].atomic_axes([axis.size for axis in executor.axes])
    groups = {name: executor.names(group) for name, group in axes.items()}
    return _evaluate(eqn.params["jaxpr"], operands, groups)


def _evaluate(program: Any, operands: Sequence[Any], groups: Groups) -> list[Any]:
    jaxpr, consts = _compat.open_jaxpr(program)
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, operands, strict=True))

    def read(atom: Any) -> Any:
        if not isinstance(atom, _compat.Literal):
            return env[atom]
        aval: Any = atom.aval
        return np.asarray(atom.val, aval.dtype)  # as the trace has it, it is typed by the step's own mesh

    for eqn in jaxpr.eqns:
        results = _apply(eqn, [read(atom) for atom in eqn.invars], groups)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(eqn: Any, operands: list[Any], groups: Groups) -> list[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name in _CALLS:
        if name in ("checkpoint", "remat2"):
            operands = list(lax.optimization_barrier(operands))
        return _evaluate(params[_CALLS[name]], operands, groups)
    if name in _LOOPS:
        return _LOOPS[name](params, operands, groups)
    if name in _NO_COPY and params.get("to", "varying") == "varying":
        return operands
    if name == "axis_index":
        atomic = groups[params["axis_name"]]
        return [lax.axis_index(atomic) if atomic else jnp.int32(0)]
    named = [key for key in ("axes", "axis_name") if _names(params.get(key), groups)]
    if not named and not (_compat.named_axes(eqn) & groups.keys()):
        return _compat.bind_like(eqn, eqn.primitive, params, operands, "")
    collective = _COLLECTIVES.get(name.removesuffix(_INVARIANT))
    if collective is None:
        raise UnsupportedError(_UNKNOWN_MSG.format(name=name, axes=", ".join(sorted(groups))))
    atomic = tuple(n for key in named for axis in _names(params[key], groups) for n in groups[axis])
    return collective(params, operands, atomic) if atomic else _alone(name, params, operands)


def _names(value: Any, groups: Groups) -> tuple[str, ...]:
    """The axes of the step's mesh in a parameter."""
    values = value if isinstance(value, tuple) else (value,)
    return tuple(v for v in values if isinstance(v, str) and v in groups)


def _alone(name: str, params: Mapping[str, Any], operands: list[Any]) -> list[Any]:
    """Results of a collective over axes of one device."""
    if name.startswith("all_gather") and not params["tiled"]:
        return [jnp.expand_dims(x, params["all_gather_dimension"]) for x in operands]
    if name == "reduce_scatter" and not params["tiled"]:
        return [jnp.squeeze(x, params["scatter_dimension"]) for x in operands]
    if name == "all_to_all" and not params["tiled"]:
        moved = (
            jnp.expand_dims(jnp.squeeze(x, params["split_axis"]), params["concat_axis"]) for x in operands
        )
        return list(moved)
    return operands


def _reduction(reduce: Any) -> Any:
    def run(params: Mapping[str, Any], operands: list[Any], atomic: tuple[str, ...]) -> list[Any]:
        groups = params.get("axis_index_groups")
        return [reduce(x, atomic, axis_index_groups=groups) for x in operands]

    return run


def _all_gather(params: Mapping[str, Any], operands: list[Any], atomic: tuple[str, ...]) -> list[Any]:
    options = {
        "axis_index_groups": params.get("axis_index_groups"),
        "axis": params["all_gather_dimension"],
        "tiled": params["tiled"],
    }
    return [lax.all_gather(x, atomic, **options) for x in operands]


def _reduce_scatter(params: Mapping[str, Any], operands: list[Any], atomic: tuple[str, ...]) -> list[Any]:
    options = {
        "axis_index_groups": params.get("axis_index_groups"),
        "scatter_dimension": params["scatter_dimension"],
        "tiled": params["tiled"],
    }
    return [lax.psum_scatter(x, atomic, **options) for x in operands]


def _all_to_all(params: Mapping[str, Any], operands: list[Any], atomic: tuple[str, ...]) -> list[Any]:
    options = {name: params[name] for name in ("split_axis", "concat_axis", "axis_index_groups", "tiled")}
    return [lax.all_to_all(x, atomic, **options) for x in operands]


def _ppermute(params: Mapping[str, Any], operands: list[Any], atomic: tuple[str, ...]) -> list[Any]:
    return [lax.ppermute(x, atomic, params["perm"]) for x in operands]


_COLLECTIVES: dict[str, Any] = {
    "psum": _reduction(lax.psum),
    "pmax": _reduction(lax.pmax),
    "pmin": _reduction(lax.pmin),
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
}


def _scan(params: Mapping[str, Any], operands: list[Any], groups: Groups) -> list[Any]:
    num_consts, num_carry = _compat.scan_counts(params, len(operands))
    consts, rest = operands[:num_consts], operands[num_consts:]

    def body(carry: tuple[Any, ...], slices: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        results = _evaluate(params["jaxpr"], [*consts, *carry, *slices], groups)
        return tuple(results[:num_carry]), tuple(results[num_carry:])

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, stacked = lax.scan(body, tuple(rest[:num_carry]), tuple(rest[num_carry:]), **options)
    return [*carry, *stacked]


def _while(params: Mapping[str, Any], operands: list[Any], groups: Groups) -> list[Any]:
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    return list(
        lax.while_loop(
            lambda state: _evaluate(params["cond_jaxpr"], [*operands[:first], *state], groups)[0],
            lambda state: tuple(_evaluate(params["body_jaxpr"], [*operands[first:second], *state], groups)),
            tuple(operands[second:]),
        )
    )


def _cond(params: Mapping[str, Any], operands: list[Any], groups: Groups) -> list[Any]:
    branches = [
        lambda *xs, branch=branch: tuple(_evaluate(branch, xs, groups)) for branch in params["branches"]
    ]
    return list(lax.switch(operands[0], branches, *operands[1:]))


_LOOPS: dict[str, Any] = {"scan": _scan, "while": _while, "cond": _cond}
