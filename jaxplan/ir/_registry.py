"""The registry of operator rules: one typed table, primitive name -> rule function."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from jaxplan._compat import ClosedJaxpr, Jaxpr
from jaxplan._errors import RuleError
from jaxplan.ir._rule import Factor, OperatorRule, Shape

_CONTRADICTION_MSG = """\
the rule of primitive {name!r} does not fit its operands: {reason}.
  rule:     {rule}
  operands: {operands}
  results:  {results}
Expected: the factors of each dimension multiply to its size.
Likely cause: the rule reads a parameter or a shape wrongly. Fix the function registered for it: {where}."""

# Entries after which the memo is emptied: a process that plans many programs must not grow without bound.
_MEMO_CAPACITY = 65_536


class Aval(Protocol):
    """What a rule may read of an operand or result: `jax.ShapeDtypeStruct`, an aval, or an array."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> Any: ...


Avals = Sequence[Aval]
Params = Mapping[str, Any]


class RuleFn(Protocol):
    """A pure function of abstract values and the equation's parameters."""

    def __call__(self, in_avals: Avals, out_avals: Avals, params: Params, /) -> OperatorRule: ...


_RuleFnT = TypeVar("_RuleFnT", bound=RuleFn)

_RULES: dict[str, RuleFn] = {}
_MEMO: dict[Any, OperatorRule] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """A stand-in for an aval in the memo and in the calls of rules: shape and dtype, nothing else."""

    shape: Shape
    dtype: Any

    def __repr__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def register_rule(*primitive_names: str) -> Callable[[_RuleFnT], _RuleFnT]:
    """Decorate the rule function of some primitives; the function is returned unchanged.

    A later registration of the same name replaces the earlier one.

    Example::

        @jaxplan.register_rule("my_primitive")
        def _my_rule(in_avals, out_avals, params):
            batch, width = in_avals[0].shape
            return factor_rule("b w, w -> b w", {"b": batch, "w": width}, family="elementwise")
    """
    if not primitive_names or not all(isinstance(name, str) for name in primitive_names):
        raise RuleError(
            f"register_rule was given {primitive_names!r}, expected names of primitives such as 'add'; "
            "write @register_rule('name'), with parentheses"
        )

    _load_builtin_rules()  # first, so that they do not replace the caller's

    def register(rule_fn: _RuleFnT) -> _RuleFnT:
        for name in primitive_names:
            _RULES[name] = rule_fn
        _MEMO.clear()
        return rule_fn

    return register


def has_rule(primitive_name: str) -> bool:
    """Whether a rule is registered for a primitive."""
    _load_builtin_rules()
    return primitive_name in _RULES


def registered_primitives() -> tuple[str, ...]:
    """Names of all primitives with a rule, sorted."""
    _load_builtin_rules()
    return tuple(sorted(_RULES))


def operator_rule(
    primitive_name: str,
    in_avals: Avals,
    out_avals: Avals,
    params: Params,
) -> OperatorRule:
    """The rule of one equation, memoised on name, shapes, dtypes and hashable parameters.

    A primitive without a rule gets the sound default: nothing may be split, family ``unknown``. The caller
    records that in the plan and tells the user.

    Args:
      primitive_name: ``eqn.primitive.name``.
      in_avals, out_avals: anything with ``shape`` and ``dtype``.
      params: ``eqn.params``; inner jaxprs are not part of the memo key, so a rule must not read them.

    Raises:
      RuleError: the registered rule contradicts the shapes.
    """
    key = (
        primitive_name,
        tuple([(aval.shape, aval.dtype) for aval in in_avals]),
        tuple([(aval.shape, aval.dtype) for aval in out_avals]),
        tuple([(name, _hashable(value)) for name, value in params.items()]),
    )
    try:
        rule = _MEMO.get(key)
    except TypeError:  # a parameter that cannot be hashed: compute it each time
        return _compute_rule(primitive_name, in_avals, out_avals, params)
    if rule is None:
        rule = _compute_rule(primitive_name, in_avals, out_avals, params)
        if len(_MEMO) >= _MEMO_CAPACITY:
            _MEMO.clear()
        _MEMO[key] = rule
    return rule


def unknown_rule(in_avals: Avals, out_avals: Avals) -> OperatorRule:
    """The default of a primitive without a rule: every dimension whole, all tensors replicated."""
    shapes = [aval.shape for aval in (*in_avals, *out_avals)]
    sizes = [size for shape in shapes for size in shape if size != 1]
    indices = iter(range(len(sizes)))
    tensors = [tuple(() if size == 1 else (next(indices),) for size in shape) for shape in shapes]
    return OperatorRule(
        factors=tuple(Factor(size=size, kind="whole") for size in sizes),
        operands=tuple(tensors[: len(in_avals)]),
        results=tuple(tensors[len(in_avals) :]),
        family="unknown",
    )


def _compute_rule(name: str, in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    _load_builtin_rules()
    ins = tuple(_Value(shape=tuple(aval.shape), dtype=aval.dtype) for aval in in_avals)
    outs = tuple(_Value(shape=tuple(aval.shape), dtype=aval.dtype) for aval in out_avals)
    rule_fn = _RULES.get(name)
    if rule_fn is None:
        return unknown_rule(ins, outs)
    rule = rule_fn(ins, outs, params)
    try:
        rule.check([value.shape for value in ins], [value.shape for value in outs])
    except RuleError as error:
        message = _CONTRADICTION_MSG.format(
            name=name, reason=error, rule=rule, operands=list(ins), results=list(outs), where=_where(rule_fn)
        )
        raise RuleError(message) from None
    return rule


def _where(rule_fn: Any) -> str:
    inner = rule_fn.func if isinstance(rule_fn, functools.partial) else rule_fn
    return f"{getattr(inner, '__module__', '?')}.{getattr(inner, '__qualname__', repr(inner))}"


def _hashable(value: Any) -> Any:
    """A parameter as a memo key: lists and dicts frozen, inner jaxprs left out."""
    if value is None or isinstance(value, (tuple, int, str)):
        return value
    if isinstance(value, (Jaxpr, ClosedJaxpr)):
        return None
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in value.items())
    return value


@functools.cache
def _load_builtin_rules() -> None:
    """Import the families, which register themselves; late, because they import this module."""
    importlib.import_module("jaxplan.ir.rules")
