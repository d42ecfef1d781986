"""Which sorts of rows may run in blocks: those of which nothing shows but their inverse.

Tokens are sorted by their expert, multiplied group by group, and sorted back. Any order of the rows of a group gives
the same result, so that blocks of tokens may be sorted each by itself, where it can be shown that between the sort and
its inverse each row is computed of itself alone. Every value there is of one of the kinds of `_kinds`; an equation that
reads one in another way (`_relations`) makes its sort stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxplan.core import _compat
from jaxplan.ir.local_sorts._body import Body, known_value
from jaxplan.ir.local_sorts._counting import keeps_integers
from jaxplan.ir.local_sorts._kinds import Counts, Index, Kind, Rows, Sort, SortRows, Stack
from jaxplan.ir.local_sorts._relations import StaysWholeError, relate
from jaxplan.ir.local_sorts._tables import evaluate, is_uniform
from jaxplan.ir.microbatch._pairs import Pair, Paired
from jaxplan.ir.rules._contraction import RAGGED_DOT

BODIES = ("scan", "checkpoint", "remat", "remat2")
"""Equations of which the bodies are looked into."""
_KEEPING = ("convert_element_type", "copy", "neg", "optimization_barrier")
"""Operators of one operand, along each dimension of which their result varies as that does."""


def analyse(closed: Any, num: int) -> Body | None:
    """The step with the kinds of its values; None where no sort may run in ``num`` blocks."""
    whole: set[Sort] = set()
    while True:
        reader = _Reader(num, frozenset(whole))
        body = Body(flat=Paired.of(closed, closed))
        reader.read(body)
        reader.keep_whole(body.kind(atom) for atom in body.flat.outputs)
        failed = reader.failed | (reader.found - reader.multiplied)
        if not failed:
            return body if reader.found else None
        whole |= failed


class _Reader:
    """One reading of a step.

    Attributes:
      num: number of blocks; ``whole``: sorts that are known to stay whole.
      found: the others; ``failed``: those of them that do; ``multiplied``: those of which a ragged dot reads the rows.
    """

    def __init__(self, num: int, whole: frozenset[Sort]) -> None:
        self.num, self.whole = num, whole
        self.found: set[Sort] = set()
        self.multiplied: set[Sort] = set()
        self.failed: set[Sort] = set()

    def keep_whole(self, kinds: Iterable[Kind | Stack | None]) -> None:
        """Note that something reads values of these kinds that depends on the order of all rows."""
        self.failed |= {kind.sort for kind in kinds if kind is not None and not _is_counts(kind)}

    def read(self, body: Body) -> None:
        for t, value in enumerate(body.flat.values):
            if value.constant is not None and (known := known_value(value.constant)) is not None:
                body.constants[t] = known
        for place, eqn in enumerate(body.flat.equations):
            kinds = [body.kind(atom) for atom in eqn.inputs]
            if keeps_integers(eqn) and isinstance(eqn.inputs[0], int):
                body.sources[eqn.outputs[0]] = body.source(eqn.inputs[0])
            if eqn.full.primitive.name in BODIES:
                self._read_inner(body, place, eqn)
            elif all(kind is None or _is_counts(kind) for kind in kinds):
                self._read_plain(body, place, eqn)
            else:
                try:
                    step = relate(body, eqn, self.num)
                except StaysWholeError:
                    self.keep_whole(kinds)
                    continue
                if step is not None:
                    body.steps[place] = step
                if eqn.full.primitive.name == RAGGED_DOT:
                    self.multiplied |= {kind.sort for kind in kinds if isinstance(kind, Rows)}

    def _read_plain(self, body: Body, place: int, eqn: Pair) -> None:
        """An equation that reads no sorted rows: perhaps a sort, or known, or the same along a dimension."""
        name, out, aval = eqn.full.primitive.name, eqn.outputs[0], eqn.full.outvars[0].aval
        if (name == "sort" and self._starts(body, place, eqn)) or len(eqn.outputs) != 1:
            return
        known = [body.constant(atom) for atom in eqn.inputs]
        if (found := _all(known)) is not None:
            value = evaluate(name, eqn.full.params, found, aval)
            body.constants |= {} if value is None else {out: value}
        if name == "broadcast_in_dim":
            body.alike[out] = frozenset(range(len(aval.shape))) - set(eqn.full.params["broadcast_dimensions"])
        elif name in _KEEPING:
            body.alike[out] = body.alike_dims(eqn.inputs[0])

    def _starts(self, body: Body, place: int, eqn: Pair) -> bool:
        """Whether it is a sort of rows that may run in blocks."""
        keys, params = eqn.full.invars[0].aval, eqn.full.params
        if len(keys.shape) != 1 or params["num_keys"] != 1 or not np.issubdtype(keys.dtype, np.integer):
            return False
        (num_rows,) = keys.shape
        sort = Sort(place=(*body.place, place), num_rows=num_rows)
        does_divide = num_rows % self.num == 0 and num_rows > self.num
        if not does_divide or sort in self.whole or body.constant(eqn.inputs[0]) is not None:
            return False
        source = body.source(eqn.inputs[0])
        if params["is_stable"]:  # the same keys are sorted the same way
            sort = next((other for other, (keys, _) in body.keys.items() if keys == source), sort)
            body.keys.setdefault(sort, (source, eqn.outputs[0]))
        body.sources[eqn.outputs[0]] = body.keys.get(sort, (source, eqn.outputs[0]))[1]
        self.found.add(sort)
        body.steps[place] = SortRows(sort=sort)
        for atom, result in zip(eqn.inputs, eqn.outputs, strict=True):
            table = body.constant(atom)
            rows = Rows(sort=sort, dim=0)
            body.kinds[result] = rows if table is None else Index(sort=sort, is_order=True, table=table)
        return True

    def _read_inner(self, body: Body, place: int, eqn: Pair) -> None:
        """A loop over layers, or a part that is recomputed."""
        closed = eqn.full.params["jaxpr"]
        if not hasattr(closed, "consts"):
            closed = _compat.ClosedJaxpr(closed, ())
        inner = body.inner[place] = Body(flat=Paired.of(closed, closed), place=(*body.place, place))
        is_scan = eqn.full.primitive.name == "scan"
        fixed, carry = _compat.scan_counts(eqn.full.params, len(eqn.inputs)) if is_scan else (len(eqn.inputs), 0)
        for i, atom in enumerate(eqn.inputs):
            kind, constant = body.kind(atom), body.constant(atom)
            if i < fixed:
                inner.kinds |= {} if kind is None else {i: kind}
                inner.constants |= {} if constant is None else {i: constant}
            elif constant is not None and i >= fixed + carry and is_uniform(constant, 0):
                inner.constants[i] = constant[0]
            elif isinstance(kind, Stack) and i >= fixed + carry:
                inner.kinds[i] = kind.of
            else:
                self.keep_whole([kind])
        self.read(inner)
        outputs = [inner.kind(atom) for atom in inner.flat.outputs]
        self.keep_whole(outputs[:carry])
        for t, atom in list(zip(eqn.outputs, inner.flat.outputs, strict=True))[carry:]:
            if (constant := inner.constant(atom)) is not None:
                repeats = (eqn.full.params["length"],) if is_scan else ()
                body.constants[t] = np.broadcast_to(constant, (*repeats, *constant.shape))
        for t, kind in zip(eqn.outputs[carry:], outputs[carry:], strict=True):
            if is_scan and isinstance(kind, Stack):
                self.keep_whole([kind])
            elif kind is not None:
                body.kinds[t] = Stack(of=kind) if is_scan and not isinstance(kind, Stack) else kind


def _all(values: list[np.ndarray | None]) -> list[np.ndarray] | None:
    """The values, where none is missing."""
    found = [value for value in values if value is not None]
    return found if len(found) == len(values) else None


def _is_counts(kind: Kind | Stack) -> bool:
    return isinstance(kind.of if isinstance(kind, Stack) else kind, Counts)
