"""Whether a value counts the rows of each key: the equations between the two are run on keys drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxplan.ir.local_sorts._body import Body
from jaxplan.ir.local_sorts._kinds import Sort, SortRows
from jaxplan.ir.local_sorts._tables import evaluate

_SAME = frozenset({"reshape", "convert_element_type", "squeeze", "expand_dims", "copy", "optimization_barrier"})
"""Equations with the same elements in the same order."""
_CHOOSING = frozenset({"top_k", "argmax", "argmin", "approx_top_k"})
_MOST_EQUATIONS = 40
_MOST_PRODUCTS = 1 << 28


def are_counts(body: Body, t: int, sort: Sort) -> bool:
    """Whether a value of the body counts, for each key from 0, the rows of a sort in the same body."""
    makers = {out: eqn for eqn in body.flat.equations for out in eqn.outputs}
    sorting = next((p for p, step in body.steps.items() if isinstance(step, SortRows) and step.sort == sort), None)
    if sorting is None:
        return False
    keys, sorted_keys = body.flat.equations[sorting].inputs[0], body.flat.equations[sorting].outputs[0]
    source = _source(makers, keys)
    chain, order = set[int](), list[Any]()

    def visit(atom: Any) -> None:
        if not isinstance(atom, int) or atom in chain or atom in body.constants or _source(makers, atom) == source:
            return
        if atom == sorted_keys or len(chain) > _MOST_EQUATIONS:
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
        known = {sorted_keys: np.sort(drawn)}

        def read(atom: Any) -> np.ndarray | None:
            if isinstance(atom, int) and atom not in known and _source(makers, atom) == source:
                aval = body.flat.values[atom].aval
                return drawn.astype(aval.dtype).reshape(aval.shape)
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

    dtype = body.flat.values[keys].aval.dtype
    drawn = rng.integers(0, num_groups, sort.num_rows) * rng.integers(0, 2, sort.num_rows)
    is_equal = np.array_equal(_or_none(counts(drawn.astype(dtype))), np.bincount(drawn, minlength=num_groups))
    if not is_equal or (source in makers and _chooses_of(makers[source]) <= num_groups):
        return is_equal
    low = 0 if np.issubdtype(dtype, np.unsignedinteger) else -2
    drawn = rng.integers(low, num_groups + 2, sort.num_rows)
    expected = np.bincount(np.maximum(drawn, 0), minlength=num_groups)[:num_groups]
    return np.array_equal(_or_none(counts(drawn.astype(dtype))), expected)


def _source(makers: dict[int, Any], atom: Any) -> Any:
    """The value that has the same elements in the same order."""
    while isinstance(atom, int) and atom in makers and makers[atom].full.primitive.name in _SAME:
        atom = makers[atom].inputs[0]
    return atom


def _chooses_of(eqn: Any) -> float:
    """The number of things that an equation chooses one of, by number; infinite where it does something else."""
    shape = eqn.full.invars[0].aval.shape
    if eqn.full.primitive.name not in _CHOOSING:
        return float("inf")
    axes = eqn.full.params.get("axes", (eqn.full.params.get("axis", len(shape) - 1),))
    return shape[axes[0]]


def _or_none(found: np.ndarray | None) -> np.ndarray:
    return np.empty(0) if found is None else found
