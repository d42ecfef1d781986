"""Operators that carry a program of their own: Pallas kernels, custom partitionings, loops that stay one operator.

Their arithmetic is that of the equations of the program, as often as they run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from jaxplan.core import _compat
from jaxplan.ir._count import Count, added
from jaxplan.ir._count_registry import operator_count, register_count
from jaxplan.ir._registry import Avals, Params
from jaxplan.ir._trip_count import known_trips
from jaxplan.ir.counts._elementwise import SPECIAL_OPERATIONS
from jaxplan.ir.counts._kernels import KERNEL_MOVES, kernel_product
from jaxplan.ir.counts._transforms import num_bytes
from jaxplan.ir.rules._pallas import block_sizes

_PROGRAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call", "callee", "body_jaxpr", "closed_jaxpr")
"""Parameters in which an equation keeps the program that it runs once."""
_UNKNOWN_TRIPS = "a loop with trips that depend on data counts once"
_DYNAMIC_GRID = "a grid with a size that depends on data counts as one point"


def program_count(jaxpr: Any) -> Count:
    """The arithmetic of a program: every equation's, loops as often as they run, of branches the largest."""
    opened, _ = _compat.open_jaxpr(jaxpr)
    return added(part for eqn in opened.eqns for part in _parts(eqn))


def _parts(eqn: Any) -> Iterator[tuple[float, Count]]:
    """(executions, count) of everything that one equation runs."""
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        yield params["length"], program_count(params["jaxpr"])
    elif name == "while":
        trips = known_trips(params, [getattr(atom, "val", None) for atom in eqn.invars])
        body = added([(1, program_count(params["body_jaxpr"])), (1, program_count(params["cond_jaxpr"]))])
        yield trips or 1, body if trips else added([(1, body), (0, Count(caveat=_UNKNOWN_TRIPS))])
    elif name == "cond":
        yield 1, max(map(program_count, params["branches"]), key=lambda count: count.flops)
    elif name in KERNEL_MOVES:
        return
    else:
        yield 1, _equation_count(eqn)


def _equation_count(eqn: Any) -> Count:
    name = eqn.primitive.name
    ins = [atom.aval for atom in eqn.invars]
    outs = [var.aval for var in eqn.outvars]
    product = kernel_product(name, ins)
    if product is not None:
        return product
    in_avals, out_avals = ([aval for aval in side if hasattr(aval, "shape")] for side in (ins, outs))
    found = operator_count(name, in_avals, out_avals, eqn.params)
    if found is not None:
        return found
    inner = _inner_program(eqn.params)
    return Count(caveat=f"{name!r} inside of it has no count") if inner is None else program_count(inner)


def _inner_program(params: Params) -> Any:
    found = (params.get(name) for name in _PROGRAMS)
    return next((value for value in found if hasattr(value, "eqns") or hasattr(value, "jaxpr")), None)


@register_count("custom_partitioning", "compute_on", "fused_call", "cudnn_fusion", kind="its own program")
@register_count("shard_map", "run_state", "call_hi_primitive", "remat_opt", kind="its own program")
@register_count("core_map", "run_scoped", kind="its own program")
def called_program(in_avals: Avals, out_avals: Avals, params: Params) -> Count | None:
    """The arithmetic of the program that is called."""
    inner = _inner_program(params)
    return None if inner is None else program_count(inner)


@register_count("ffi_call", kind="as registered for its target")
def foreign_function(in_avals: Avals, out_avals: Avals, params: Params) -> None:
    """Only its author knows its work, and registers it under a name of its own: ``"ffi_call:target"``."""


