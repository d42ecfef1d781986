"""Whether two traces of one step are the same program: equal equations, literals and constant values.

Names, key paths, source lines and weak types do not count: they change no number and no plan.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxplan.core import _compat
from jaxplan.core._interner import Memo
from jaxplan.ir._program import Equation, Program, Region, Tensor

_IGNORED_PARAMS = frozenset(
    {"weak_type", "debug_info", "name", "source_info", "ctx_mesh", "name_and_src_info"}
)
_MOST_COMPARED = 10_000

Seen = Memo
"""Pairs of objects, by identity, that were compared or are being compared."""


def first_difference(planned: Program, other: Program) -> str | None:
    """The first difference of another trace from the planned one, with the line of the step; None where they agree.

    The text goes on after "the step on these arguments ..."; the other trace's side is named first.
    """
    found = _inputs_difference(planned, other)
    return found or _Comparison(planned, other).run()


def _inputs_difference(planned: Program, other: Program) -> str | None:
    ours, theirs = planned.in_avals, other.in_avals
    if len(ours) != len(theirs):
        return f"has {len(theirs)} arrays among its arguments, and {len(ours)} in the plan"
    for path, a, b in zip(other.in_paths, ours, theirs, strict=True):
        if a != b:
            return f"takes {b} as {path}, and {a} in the plan"
    return None


class _Comparison:
    """Two programs side by side, operator by operator; conversions of a dtype to itself are passed over.

    Attributes:
      pairs: tensor of the planned program -> the same of the other.
    """

    def __init__(self, planned: Program, other: Program) -> None:
        self.planned, self.other = planned, other
        self.pairs = dict(zip(planned.inputs, other.inputs, strict=True))
        self._ours, self._our_names = _without_identities(planned)
        self._theirs, self._their_names = _without_identities(other)

    def run(self) -> str | None:
        for a, b in zip(self._ours, self._theirs, strict=False):
            found = self._equation(a, b)
            if found:
                line = _compat.eqn_source_line(b.origin)
                return found + (f", at {line}" if line else "")
        counts = len(self._ours), len(self._theirs)
        if counts[0] != counts[1]:
            return f"has {counts[1]} operators, and {counts[0]} in the plan"
        return self._regions() or self._results()

    def _equation(self, a: Equation, b: Equation) -> str | None:
        if a.name != b.name:
            return f"computes {b.name} where the plan has {a.name}"
        if len(a.operands) != len(b.operands) or len(a.results) != len(b.results) or a.region != b.region:
            return f"has {b.name} at another place"
        for s, t in zip(a.operands, b.operands, strict=True):
            found = self._value(s, t)
            if found:
                return f"has {found} as an operand of {b.name}"
        for s, t in zip(a.results, b.results, strict=True):
            ours, theirs = self.planned.tensors[s], self.other.tensors[t]
            if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
                return f"has {_typed(theirs)} in place of {_typed(ours)} as a result of {b.name}"
            self.pairs[s] = t
        found = _params_difference(a.params, b.params)
        return f"has {found} of {b.name}" if found else None

    def _regions(self) -> str | None:
        ours, theirs = self.planned.regions, self.other.regions
        if len(ours) != len(theirs):
            return f"has {len(theirs)} loops and branches, and {len(ours)} in the plan"
        for a, b in zip(ours, theirs, strict=True):
            alike = (a.kind, a.trips, a.parent) == (b.kind, b.trips, b.parent)
            scalars = ((a.selector, b.selector), (a.predicate, b.predicate))
            same = all(self._scalar(s, t) for s, t in scalars)
            if not (alike and same) or _params_difference(_own_params(a), _own_params(b)):
                return f"has another {b.kind}"
        return None

    def _scalar(self, s: int | None, t: int | None) -> bool:
        if s is None or t is None:
            return s is t
        return self._value(s, t) is None

    def _results(self) -> str | None:
        ours, theirs = self.planned.outputs, self.other.outputs
        if len(ours) != len(theirs):
            return f"returns {len(theirs)} arrays, and {len(ours)} in the plan"
        for path, s, t in zip(self.other.out_paths, ours, theirs, strict=True):
            found = self._value(s, t)
            if found:
                return f"returns {found} as {path or 'its result'}"
        return None

    def _value(self, s: int, t: int) -> str | None:
        """How a value differs, None where it does not."""
        s, t = self._our_names.get(s, s), self._their_names.get(t, t)
        ours, theirs = self.planned.tensors[s], self.other.tensors[t]
        if ours.kind != theirs.kind:
            return f"a value that is {theirs.kind} in place of one that is {ours.kind}"
        if ours.kind not in ("literal", "constant"):
            return None if self.pairs.get(s) == t else "another value"
        same_type = (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if same_type and _same_array(ours.value, theirs.value, ours.dtype):
            return None
        if ours.shape == theirs.shape == ():
            return f"the {theirs.kind} {_number(theirs.value)} in place of {_number(ours.value)}"
        return f"other values in a closed-over array {_typed(theirs)}"


def _own_params(region: Region) -> dict[str, Any]:
    """Parameters of a loop or branch but for its bodies, which are compared as operators of the program."""

    def is_body(value: Any) -> bool:
        bodies = value if isinstance(value, tuple) else (value,)
        return bool(bodies) and all(isinstance(body, _compat.ClosedJaxpr | _compat.Jaxpr) for body in bodies)

    return {name: value for name, value in region.params.items() if not is_body(value)}


def _without_identities(program: Program) -> tuple[list[Equation], dict[int, int]]:
    """Equations but for conversions of a dtype to itself, which only drop a weak type; and their results' operands."""
    kept, names = [], {}
    for eqn in program.equations:
        s, t = eqn.operands[:1], eqn.results[:1]
        if eqn.name == "convert_element_type" and program.tensors[s[0]].dtype == program.tensors[t[0]].dtype:
            names[t[0]] = names.get(s[0], s[0])
        else:
            kept.append(eqn)
    return kept, names


