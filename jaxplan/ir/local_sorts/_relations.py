"""The equations that read sorted rows, their positions or their counts, and the kinds of their results.

Each function here adds the kinds of an equation's results to its body and returns how it runs in blocks, None where it
runs as it is; or it raises, and the sort stays whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxplan.ir._registry import operator_rule
from jaxplan.ir.local_sorts._body import Body
from jaxplan.ir.local_sorts._counting import are_counts
from jaxplan.ir.local_sorts._kinds import (
    Counts,
    Index,
    Invert,
    Kind,
    Known,
    MoveRows,
    RaggedDot,
    RowLookUp,
    Rows,
    SameIndex,
    Stack,
    Step,
)
from jaxplan.ir.local_sorts._tables import evaluate, folded, is_elementwise, is_uniform
from jaxplan.ir.microbatch._pairs import Pair
from jaxplan.ir.rules._contraction import RAGGED_DOT

_CONTROL = ("cond", "while")
_SCATTERS = ("scatter", "scatter-add")


class StaysWholeError(Exception):
    """An equation reads sorted rows in a way that depends on the order of all of them."""


def relate(body: Body, eqn: Pair, num: int) -> Step | None:
    """How an equation runs that reads rows in ``num`` blocks.

    Raises:
      StaysWholeError: it depends on the order of all rows.
    """
    name, kinds = eqn.full.primitive.name, _kinds(body, eqn)
    if name == "sort":
        return _invert(body, eqn, kinds)
    if name == "gather" and isinstance(index := kinds[1], Index):
        return _take(body, eqn, index, kinds[0], num)
    if name in _SCATTERS and isinstance(index := kinds[1], Index):
        return _add(body, eqn, index, kinds, num)
    if name == RAGGED_DOT:
        return _multiply(body, eqn, kinds)
    if any(isinstance(kind, Index) for kind in kinds):
        return _compute_index(body, eqn, kinds)
    if any(isinstance(kind, Known) for kind in kinds):
        return _compute_known(body, eqn, kinds)
    return _by_rule(body, eqn, kinds)


def _kinds(body: Body, eqn: Pair) -> list[Kind | None]:
    found = list[Kind | None]()
    for kind in map(body.kind, eqn.inputs):
        _require(not isinstance(kind, Stack))
        found.append(None if isinstance(kind, Stack) else kind)
    return found


def _require(holds: bool | np.bool_) -> None:
    if not holds:
        raise StaysWholeError


def _invert(body: Body, eqn: Pair, kinds: Sequence[Kind | None]) -> Step:
    """Positions sorted: in order they are known, and positions sorted along with them are the place of each."""
    order = kinds[0]
    if not isinstance(order, Index) or not order.is_order:
        raise StaysWholeError
    _require(np.array_equal(order.table.reshape(-1), np.arange(order.sort.num_rows)))
    _require(len(order.table.shape) == 1 and eqn.full.params["num_keys"] == 1)
    body.constants[eqn.outputs[0]] = order.table
    for atom, result in zip(eqn.inputs[1:], eqn.outputs[1:], strict=True):
        table = body.constant(atom)
        if table is None:
            raise StaysWholeError
        body.kinds[result] = Index(sort=order.sort, is_order=False, table=table)
    return Invert(sort=order.sort)


def _compute_index(body: Body, eqn: Pair, kinds: Sequence[Kind | None]) -> Step:
    """Arithmetic on positions: of each alone, so that it is known from the table of all."""
    operand, first = next((i, kind) for i, kind in enumerate(kinds) if isinstance(kind, Index))
    tables = list[np.ndarray]()
    for atom, kind in zip(eqn.inputs, kinds, strict=True):
        if isinstance(kind, Index):
            _require((kind.sort, kind.is_order) == (first.sort, first.is_order))
            tables.append(kind.table)
        else:
            table = body.constant(atom)
            if table is None or not is_uniform(table):
                raise StaysWholeError
            tables.append(table)
    _require(eqn.full.outvars[0].aval.size == first.sort.num_rows)
    _evaluate(body, eqn, tables, first)
    return SameIndex(operand=operand)


def _evaluate(body: Body, eqn: Pair, tables: Sequence[np.ndarray], like: Index | Known) -> None:
    """Note the result of an equation on tables: a constant where all its elements are the same."""
    _require(len(eqn.outputs) == 1)
    table = evaluate(eqn.full.primitive.name, eqn.full.params, tables, eqn.full.outvars[0].aval)
    if table is None:
        raise StaysWholeError
    table, out = folded(table), eqn.outputs[0]
    if is_uniform(table):
        body.constants[out] = table
    else:
        body.kinds[out] = dataclasses.replace(like, table=table)


def _compute_known(body: Body, eqn: Pair, kinds: Sequence[Kind | None]) -> None:
    """An element-wise operator on known values of rows, and on others that are all the same: it runs as it is."""
    known = next(kind for kind in kinds if isinstance(kind, Known))
    tables = [
        kind.table if isinstance(kind, Known) else body.constant(atom)
        for atom, kind in zip(eqn.inputs, kinds, strict=True)
    ]
    found = [table for table in tables if table is not None]
    is_same = [table is known.table or is_uniform(table) for table in found]
    _require(len(found) == len(tables) and all(is_same) and is_elementwise(eqn.full.primitive.name))
    _require(eqn.full.outvars[0].aval.shape == known.table.shape)
    _evaluate(body, eqn, found, known)


def _take(body: Body, eqn: Pair, index: Index, source: Kind | None, num: int) -> Step:
    """Rows taken into sorted order, or back; or positions that stand in a table."""
    look_up, out, table = RowLookUp.of_gather(eqn.full), eqn.outputs[0], body.constant(eqn.inputs[0])
    if look_up is None:
        raise StaysWholeError
    if table is not None and table.ndim == 1 and not is_uniform(table):
        at = index.table.reshape(-1)
        _require(at.min() >= 0 and at.max() < table.size)
        body.kinds[out] = Index(sort=index.sort, is_order=index.is_order, table=table[at])
        return SameIndex(operand=1)
    copies = _copies(index, eqn.full.invars[0].aval.shape[look_up.dim], num)
    if isinstance(source, Known):
        _require(index.is_order and source.sort == index.sort and source.dim == look_up.dim == look_up.result_dim)
        _require(copies == 1)
        body.constants[out] = source.table
    elif index.is_order:
        _require(source is None)
        keys, sorted_keys = body.keys.get(index.sort, (None, None))
        if copies == 1 and keys is not None and body.source(eqn.inputs[0]) == keys:
            body.sources[out] = sorted_keys
        body.kinds[out] = Rows(sort=index.sort, dim=look_up.result_dim)
    else:
        _require(source == Rows(sort=index.sort, dim=look_up.dim))
    return MoveRows(look_up=look_up, copies=copies)


def _add(body: Body, eqn: Pair, index: Index, kinds: Sequence[Kind | None], num: int) -> Step:
    """Rows added, or written, where they were before the sort, or where they are after it."""
    look_up, out, writes = RowLookUp.of_scatter(eqn.full), eqn.outputs[0], eqn.full.primitive.name == "scatter"
    if look_up is None:
        raise StaysWholeError
    copies = _copies(index, eqn.full.invars[0].aval.shape[look_up.dim], num)
    _require(copies == 1 or not writes)
    start, table = body.constant(eqn.inputs[0]), body.constant(eqn.inputs[2])
    operand, _, updates = kinds
    if index.is_order and table is not None and not is_uniform(table):
        if start is None or copies > 1:
            raise StaysWholeError
        _require(is_uniform(start) and (writes or not start[(0,) * start.ndim]))
        if table.ndim == 1:
            body.kinds[out] = Index(sort=index.sort, is_order=False, table=table)
            return Invert(sort=index.sort)
        _require(look_up.dim == look_up.result_dim and start.shape == table.shape)
        body.kinds[out] = Known(sort=index.sort, dim=look_up.dim, table=table)
        return MoveRows(look_up=look_up, copies=1)
    if index.is_order:
        _require(operand is None and updates == Rows(sort=index.sort, dim=look_up.result_dim))
    else:
        rows = Rows(sort=index.sort, dim=look_up.dim)
        _require(updates is None and (operand == rows or body.is_alike(eqn.inputs[0], look_up.dim)))
        body.kinds[out] = rows
    return MoveRows(look_up=look_up, copies=copies)


def _copies(index: Index, size: int, num: int) -> int:
    """The number of sorted rows for each of ``size`` rows; they stand one behind the other before the sort."""
    num_rows = index.sort.num_rows
    copies, rest = divmod(num_rows, size)
    _require(rest == 0 and num_rows // num % copies == 0 and (copies == 1 or index.is_order))
    _require(np.array_equal(index.table.reshape(-1), np.arange(num_rows) // copies))
    return copies


def _multiply(body: Body, eqn: Pair, kinds: Sequence[Kind | None]) -> Step:
    """A ragged dot of sorted rows with matrices of their groups, or of sorted rows with sorted rows, group by group."""
    (lhs, rhs, counts), counted = kinds, eqn.inputs[2]
    numbers = eqn.full.params["ragged_dot_dimension_numbers"]
    (lhs_contracted, rhs_contracted), batch = numbers.dot_dimension_numbers
    (dim,), counts_shape = numbers.lhs_ragged_dimensions, eqn.full.invars[2].aval.shape
    if not isinstance(lhs, Rows) or not isinstance(counted, int):
        raise StaysWholeError
    _require(lhs.dim == dim and not any(batch) and len(counts_shape) == 1)
    _require(eqn.full.params.get("group_offset") is None)
    if counts is None:
        _require(are_counts(body, counted, lhs.sort))
        body.kinds[counted] = Counts(sort=lhs.sort, num_groups=counts_shape[0])
    else:
        _require(isinstance(counts, Counts) and counts.sort == lhs.sort)
    if dim in lhs_contracted:
        _require(tuple(lhs_contracted) == (dim,) and rhs == Rows(sort=lhs.sort, dim=rhs_contracted[0]))
    else:
        free = [d for d in range(len(eqn.full.invars[0].aval.shape)) if d not in lhs_contracted]
        _require(rhs is None and free == [dim])
        body.kinds[eqn.outputs[0]] = Rows(sort=lhs.sort, dim=0)
    return RaggedDot(counts=counted)


def _by_rule(body: Body, eqn: Pair, kinds: Sequence[Kind | None]) -> None:
    """An operator that computes each row alone, or joins all rows in any order: it runs as it is."""
    _require(eqn.full.primitive.name not in _CONTROL)
    ins, outs = [v.aval for v in eqn.full.invars], [v.aval for v in eqn.full.outvars]
    rule = operator_rule(eqn.full.primitive.name, ins, outs, eqn.full.params)
    rows = {i: kind for i, kind in enumerate(kinds) if isinstance(kind, Rows)}
    dimensions = {rule.operands[i][kind.dim] for i, kind in rows.items()}
    sorts = {kind.sort for kind in rows.values()}
    _require(len(dimensions) == len(sorts) == 1 and all(len(factors) == 1 for factors in dimensions))
    ((factor,),), (sort,) = dimensions, sorts
    kind = rule.factors[factor].kind
    _require(kind in ("map", "reduce"))
    _require(factor not in {f for f, _ in rule.indexed} | {window.factor for window in rule.windows})
    for i, dims in enumerate(rule.operands):
        if i not in rows:
            _require(all(factor not in of or body.is_alike(eqn.inputs[i], d) for d, of in enumerate(dims)))
    for t, dims in zip(eqn.outputs, rule.results, strict=True):
        along = [d for d, factors in enumerate(dims) if factor in factors]
        _require(len(along) == (kind == "map") and all(dims[d] == (factor,) for d in along))
        for dim in along:
            body.kinds[t] = Rows(sort=sort, dim=dim)
