"""A step of which sorts of rows run in blocks, each of which can be a device's own.

Sorted rows keep their shape, block after block; positions count from the start of their block. So all operators on
sorted rows stay as they are but for the few that relate them to other rows: the sort, its inverse, look-ups and updates
at its positions, and ragged dots, which get the counts of each block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxplan.core import _compat
from jaxplan.ir.local_sorts._analysis import analyse
from jaxplan.ir.local_sorts._body import Body
from jaxplan.ir.local_sorts._kinds import (
    Counts,
    Index,
    Invert,
    MoveRows,
    RaggedDot,
    RowLookUp,
    SameIndex,
    Sort,
    SortRows,
    Stack,
    Step,
)
from jaxplan.ir.microbatch._pairs import Pair, inner_jaxprs
from jaxplan.ir.rules._contraction import RAGGED_DOT


def sort_in_blocks(closed: Any, num: int) -> Any:
    """The closed jaxpr of a step with its rows for ragged dots sorted in ``num`` blocks; itself where none may be.

    Results are equal up to the order of additions.
    """
    body = analyse(closed, num) if _has(closed.jaxpr, RAGGED_DOT) else None
    if body is None:
        return closed

    def run(*inputs: Any) -> list[Any]:
        outputs, _ = _Run(body, num, inputs, {}).run()
        return outputs

    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in closed.in_avals]
    return jax.make_jaxpr(run)(*avals)


def _has(jaxpr: Any, name: str) -> bool:
    """Whether a jaxpr holds an equation of a primitive, at any depth."""
    return any(
        eqn.primitive.name == name
        or any(_has(getattr(inner, "jaxpr", inner), name) for _, inner in inner_jaxprs(eqn.params))
        for eqn in jaxpr.eqns
    )


class _Run:
    """One execution of a body; ``counts``: input -> numbers of rows per block and key, ``(num, groups)``."""

    def __init__(self, body: Body, num: int, inputs: Sequence[Any], counts: dict[int, Any]) -> None:
        self.body, self.num, self.counts = body, num, counts
        self.known: dict[int, Any] = dict(enumerate(inputs))
        values = body.flat.values
        self.known |= {t: value.constant for t, value in enumerate(values) if value.constant is not None}
        self.keys: dict[Sort, Any] = {}

    def run(self) -> tuple[list[Any], dict[int, Any]]:
        """The results, and the counts per block of those that are counts by their position."""
        for place, eqn in enumerate(self.body.flat.equations):
            inner, step = self.body.inner.get(place), self.body.steps.get(place)
            if inner is not None and inner.is_changed:
                results = self._inner(eqn, inner)
            elif step is not None:
                with _compat.context_of(eqn.full, eqn.stack, keeps_mesh=True):
                    results = self._step(eqn, step)
            else:
                operands, params = [self._read(atom) for atom in eqn.inputs], self._params(eqn)
                results = _compat.bind_like(eqn.full, eqn.full.primitive, params, operands, eqn.stack)
            self.known.update(zip(eqn.outputs, results, strict=True))
        outputs = self.body.flat.outputs
        counts = {i: self._counts(t) for i, t in enumerate(outputs) if isinstance(self.body.kind(t), Counts)}
        return [self._read(atom) for atom in outputs], counts

    def _read(self, atom: Any) -> Any:
        if not isinstance(atom, int):
            return atom.val
        found = self.known.get(atom)
        if found is None:  # computed of positions, and known
            table, dtype = self.body.constants[atom], self.body.flat.values[atom].aval.dtype
            found = jnp.asarray(np.ascontiguousarray(table), dtype)
        return found

    def _params(self, eqn: Pair) -> dict[str, Any]:
        """Those of the equation; keys and positions that were sorted are no longer, in blocks."""
        is_sorted = eqn.full.params.get("indices_are_sorted") and self.body.kind(eqn.inputs[1]) is not None
        return {**eqn.full.params, "indices_are_sorted": False} if is_sorted else dict(eqn.full.params)

    def _counts(self, t: int) -> Any:
        """Rows of each block by key."""
        if t not in self.counts:
            kind = self.body.kinds[t]
            assert isinstance(kind, Counts)
            keys = jnp.maximum(self.keys[kind.sort], 0)
            is_of = keys[:, :, None] == jnp.arange(kind.num_groups, dtype=keys.dtype)
            self.counts[t] = jnp.sum(is_of, 1, dtype=self.body.flat.values[t].aval.dtype)
        return self.counts[t]

    def _step(self, eqn: Pair, step: Step) -> list[Any]:
        if isinstance(step, SortRows):
            return self._sort(eqn, step.sort)
        if isinstance(step, Invert):
            return self._invert(eqn, step.sort)
        if isinstance(step, SameIndex):
            (out,) = eqn.outputs
            index = self._read(eqn.inputs[step.operand])
            aval = self.body.flat.values[out].aval
            return [None if out in self.body.constants else index.reshape(aval.shape)]
        first, second, *others = [self._read(atom) for atom in eqn.inputs]
        if isinstance(step, MoveRows):
            return [(self._add if others else self._take)(eqn, step, first, second, *others)]
        assert isinstance(step, RaggedDot)
        return [self._multiply(eqn, first, second, self._counts(step.counts))]

    def _sort(self, eqn: Pair, sort: Sort) -> list[Any]:
        shape = self.num, sort.num_rows // self.num
        atoms = [atom for atom, t in zip(eqn.inputs, eqn.outputs, strict=True) if not self._is_index(t)]
        blocks = [self._read(atom).reshape(shape) for atom in atoms]
        self.keys[sort] = blocks[0]
        *rows, order = lax.sort((*blocks, lax.broadcasted_iota(np.int32, shape, 1)), dimension=1, num_keys=1)
        found = iter([x.reshape(sort.num_rows) for x in rows])
        return [order.reshape(sort.num_rows) if self._is_index(t) else next(found) for t in eqn.outputs]

    def _is_index(self, t: int) -> bool:
        return isinstance(self.body.kinds.get(t), Index)

    def _invert(self, eqn: Pair, sort: Sort) -> list[Any]:
        """Places after the sort; the first result of a sort is known."""
        shape = self.num, sort.num_rows // self.num
        at = lax.broadcasted_iota(np.int32, shape, 1)
        if eqn.full.primitive.name == "sort":
            order = self._read(eqn.inputs[0]).reshape(shape)
            place = lax.sort((order, at), dimension=1, num_keys=1)[1].reshape(sort.num_rows)
            return [None, *(place for _ in eqn.outputs[1:])]
        order, bind, params = self._read(eqn.inputs[1]).reshape(*shape, 1), eqn.full.primitive.bind, self._params(eqn)
        place = jax.vmap(lambda i, x: bind(jnp.zeros_like(x), i, x, **params))(order, at)
        return [place.reshape(sort.num_rows)]

    def _take(self, eqn: Pair, step: MoveRows, operand: Any, index: Any) -> Any:
        dim, bind, params = step.look_up.dim, eqn.full.primitive.bind, self._params(eqn)
        at = self._positions(index, step.copies)
        taken = jax.vmap(lambda x, i: bind(x, i, **params), (dim, 0))(self._cut(operand, dim), at)
        return _joined(taken, step.look_up.result_dim)

    def _add(self, eqn: Pair, step: MoveRows, operand: Any, index: Any, updates: Any) -> Any:
        look_up: RowLookUp = step.look_up
        bind, params, at = eqn.full.primitive.bind, self._params(eqn), self._positions(index, step.copies)
        added = jax.vmap(lambda x, i, u: bind(x, i, u, **params), (look_up.dim, 0, look_up.result_dim))(
            self._cut(operand, look_up.dim), at, self._cut(updates, look_up.result_dim)
        )
        return _joined(added, look_up.dim)

    def _positions(self, index: Any, copies: int) -> Any:
        at = index.reshape(self.num, -1, 1)
        return at // copies if copies > 1 else at

    def _cut(self, x: Any, dim: int) -> Any:
        """A dimension in blocks: ``(..., num * n, ...)`` to ``(..., num, n, ...)``."""
        return x.reshape(*x.shape[:dim], self.num, x.shape[dim] // self.num, *x.shape[dim + 1 :])

    def _multiply(self, eqn: Pair, lhs: Any, rhs: Any, counts: Any) -> Any:
        """One ragged dot of all blocks, each with its own counts; those of a weight gradient are added up."""
        params = dict(eqn.full.params)
        numbers = params["ragged_dot_dimension_numbers"]
        ((lhs_contracted, rhs_contracted), _), (dim,) = numbers.dot_dimension_numbers, numbers.lhs_ragged_dimensions
        lhs_dims = [d + (d >= dim) for d in lhs_contracted]
        rhs_dims = list(rhs_contracted)
        if dim in lhs_contracted:
            (rhs_dim,) = rhs_contracted
            rhs, lhs_dims, rhs_dims = self._cut(rhs, rhs_dim), [dim, dim + 1], [rhs_dim, rhs_dim + 1]
        params["ragged_dot_dimension_numbers"] = lax.RaggedDotDimensionNumbers(
            dot_dimension_numbers=((lhs_dims, rhs_dims), ([], [])),
            lhs_ragged_dimensions=[dim + 1],
            rhs_group_dimensions=list(numbers.rhs_group_dimensions),
        )
        result = eqn.full.primitive.bind(self._cut(lhs, dim), rhs, counts, **params)
        return result if dim in lhs_contracted else _joined(result, 0)

    def _inner(self, eqn: Pair, inner: Body) -> list[Any]:
        if eqn.full.primitive.name == "scan":
            return self._scan(eqn, inner)
        operands = [self._read(atom) for atom in eqn.inputs]
        counts = {i: self._counts(t) for i, t in enumerate(eqn.inputs) if isinstance(self.body.kind(t), Counts)}
        params = eqn.full.params
        with _compat.context_of(eqn.full, eqn.stack, keeps_mesh=True):
            if params.get("differentiated") and params.get("prevent_cse", True) is not False:
                operands = list(lax.optimization_barrier(tuple(operands)))
            results, found = _Run(inner, self.num, operands, counts).run()
        self.counts |= {eqn.outputs[i]: x for i, x in found.items()}
        return results

    def _scan(self, eqn: Pair, inner: Body) -> list[Any]:
        num_consts, num_carry = _compat.scan_counts(eqn.full.params, len(eqn.inputs))
        start = num_consts + num_carry
        operands = [self._read(atom) for atom in eqn.inputs]
        kinds = dict(enumerate(map(self.body.kind, eqn.inputs)))
        fixed = {i: self._counts(eqn.inputs[i]) for i, kind in kinds.items() if isinstance(kind, Counts) and i < start}
        stacks = {i for i, kind in kinds.items() if isinstance(kind, Stack) and isinstance(kind.of, Counts)}
        sliced = {i: self.counts[eqn.inputs[i]] for i in stacks}

        def trip(carry: list[Any], slices: Any) -> tuple[list[Any], Any]:
            own, counts = slices
            results, found = _Run(inner, self.num, [*operands[:num_consts], *carry, *own], fixed | counts).run()
            return results[:num_carry], (results[num_carry:], found)

        carry, (stacks, found) = _compat.scan_like(
            eqn.full, trip, operands[num_consts:start], (operands[start:], sliced), eqn.stack, eqn.full.params["length"]
        )
        self.counts |= {eqn.outputs[i]: x for i, x in found.items()}
        return [*carry, *stacks]


def _joined(x: Any, dim: int) -> Any:
    """The blocks in front as one dimension again: ``(num, ..., n, ...)`` to ``(..., num * n, ...)``."""
    x = jnp.moveaxis(x, 0, dim)
    return x.reshape(*x.shape[:dim], x.shape[dim] * x.shape[dim + 1], *x.shape[dim + 2 :])