def _typed(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"


def _number(value: Any) -> str:
    """A scalar in as few digits as its dtype tells apart."""
    if _compat.is_key_dtype(getattr(value, "dtype", np.dtype(bool))):
        return str(value)
    return str(np.asarray(value)[()])


def _same_array(a: Any, b: Any, dtype: Any = None) -> bool:
    """Whether two arrays, or Python numbers that stand for a dtype, are equal to the bit."""
    if a is b:
        return True
    if _compat.is_key_dtype(getattr(a, "dtype", np.dtype(bool))):
        a, b, dtype = jax.random.key_data(a), jax.random.key_data(b), None
    a, b = np.asarray(a, dtype), np.asarray(b, dtype)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _params_difference(planned: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    if planned.keys() != other.keys():
        return f"other parameters, {', '.join(sorted(planned.keys() ^ other.keys()))}"
    for name, value in other.items():
        if name not in _IGNORED_PARAMS and not _same(planned[name], value, Seen()):
            return f"another parameter {name}"
    return None


def _same(a: Any, b: Any, seen: Seen) -> bool:
    """Whether two values that a program holds are equal: arrays by value, functions by code and closure."""
    if a is b:
        return True
    if type(a) is not type(b) or len(seen) > _MOST_COMPARED:
        return False
    if isinstance(a, jax.Array | np.ndarray):
        return _same_array(a, b)
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key], seen) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(_same(x, y, seen) for x, y in zip(a, b, strict=True))
    if isinstance(a, _compat.ClosedJaxpr | _compat.Jaxpr):
        return _same_jaxpr(a, b, seen)
    if isinstance(a, types.FunctionType):
        return _same_function(a, b)
    if isinstance(a, functools.partial):
        return _same_closed(a, b)
    if _equal(a, b):
        return True
    if type(a).__eq__ is not object.__eq__ and not dataclasses.is_dataclass(a):
        return False
    pair = seen.numbers((a, b))
    if pair in seen:  # they hold themselves
        return True
    seen[pair] = True
    return _same_fields(a, b, seen)


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:
        return False


def _same_function(a: Any, b: Any) -> bool:
    """Two closures of one definition over equal values compute the same; both are called by a program as they are."""
    if a.__code__ != b.__code__ or a.__globals__ is not b.__globals__:
        return False
    closed = [(tuple(_contents(cell) for cell in f.__closure__ or ()), f.__defaults__) for f in (a, b)]
    return a.__kwdefaults__ == b.__kwdefaults__ and _same_closed(*closed)


def _same_closed(a: Any, b: Any) -> bool:
    """Equal values that nothing can change: a list that a callback appends to has to be the same list."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, jax.Array):
        return _same_array(a, b)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same_closed, a, b))
    if isinstance(a, types.FunctionType):
        return _same_function(a, b)
    if isinstance(a, functools.partial):
        return _same_closed((a.func, a.args), (b.func, b.args)) and a.keywords == b.keywords
    return isinstance(a, int | float | complex | str | bytes | np.dtype | types.MethodType) and _equal(a, b)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _same_fields(a: Any, b: Any, seen: Seen) -> bool:
    """Objects that do not say when they are equal, by their attributes."""
    if dataclasses.is_dataclass(a):
        names = [field.name for field in dataclasses.fields(a)]
    elif hasattr(a, "__dict__"):
        if vars(a).keys() != vars(b).keys():
            return False
        names = list(vars(a))
    else:
        return False
    return bool(names) and all(
        hasattr(a, name) and hasattr(b, name) and _same(getattr(a, name), getattr(b, name), seen)
        for name in names
    )


def _same_jaxpr(a: Any, b: Any, seen: Seen) -> bool:
    """Inner programs, up to the names of their variables."""
    (a, a_consts), (b, b_consts) = _compat.open_jaxpr(a), _compat.open_jaxpr(b)
    if not _same(tuple(a_consts), tuple(b_consts), seen) or len(a.eqns) != len(b.eqns):
        return False
    pairs: dict[Any, Any] = {}
    if not _bound(pairs, [*a.constvars, *a.invars], [*b.constvars, *b.invars]):
        return False
    for x, y in zip(a.eqns, b.eqns, strict=True):
        alike = x.primitive is y.primitive and _read(pairs, x.invars, y.invars)
        if not alike or _params_difference(x.params, y.params) or not _bound(pairs, x.outvars, y.outvars):
            return False
    return _read(pairs, a.outvars, b.outvars)


def _bound(pairs: dict[Any, Any], ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    pairs.update(zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and all(
        (x.aval.shape, x.aval.dtype) == (y.aval.shape, y.aval.dtype)
        if hasattr(x.aval, "dtype") and hasattr(y.aval, "dtype")
        else _equal(x.aval, y.aval)
        for x, y in zip(ours, theirs, strict=True)
    )


def _read(pairs: Mapping[Any, Any], ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    def same(x: Any, y: Any) -> bool:
        if isinstance(x, _compat.Literal):
            return isinstance(y, _compat.Literal) and _same_array(
                x.val, y.val, getattr(x.aval, "dtype", None)
            )
        return not isinstance(y, _compat.Literal) and pairs.get(x) is y

    return len(ours) == len(theirs) and all(same(x, y) for x, y in zip(ours, theirs, strict=True))
