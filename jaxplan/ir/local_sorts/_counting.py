"""Whether a value counts the rows of each key.

Each row is counted by itself, by operators that are known, and then the rows are added up and nothing else is done. So
it is enough to know the count of one row: the operators are run on keys drawn at random.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxplan.ir.local_sorts._body import Body
from jaxplan.ir.local_sorts._kinds import Sort
from jaxplan.ir.local_sorts._tables import evaluate
from jaxplan.ir.microbatch._pairs import Pair

_SAME = ("reshape", "convert_element_type", "squeeze", "copy", "optimization_barrier")
_CHOOSING = ("top_k", "argmax", "argmin", "approx_top_k")
"""Operators of which the last result is the number of one of several things."""
_MOST_EQUATIONS = 40
_MOST_PRODUCTS = 1 << 28


def keeps_integers(eqn: Pair, largest: float = float("inf")) -> bool:
    """Whether an equation has one result with the integers of its first operand in the same order.

    Args:
      largest: of those integers, none of which is negative; a type that is narrower must hold it.
    """
    name, params = eqn.full.primitive.name, eqn.full.params
    if name not in _SAME or (name == "reshape" and params["dimensions"] is not None):  # these transpose
        return False
    source, result = eqn.full.invars[0].aval.dtype, eqn.full.outvars[0].aval.dtype
    if not _is_integer(source) or not _is_integer(result):
        return False
    return np.can_cast(source, result) or np.iinfo(result).max >= largest


def _is_integer(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and np.issubdtype(dtype, np.integer)


def are_counts(body: Body, t: int, sort: Sort) -> bool:
    """Whether a value of the body counts, for each key from 0, the rows of a sort in the same body."""
    makers = {out: eqn for eqn in body.flat.equations for out in eqn.outputs}
    if sort not in body.keys:
        return False
    keys, sorted_keys = body.keys[sort]
    order = list[Pair]()
    seen, summed = set[int](), set[int]()

    def visit(atom: Any) -> bool:
        """Whether a value is computed of the keys as counts are; those that are added up are noted."""
        if not isinstance(atom, int) or atom in body.constants or body.source(atom) in (keys, sorted_keys):
            return True
        if atom not in seen:
            seen.add(atom)
            eqn = makers.get(atom)
            if eqn is None or len(seen) > _MOST_EQUATIONS or len(eqn.outputs) != 1 or not all(map(visit, eqn.inputs)):
                return False
            order.append(eqn)
            name, reads_sum = eqn.full.primitive.name, not summed.isdisjoint(eqn.operands)
            if reads_sum or name in ("reduce_sum", "scatter-add"):
                summed.add(atom)
            return not reads_sum or name == "reduce_sum" or keeps_integers(eqn, sort.num_rows)
        return True

    if not visit(t) or t not in summed:
        return False
    rng = np.random.default_rng(0)
    num_groups = body.flat.values[t].aval.shape[0]

    def counts(drawn: np.ndarray) -> np.ndarray | None:
        known, given = dict[int, np.ndarray](), {keys: drawn, sorted_keys: np.sort(drawn)}

        def read(atom: Any) -> np.ndarray | None:
            if isinstance(atom, int) and (x := given.get(body.source(atom))) is not None:
                aval = body.flat.values[atom].aval
                return x.astype(aval.dtype).reshape(aval.shape)
            return known.get(atom) if isinstance(atom, int) and atom in known else body.constant(atom)

        for eqn in order:
            operands, aval = [read(atom) for atom in eqn.inputs], eqn.full.outvars[0].aval
            if any(x is None for x in operands) or aval.size > _MOST_PRODUCTS:
                return None
            found = _evaluate(eqn, [x for x in operands if x is not None])
            if found is None:
                return None
            known[eqn.outputs[0]] = found
        return known.get(t)

    dtype = body.flat.values[sorted_keys].aval.dtype
    drawn = rng.integers(0, num_groups, sort.num_rows) * rng.integers(0, 2, sort.num_rows)
    is_equal = np.array_equal(_or_none(counts(drawn.astype(dtype))), np.bincount(drawn, minlength=num_groups))
    if not is_equal or (keys in makers and _chooses_of(makers[keys], keys) <= num_groups):
        return is_equal
    low = 0 if np.issubdtype(dtype, np.unsignedinteger) else -2
    drawn = rng.integers(low, num_groups + 2, sort.num_rows)
    expected = np.bincount(np.maximum(drawn, 0), minlength=num_groups)[:num_groups]
    return np.array_equal(_or_none(counts(drawn.astype(dtype))), expected)


def _evaluate(eqn: Pair, operands: list[np.ndarray]) -> np.ndarray | None:
    """The result of an equation: of each row alone, or a sum of rows, along axes or at indices of a vector."""
    name, params, aval = eqn.full.primitive.name, eqn.full.params, eqn.full.outvars[0].aval
    if name == "reduce_sum":
        return operands[0].sum(tuple(params["axes"]), dtype=aval.dtype)
    if name != "scatter-add":
        return evaluate(name, params, operands, aval)
    start, at, added = operands
    numbers = params["dimension_numbers"]
    if len(aval.shape) != 1 or numbers.update_window_dims or numbers.operand_batching_dims or at.shape[-1] != 1:
        return None
    at, result = at.reshape(-1), start.copy()
    if "CLIP" in str(params["mode"]).upper():
        at = np.clip(at, 0, start.size - 1)
    inside = (at >= 0) & (at < start.size)
    np.add.at(result, at[inside], added.reshape(-1)[inside])
    return result


def _chooses_of(eqn: Pair, chosen: int) -> float:
    """The number of things that a result is the number of one of; infinite where it is something else."""
    shape = eqn.full.invars[0].aval.shape
    if eqn.full.primitive.name not in _CHOOSING or eqn.outputs[-1] != chosen:
        return float("inf")
    axes = eqn.full.params.get("axes", (eqn.full.params.get("axis", len(shape) - 1),))
    return shape[axes[0]]


def _or_none(found: np.ndarray | None) -> np.ndarray:
    return np.empty(0) if found is None else found
