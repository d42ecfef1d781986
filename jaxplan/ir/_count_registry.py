"""The registry of counts: one typed table, primitive name -> function that counts the work of an equation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from jaxplan.core import _compat
from jaxplan.errors import RuleError
from jaxplan.ir._count import Count
from jaxplan.ir._registry import Avals, Params, description_of, names_of, primitive_names
from jaxplan.ir._rule import OperatorRule

_BAD_COUNT_MSG = """\
the count of primitive {name!r} is {given!r}; expected a number of FLOPs, or a jaxplan.Count.
  operands: {operands}
  results:  {results}
Fix the function registered for it with jaxplan.register_count."""

# Counts after which the memo is emptied: it keeps the inner programs of its keys alive.
_MEMO_CAPACITY = 16_384
# Their counts depend on settings, which are no part of the memo's key.
_UNMEMOISED = frozenset({"random_bits"})


class CountFn(Protocol):
    """A pure function of abstract values and the equation's parameters; a number is FLOPs of matrix products in the
    dtype of the first operand."""

    def __call__(self, in_avals: Avals, out_avals: Avals, params: Params, /) -> Count | float | None: ...


_CountFnT = TypeVar("_CountFnT", bound=CountFn)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A counting function, and in a few words how it counts."""

    count: CountFn
    kind: str


_COUNTS: dict[str, _Entry] = {}
_MEMO: dict[Any, Count | None] = {}
_STREAMING = frozenset({"elementwise", "shape", "reduction", "source", "user", "region"})
"""Families of described operators that only read their operands and write their results."""


def register_count(*primitives: Any, kind: str = "registered") -> Callable[[_CountFnT], _CountFnT]:
    """Decorate a function that counts the work of an operator; returns it unchanged.

    Its time is then that of its arithmetic, or of the bytes that it moves if that takes longer. A later registration
    of the same name replaces the earlier one. A primitive that calls something by name has one entry per callee:
    ``"ffi_call:my_target"``, ``"pallas_call:my_kernel"``.

    Example:
      >>> import jaxplan
      >>> @jaxplan.register_count("ffi_call:my_attention")
      ... def my_count(in_avals, out_avals, params):
      ...     batch, tokens, width = in_avals[0].shape
      ...     return 4 * batch * tokens**2 * width  # FLOPs; or a jaxplan.Count

    Args:
      primitives: primitives or their names.
      kind: how it counts, for ``python -m jaxplan coverage``.

    Raises:
      RuleError: no primitive.
    """
    names = primitive_names("register_count", primitives)

    def register(count_fn: _CountFnT) -> _CountFnT:
        _COUNTS.update({name: _Entry(count=count_fn, kind=kind) for name in names})
        _MEMO.clear()
        return count_fn

    return register


def count_kind(primitive_name: str) -> str:
    """How the work of a primitive is counted, in a few words; '' where it is not."""
    return _COUNTS[primitive_name].kind if primitive_name in _COUNTS else ""


def operator_count(
    name: str, in_avals: Avals, out_avals: Avals, params: Params, rule: OperatorRule | None = None
) -> Count | None:
    """The work of one equation, memoised on name, shapes, dtypes and parameters; None where nobody counted it.

    Without an entry of its own, an operator is counted as far as its rule tells (`_by_rule`).

    Args:
      name: ``eqn.primitive.name``.
      in_avals, out_avals: anything with ``shape`` and ``dtype``.
      params: ``eqn.params``.
      rule: the operator's rule, where it has one.

    Raises:
      RuleError: the registered function returned something else than a count.
    """
    found = _registered_count(name, in_avals, out_avals, params)
    if found is not None or rule is None:
        return found
    return _by_rule(name, in_avals, out_avals, params, rule)


def _registered_count(name: str, in_avals: Avals, out_avals: Avals, params: Params) -> Count | None:
    if name in _UNMEMOISED:
        return _count(name, in_avals, out_avals, params)
    try:
        key = (name, _signature(in_avals), _signature(out_avals), _hashable(params))
        if key in _MEMO:
            return _MEMO[key]
    except TypeError:  # a parameter that cannot be hashed: count each time
        return _count(name, in_avals, out_avals, params)
    if len(_MEMO) >= _MEMO_CAPACITY:
        _MEMO.clear()
    _MEMO[key] = _count(name, in_avals, out_avals, params)
    return _MEMO[key]


def _signature(avals: Avals) -> tuple[Any, ...]:
    return tuple([(aval.shape, aval.dtype) for aval in avals])


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    if hasattr(value, "items"):
        return tuple([(key, _hashable(item)) for key, item in value.items()])
    hash(value)
    return value


def _count(name: str, in_avals: Avals, out_avals: Avals, params: Params) -> Count | None:
    entry = next((_COUNTS[key] for key in names_of(name, params) if key in _COUNTS), None)
    found = None if entry is None else entry.count(in_avals, out_avals, params)
    if found is None or isinstance(found, Count):
        return found
    try:
        return _products(in_avals or out_avals, float(found))
    except (TypeError, ValueError, RuleError):
        message = _BAD_COUNT_MSG.format(
            name=name, given=found, operands=list(map(_text, in_avals)), results=list(map(_text, out_avals))
        )
        raise RuleError(message) from None


def _by_rule(
    name: str, in_avals: Avals, out_avals: Avals, params: Params, rule: OperatorRule
) -> Count | None:
    """The count that follows from the rule: a contraction does a multiply-add per point of its space, a description
    spells its operations out, and families that stream compute once per element."""
    if rule.family == "contraction":
        return _products(in_avals, 2.0 * math.prod(factor.size for factor in rule.factors))
    described, streams = description_of(name, params), rule.family in _STREAMING
    if described is None:
        return Count(streams=True) if streams else None
    operations = described.analysis(in_avals, out_avals, params).operations
    if operations is None:
        return None
    return Count(vector=((_dtype_name(in_avals or out_avals), operations),), streams=streams)


def _products(avals: Avals, flops: float) -> Count:
    return Count(matrix=((_dtype_name(avals), flops),))


def _dtype_name(avals: Avals) -> str:
    dtype = avals[0].dtype if avals else None
    return "float32" if dtype is None or _compat.is_key_dtype(dtype) else str(dtype)


def _text(aval: Any) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"
