"""Whether a value counts the rows of each key: the equations between the two are run on keys drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxplan.ir.local_sorts._body import Body
from jaxplan.ir.local_sorts._kinds import Sort
from jaxplan.ir.local_sorts._tables import evaluate

_CHOOSING = frozenset({"top_k", "argmax", "argmin", "approx_top_k"})
_MOST_EQUATIONS = 40
_MOST_PRODUCTS = 1 << 28


def are_counts(body: Body, t: int, sort: Sort) -> bool:
    """Whether a value of the body counts, for each key from 0, the rows of a sort in the same body."""
    makers = {out: eqn for eqn in body.flat.equations for out in eqn.outputs}
    if sort not in body.keys:
        return False
    keys, sorted_keys = body.keys[sort]
    chain, order = set[int](), list[Any]()

    def visit(atom: Any) -> None:
        is_given = not isinstance(atom, int) or atom in body.constants or body.source(atom) in (keys, sorted_keys)
        if is_given or atom in chain or len(chain) > _MOST_EQUATIONS:
            return
        chain.add(atom)
        if atom in makers:
            for operand in makers[atom].inputs:
                visit(operand)
            order.append(makers[atom])

    visit(t)
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
            if len(eqn.outputs) != 1 or any(x is None for x in operands) or aval.size > _MOST_PRODUCTS:
                return None
            found = evaluate(eqn.full.primitive.name, eqn.full.params, [x for x in operands if x is not None], aval)
            if found is None:
                return None
            known[eqn.outputs[0]] = found
        return known.get(t)

    dtype = body.flat.values[sorted_keys].aval.dtype
    drawn = rng.integers(0, num_groups, sort.num_rows) * rng.integers(0, 2, sort.num_rows)
    is_equal = np.array_equal(_or_none(counts(drawn.astype(dtype))), np.bincount(drawn, minlength=num_groups))
    if not is_equal or (keys in makers and _chooses_of(makers[keys]) <= num_groups):
        return is_equal
    low = 0 if np.issubdtype(dtype, np.unsignedinteger) else -2
    drawn = rng.integers(low, num_groups + 2, sort.num_rows)
    expected = np.bincount(np.maximum(drawn, 0), minlength=num_groups)[:num_groups]
    return np.array_equal(_or_none(counts(drawn.astype(dtype))), expected)


def _chooses_of(eqn: Any) -> float:
    """The number of things that an equation chooses one of, by number; infinite where it does something else."""
    shape = eqn.full.invars[0].aval.shape
    if eqn.full.primitive.name not in _CHOOSING:
        return float("inf")
    axes = eqn.full.params.get("axes", (eqn.full.params.get("axis", len(shape) - 1),))
    return shape[axes[0]]


def _or_none(found: np.ndarray | None) -> np.ndarray:
    return np.empty(0) if found is None else found
