"""Which sorts of rows may run in blocks: those of which nothing shows but their inverse.

Tokens are sorted by their expert, multiplied group by group, and sorted back. Any order of the rows of a group gives
the same result, so that blocks of tokens may be sorted each by itself, where it can be shown that between the sort and
its inverse each row is computed of itself alone. Every value there is of one of the kinds of `_kinds`; an equation that
reads one in another way makes its sort stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxplan.core import _compat
from jaxplan.ir._registry import operator_rule
from jaxplan.ir.local_sorts._counting import are_counts
from jaxplan.ir.local_sorts._kinds import (
    AddRows,
    Counts,
    Index,
    Invert,
    Kind,
    RaggedDot,
    RowLookUp,
    Rows,
    SameIndex,
    Sort,
    SortRows,
    Stack,
    Step,
    TakeRows,
)
from jaxplan.ir.local_sorts._tables import evaluate, folded, is_uniform
from jaxplan.ir.microbatch._pairs import Pair, Paired

BODIES = ("scan", "checkpoint", "remat", "remat2")
"""Equations of which the bodies are looked into."""
_CONTROL = ("cond", "while")
_SCATTERS = ("scatter", "scatter-add")


class _StaysWholeError(Exception):
    """An equation reads sorted rows in a way that depends on the order of all of them."""


@dataclass(slots=True, eq=False)
class Body:
    """A jaxpr, calls inlined, with the kinds of its values.

    Attributes:
      place: positions of the equations around it.
      kinds: of values between a sort and its inverse.
      constants: values that are known.
      uniform: value -> dimensions along which all its elements are alike.
      steps: position of an equation that runs in blocks -> how.
      inner: position of a loop or checkpoint -> its body.
    """

    flat: Paired
    place: tuple[int, ...] = ()
    kinds: dict[int, Kind] = field(default_factory=dict)
    constants: dict[int, np.ndarray] = field(default_factory=dict)
    uniform: dict[int, frozenset[int]] = field(default_factory=dict)
    steps: dict[int, Step] = field(default_factory=dict)
    inner: dict[int, Body] = field(default_factory=dict)

    @property
    def is_changed(self) -> bool:
        return bool(self.steps or self.kinds or any(body.is_changed for body in self.inner.values()))

    def kind(self, atom: Any) -> Kind | None:
        return self.kinds.get(atom) if isinstance(atom, int) else None

    def constant(self, atom: Any) -> np.ndarray | None:
        return self.constants.get(atom) if isinstance(atom, int) else _known(atom.val)


def analyse(closed: Any, num: int) -> Body | None:
    """The step with the kinds of its values; None where no sort may run in ``num`` blocks."""
    kept: set[Sort] = set()
    while True:
        reader = _Reader(num, frozenset(kept))
        body = Body(flat=Paired.of(closed, closed))
        reader.read(body)
        reader.fail(body.kind(atom) for atom in body.flat.outputs)
        failed = reader.failed | (reader.found - reader.used)
        if not failed:
            return body if reader.found else None
        kept |= failed


class _Reader:
    """One reading of a step; ``kept``: sorts that stay whole."""

    def __init__(self, num: int, kept: frozenset[Sort]) -> None:
        self.num, self.kept = num, kept
        self.found: set[Sort] = set()
        self.used: set[Sort] = set()
        self.failed: set[Sort] = set()

    def fail(self, kinds: Iterable[Kind | None]) -> None:
        self.failed |= {_sort_of(kind) for kind in kinds if kind is not None and not _is_counts(kind)}

    def read(self, body: Body) -> None:
        for t, value in enumerate(body.flat.values):
            if value.constant is not None and (known := _known(value.constant)) is not None:
                body.constants[t] = known
        for place, eqn in enumerate(body.flat.equations):
            kinds = [body.kind(atom) for atom in eqn.inputs]
            try:
                if eqn.full.primitive.name in BODIES:
                    self._read_inner(body, place, eqn)
                elif not any(kind is not None and not _is_counts(kind) for kind in kinds):
                    self._read_plain(body, place, eqn)
                else:
                    self._read_special(body, place, eqn)
            except _StaysWholeError:
                self.fail(kinds)

    def _read_plain(self, body: Body, place: int, eqn: Pair) -> None:
        """An equation that reads no sorted rows: perhaps a sort, or known, or the same along a dimension."""
        name, out = eqn.full.primitive.name, eqn.outputs[0]
        if name == "sort" and self._starts(body, place, eqn):
            return
        if len(eqn.outputs) == 1:
            known = [body.constant(atom) for atom in eqn.inputs]
            if all(x is not None for x in known):
                value = evaluate(name, eqn.full.params, [x for x in known if x is not None], eqn.full.outvars[0].aval)
                if value is not None:
                    body.constants[out] = value
            body.uniform[out] = _uniform_dims(body, eqn)

    def _starts(self, body: Body, place: int, eqn: Pair) -> bool:
        """Whether it is a sort of rows that may run in blocks."""
        (num_rows, *others), params = eqn.full.invars[0].aval.shape, eqn.full.params
        is_integer = np.issubdtype(eqn.full.invars[0].aval.dtype, np.integer)
        if others or params["num_keys"] != 1 or num_rows % self.num or num_rows == self.num or not is_integer:
            return False
        sort = Sort(place=(*body.place, place), num_rows=num_rows)
        if sort in self.kept or not isinstance(eqn.inputs[0], int) or eqn.inputs[0] in body.constants:
            return False
        self.found.add(sort)
        body.steps[place] = SortRows(sort=sort)
        for atom, result in zip(eqn.inputs, eqn.outputs, strict=True):
            table = body.constant(atom)
            body.kinds[result] = (
                Rows(sort=sort, dim=0) if table is None else Index(sort=sort, is_order=True, table=table)
            )
        return True

    def _read_special(self, body: Body, place: int, eqn: Pair) -> None:
        name = eqn.full.primitive.name
        kinds = [body.kind(atom) for atom in eqn.inputs]
        if name == "sort":
            body.steps[place] = self._invert_by_sort(body, eqn)
        elif name == "gather" and isinstance(kinds[1], Index):
            body.steps[place] = self._take(body, eqn, kinds[1])
        elif name in _SCATTERS and isinstance(kinds[1], Index):
            body.steps[place] = self._add(body, eqn, kinds[1])
        elif name == "ragged_dot_general":
            body.steps[place] = self._multiply(body, eqn)
        elif any(isinstance(kind, Index) for kind in kinds):
            body.steps[place] = self._compute_index(body, eqn)
        else:
            self._by_rule(body, eqn)

    def _invert_by_sort(self, body: Body, eqn: Pair) -> Step:
        order = body.kind(eqn.inputs[0])
        tables = [body.constant(atom) for atom in eqn.inputs[1:]]
        if not _is_identity(order) or not order.is_order or eqn.full.params["num_keys"] != 1:
            raise _StaysWholeError
        body.constants[eqn.outputs[0]] = order.table
        for table, result in zip(tables, eqn.outputs[1:], strict=True):
            if table is None:
                raise _StaysWholeError
            body.kinds[result] = Index(sort=order.sort, is_order=False, table=table)
        return Invert(sort=order.sort)

    def _compute_index(self, body: Body, eqn: Pair) -> Step:
        """Arithmetic on positions."""
        kinds = [body.kind(atom) for atom in eqn.inputs]
        indices = [kind for kind in kinds if isinstance(kind, Index)]
        first, tables = indices[0], list[np.ndarray]()
        for atom, kind in zip(eqn.inputs, kinds, strict=True):
            table = kind.table if isinstance(kind, Index) else body.constant(atom)
            if table is None or not (isinstance(kind, Index) or is_uniform(table)):
                raise _StaysWholeError
            tables.append(table)
        if any((kind.sort, kind.is_order) != (first.sort, first.is_order) for kind in indices):
            raise _StaysWholeError
        aval, out = eqn.full.outvars[0].aval, eqn.outputs[0]
        known = len(eqn.outputs) == 1 and aval.size == first.sort.num_rows
        table = evaluate(eqn.full.primitive.name, eqn.full.params, tables, aval) if known else None
        if table is None:
            raise _StaysWholeError
        table = folded(table)
        if is_uniform(table):
            body.constants[out] = table
        else:
            body.kinds[out] = Index(sort=first.sort, is_order=first.is_order, table=table)
        return SameIndex(operand=next(i for i, kind in enumerate(kinds) if isinstance(kind, Index)))

    def _take(self, body: Body, eqn: Pair, index: Index) -> Step:
        """Rows taken at positions."""
        look_up, out = RowLookUp.of_gather(eqn.full), eqn.outputs[0]
        table, source = body.constant(eqn.inputs[0]), body.kind(eqn.inputs[0])
        if look_up is None:
            raise _StaysWholeError
        if table is not None and table.ndim == 1 and not is_uniform(table):
            at = index.table.reshape(-1)
            if at.min() < 0 or at.max() >= table.size:
                raise _StaysWholeError
            body.kinds[out] = Index(sort=index.sort, is_order=index.is_order, table=table[at])
            return SameIndex(operand=1)
        copies = self._copies(index, eqn.full.invars[0].aval.shape[look_up.dim])
        if index.is_order and source is None:
            body.kinds[out] = Rows(sort=index.sort, dim=look_up.result_dim)
        elif source != (Rows(sort=index.sort, dim=look_up.dim)) or index.is_order:
            raise _StaysWholeError
        return TakeRows(look_up=look_up, copies=copies)

    def _add(self, body: Body, eqn: Pair, index: Index) -> Step:
        """Rows added, or written, at positions."""
        look_up, out = RowLookUp.of_scatter(eqn.full), eqn.outputs[0]
        operand, _, updates = (body.kind(atom) for atom in eqn.inputs)
        if look_up is None:
            raise _StaysWholeError
        size = eqn.full.invars[0].aval.shape[look_up.dim]
        copies = self._copies(index, size)
        if copies > 1 and eqn.full.primitive.name == "scatter":
            raise _StaysWholeError
        start, table = body.constant(eqn.inputs[0]), body.constant(eqn.inputs[2])
        if table is not None and not is_uniform(table):
            is_fill = start is not None and is_uniform(start) and table.ndim == 1
            is_fill &= eqn.full.primitive.name == "scatter" or (start is not None and not start.any())
            if not is_fill or copies > 1 or not index.is_order:
                raise _StaysWholeError
            body.kinds[out] = Index(sort=index.sort, is_order=False, table=table)
            return Invert(sort=index.sort)
        if index.is_order:
            if updates != Rows(sort=index.sort, dim=look_up.result_dim) or operand is not None:
                raise _StaysWholeError
        else:
            is_fill = start is not None and is_uniform(start, look_up.dim)
            is_fill |= look_up.dim in body.uniform.get(eqn.inputs[0], frozenset())
            if updates is not None or not (is_fill or operand == Rows(sort=index.sort, dim=look_up.dim)):
                raise _StaysWholeError
            body.kinds[out] = Rows(sort=index.sort, dim=look_up.dim)
        return AddRows(look_up=look_up, copies=copies)

    def _copies(self, index: Index, size: int) -> int:
        """How many sorted rows there are for each of ``size`` rows, at consecutive positions before the sort."""
        copies, rest = divmod(index.sort.num_rows, size)
        block = index.sort.num_rows // self.num
        if rest or block % copies or (copies > 1 and not index.is_order):
            raise _StaysWholeError
        if not np.array_equal(index.table.reshape(-1), np.arange(index.sort.num_rows) // copies):
            raise _StaysWholeError
        return copies

    def _multiply(self, body: Body, eqn: Pair) -> Step:
        lhs, rhs, counts = (body.kind(atom) for atom in eqn.inputs)
        numbers = eqn.full.params["ragged_dot_dimension_numbers"]
        (lhs_contracted, rhs_contracted), (lhs_batch, _) = numbers.dot_dimension_numbers
        (dim,), at = numbers.lhs_ragged_dimensions, eqn.inputs[2]
        if not isinstance(lhs, Rows) or lhs.dim != dim or lhs_batch or not isinstance(at, int):
            raise _StaysWholeError
        if eqn.full.params.get("group_offset") is not None or len(eqn.full.invars[2].aval.shape) != 1:
            raise _StaysWholeError
        if counts is None:
            if not are_counts(body, at, lhs.sort):
                raise _StaysWholeError
            body.kinds[at] = Counts(sort=lhs.sort, num_groups=eqn.full.invars[2].aval.shape[0])
        elif not isinstance(counts, Counts) or counts.sort != lhs.sort:
            raise _StaysWholeError
        if dim in lhs_contracted:
            if tuple(lhs_contracted) != (dim,) or rhs != Rows(sort=lhs.sort, dim=rhs_contracted[0]):
                raise _StaysWholeError
        elif rhs is not None:
            raise _StaysWholeError
        else:
            free = [d for d in range(len(eqn.full.invars[0].aval.shape)) if d not in lhs_contracted]
            if free != [dim]:
                raise _StaysWholeError
            body.kinds[eqn.outputs[0]] = Rows(sort=lhs.sort, dim=0)
        self.used.add(lhs.sort)
        return RaggedDot(counts=at)

    def _by_rule(self, body: Body, eqn: Pair) -> None:
        """An operator that computes each row of its own operands alone, or joins all rows in any order."""
        ins, outs = [v.aval for v in eqn.full.invars], [v.aval for v in eqn.full.outvars]
        kinds = [body.kind(atom) for atom in eqn.inputs]
        rows = {i: kind for i, kind in enumerate(kinds) if isinstance(kind, Rows)}
        if eqn.full.primitive.name in _CONTROL or any(isinstance(kind, Stack) for kind in kinds):
            raise _StaysWholeError
        rule = operator_rule(eqn.full.primitive.name, ins, outs, eqn.full.params)
        found = {rule.operands[i][kind.dim] for i, kind in rows.items()}
        sorts = {kind.sort for kind in rows.values()}
        if len(found) != 1 or len(sorts) != 1 or len(dimension := found.pop()) != 1:
            raise _StaysWholeError
        ((factor,), (sort,)) = dimension, sorts
        touched = {f for f, _ in rule.indexed} | {window.factor for window in rule.windows}
        is_plain = rule.factors[factor].kind in ("map", "reduce") and factor not in touched
        for i, dims in enumerate(rule.operands):
            if i not in rows:
                is_plain &= all(factor not in of or _is_alike(body, eqn.inputs[i], d) for d, of in enumerate(dims))
        for t, dims in zip(eqn.outputs, rule.results, strict=True):
            along = [d for d, of in enumerate(dims) if factor in of]
            is_plain &= len(along) <= 1 and all(dims[d] == (factor,) for d in along)
            is_plain &= bool(along) == (rule.factors[factor].kind == "map")
            if is_plain and along:
                body.kinds[t] = Rows(sort=sort, dim=along[0])
        if not is_plain:
            raise _StaysWholeError

    def _read_inner(self, body: Body, place: int, eqn: Pair) -> None:
        """A loop over layers, or a part that is recomputed."""
        closed = eqn.full.params["jaxpr"]
        if not hasattr(closed, "consts"):
            closed = _compat.ClosedJaxpr(closed, ())
        inner = Body(flat=Paired.of(closed, closed), place=(*body.place, place))
        is_scan = eqn.full.primitive.name == "scan"
        consts, carry = _compat.scan_counts(eqn.full.params, len(eqn.inputs)) if is_scan else (len(eqn.inputs), 0)
        for i, atom in enumerate(eqn.inputs):
            kind, constant = body.kind(atom), body.constant(atom)
            if i < consts:
                inner.kinds |= {i: kind} if kind is not None else {}
                inner.constants |= {i: constant} if constant is not None else {}
            elif isinstance(kind, Stack) and i >= consts + carry:
                inner.kinds[i] = kind.of
            else:
                self.fail([kind])
        self.read(inner)
        body.inner[place] = inner
        carry = carry if is_scan else 0
        self.fail(inner.kind(atom) for atom in inner.flat.outputs[:carry])
        for t, atom in zip(eqn.outputs[carry:], inner.flat.outputs[carry:], strict=True):
            kind = inner.kind(atom)
            if is_scan and isinstance(kind, Stack):
                self.fail([kind])
            elif kind is not None:
                body.kinds[t] = Stack(of=kind) if is_scan else kind


def _uniform_dims(body: Body, eqn: Pair) -> frozenset[int]:
    """Dimensions along which a result is the same: those that a broadcast adds, and what keeps them."""
    name, aval = eqn.full.primitive.name, eqn.full.outvars[0].aval
    if name == "broadcast_in_dim":
        return frozenset(range(len(aval.shape))) - set(eqn.full.params["broadcast_dimensions"])
    if name in ("convert_element_type", "copy", "neg", "optimization_barrier") and isinstance(eqn.inputs[0], int):
        return body.uniform.get(eqn.inputs[0], frozenset())
    return frozenset()


def _is_alike(body: Body, atom: Any, dim: int) -> bool:
    """Whether a value is the same along a dimension."""
    known = body.constant(atom)
    return (known is not None and is_uniform(known, dim)) or dim in body.uniform.get(atom, frozenset())


def _is_identity(kind: Kind | None) -> bool:
    return isinstance(kind, Index) and np.array_equal(kind.table.reshape(-1), np.arange(kind.sort.num_rows))


def _is_counts(kind: Kind) -> bool:
    return isinstance(kind.of if isinstance(kind, Stack) else kind, Counts)


def _sort_of(kind: Kind) -> Sort:
    return kind.of.sort if isinstance(kind, Stack) else kind.sort


def _known(value: Any) -> np.ndarray | None:
    """A literal or constant as an array."""
    if isinstance(value, np.ndarray | np.generic | int | float | bool):
        return np.asarray(value)
    return None