@register_count("scan", "while", "cond", kind="its own program")
def kept_region(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """A loop or branch that stays one operator, because it has effects."""
    if "branches" in params:
        return max(map(program_count, params["branches"]), key=lambda count: count.flops)
    if "length" in params:
        return added([(params["length"], program_count(params["jaxpr"]))])
    trips = known_trips(params, [None] * len(in_avals))
    body = added([(trips or 1, program_count(params["body_jaxpr"]))])
    return body if trips else added([(1, body), (0, Count(caveat=_UNKNOWN_TRIPS))])


@register_count("pallas_call", kind="pl.CostEstimate, or its kernel")
def pallas_call(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Its author's estimate (`pl.CostEstimate`); else the kernel's arithmetic at every point of the grid, and the
    blocks that the grid fetches: one whenever its index changes, points in row-major order
    (https://docs.jax.dev/en/latest/pallas/grid_blockspec.html)."""
    body, estimate = program_count(params["jaxpr"]), params.get("cost_estimate")
    grid = [size if isinstance(size, int) else 1 for size in params["grid_mapping"].grid]
    is_static = all(isinstance(size, int) for size in params["grid_mapping"].grid)
    if estimate is not None:
        return _estimated(estimate, body, in_avals, out_avals)
    work = added([(math.prod(grid), body), (0, Count(caveat="" if is_static else _DYNAMIC_GRID))])
    touched = _fetched(grid, in_avals, out_avals, params)
    whole = [num_bytes([aval]) for aval in (*in_avals, *out_avals)]
    return Count(
        matrix=work.matrix,
        exact=work.exact,
        vector=work.vector,
        caveat=work.caveat,
        moved=sum(w if t is None else t for t, w in zip(touched, whole, strict=True)),
        touched=tuple(None if t is None or t >= w else t for t, w in zip(touched, whole, strict=True)),
    )


def _estimated(estimate: Any, body: Count, in_avals: Avals, out_avals: Avals) -> Count:
    """FLOPs at the rate of matrix products where the kernel has some, else of vector units."""
    moved = float(estimate.bytes_accessed)
    touched = (0.0,) * (len(in_avals) + len(out_avals)) if moved else ()
    functions = Count(vector=(("float32", float(SPECIAL_OPERATIONS * estimate.transcendentals)),))
    flops = float(estimate.flops)
    if body.matrix:
        matrix = ((body.matrix[0][0], flops),)
        return Count(matrix=matrix, vector=functions.vector, moved=moved, touched=touched)
    arithmetic = Count(vector=((str((*in_avals, *out_avals)[0].dtype), flops),))
    vector = added([(1, arithmetic), (1, functions)]).vector
    return Count(vector=vector, moved=moved, touched=touched)


def _fetched(grid: Sequence[int], in_avals: Avals, out_avals: Avals, params: Params) -> list[float | None]:
    """Bytes of blocks fetched or written per operand and result; None where no block specification tells."""
    mapping = params["grid_mapping"]
    avals = [*in_avals, *out_avals]
    others = len(avals) - len(mapping.block_mappings)  # scalars that index maps read, sizes of the grid
    result: list[float | None] = [None] * others
    for block, aval in zip(mapping.block_mappings, avals[others:], strict=True):
        sizes = [min(size, full) if size else full for size, full in zip(block_sizes(block), aval.shape)]
        depends = _last_dependence(block.index_map_jaxpr, len(grid))
        fetches = math.prod(grid[: depends + 1])
        itemsize = num_bytes([aval]) / max(1, math.prod(aval.shape))
        result.append(float(fetches * math.prod(sizes) * itemsize))
    return result


def _last_dependence(index_map: Any, rank: int) -> int:
    """The innermost dimension of the grid that an index map depends on, -1 where it depends on none.

    A map that reads a table may change with every point.
    """
    jaxpr, _ = _compat.open_jaxpr(index_map)
    position = dict.fromkeys(jaxpr.invars[rank:], rank - 1)
    position.update((var, g) for g, var in enumerate(jaxpr.invars[:rank]))
    for eqn in jaxpr.eqns:
        last = max(
            (position.get(v, -1) for v in eqn.invars if not isinstance(v, _compat.Literal)), default=-1
        )
        position.update(dict.fromkeys(eqn.outvars, last))
    return max((position.get(v, -1) for v in jaxpr.outvars if not isinstance(v, _compat.Literal)), default=-1)
