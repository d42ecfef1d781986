"""The registry of operator rules: one typed table, primitive name -> rule function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, overload

from jaxplan.core import _compat
from jaxplan.core._compat import ClosedJaxpr, Jaxpr, Primitive
from jaxplan.errors import RuleError
from jaxplan.ir._rule import Factor, OperatorRule, Shape
from jaxplan.ir.tdl import Analysis, analyse, operands_and_options

_CONTRADICTION_MSG = """\
the rule of primitive {name!r} does not fit its operands: {reason}.
  rule:     {rule}
  operands: {operands}
  results:  {results}
Expected: the factors of each dimension multiply to its size.
Likely cause: the rule reads a parameter or a shape wrongly. Fix the function registered for it: {where}."""
_DESCRIPTION_MSG = """\
the description of primitive {name!r} does not fit its operands: {reason}
  operands: {operands}
  results:  {results}
  described in {where}"""

# Entries after which the memo is emptied: a process that plans many programs must not grow without bound.
_MEMO_CAPACITY = 65_536


class Aval(Protocol):
    """The facts that a rule may read of an operand or result: a `jax.ShapeDtypeStruct`, an aval, or an array."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> Any: ...


Avals = Sequence[Aval]
Params = Mapping[str, Any]


class RuleFn(Protocol):
    """A pure function of abstract values and the equation's parameters."""

    def __call__(self, in_avals: Avals, out_avals: Avals, params: Params, /) -> OperatorRule: ...


LocalParamsFn = Callable[[Params, Sequence[Shape], Sequence[Shape]], Mapping[str, Any]]
"""Parameters of an equation for one device's pieces, from those of the whole: (params, local operand shapes, local
result shapes) -> params."""

_RuleFnT = TypeVar("_RuleFnT", bound=RuleFn)
_DescriptionT = TypeVar("_DescriptionT", bound=Callable[..., Any])

_RULES: dict[str, RuleFn] = {}
_LOCAL_PARAMS: dict[str, LocalParamsFn] = {}
_MEMO: dict[Any, OperatorRule] = {}
# Primitives with rules that read inner programs or settings, which are not part of the memo's key.
_UNMEMOISED = frozenset({"pallas_call", "custom_partitioning", "random_bits", "random_split"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """A stand-in for an aval in the memo and in the calls of rules: shape and dtype, nothing else."""

    shape: Shape
    dtype: Any

    def __repr__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedRule:
    """The rule function that a description stands for (`jaxplan.tdl`).

    Attributes:
      description: a function of operands that returns functions of index variables.
      family: as in `OperatorRule`; None: as the description suggests.
      manual: as in `OperatorRule`.
    """

    description: Callable[..., Any]
    family: str | None = None
    manual: bool = True

    def __call__(self, in_avals: Avals, out_avals: Avals, params: Params, /) -> OperatorRule:
        return self.analysis(in_avals, out_avals, params).rule

    def analysis(self, in_avals: Avals, out_avals: Avals, params: Params) -> Analysis:
        """The analysis of the description for operands and results of these shapes."""
        ins, outs = ([aval.shape for aval in avals] for avals in (in_avals, out_avals))
        return analyse(self.description, ins, outs, params, family=self.family, manual=self.manual)


@overload
def register_rule(*primitives: Any) -> Callable[[_RuleFnT], _RuleFnT]: ...


@overload
def register_rule(
    primitive: Any,
    description: _DescriptionT,
    /,
    *,
    family: str | None = None,
    manual: bool = True,
    local_params: LocalParamsFn | None = None,
) -> _DescriptionT: ...


def register_rule(
    *arguments: Any,
    family: str | None = None,
    manual: bool = True,
    local_params: LocalParamsFn | None = None,
) -> Any:
    """Say how a primitive may be split: by a description, or by a function that returns an `OperatorRule`.

    A later registration of the same name replaces the earlier one. A primitive that calls something by name has one
    entry per callee: ``"ffi_call:my_target"``, ``"pallas_call:my_kernel"``.

    Example:
      >>> import jaxplan
      >>> from jaxplan.ir.rules import factor_rule
      >>> from jaxplan.tdl import Sum
      >>> description = jaxplan.register_rule("my_conv", lambda data, filters: lambda b, co, x: Sum(
      ...     lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx]))
      >>> @jaxplan.register_rule("my_primitive")
      ... def my_rule(in_avals, out_avals, params):
      ...     batch, width = in_avals[0].shape
      ...     return factor_rule("b w, w -> b w", {"b": batch, "w": width}, family="elementwise")

    Args:
      arguments: primitives or their names; then, or to the function that is returned, the rule to register.
      family: as in `OperatorRule`; None: as the description suggests.
      manual: of a description: every device applies the primitive to its own pieces. False: the compiler can split
        the primitive by itself, as it can whatever is lowered to ordinary operators.
      local_params: parameters for the pieces, where they hold sizes (`LocalParamsFn`).

    Raises:
      RuleError: no primitive, or no function.
    """
    primitives, described = arguments, None
    if len(arguments) == 2 and not _is_primitive(arguments[1]):
        primitives, described = arguments[:1], arguments[1]
    names = primitive_names("register_rule", primitives)

    def register(rule_fn: _RuleFnT) -> _RuleFnT:
        for name in names:
            _RULES[name] = rule_fn
            if local_params is not None:
                _LOCAL_PARAMS[name] = local_params
        _MEMO.clear()
        return rule_fn

    if described is None:
        return register
    operands_and_options(described, 0)  # raises on anything else than a description
    register(DescribedRule(description=described, family=family, manual=manual))
    return described


def primitive_names(registers: str, primitives: Sequence[Any]) -> list[str]:
    """The names of a decorator's primitives; ``registers`` is the decorator's own name, for errors.

    Raises:
      RuleError: it was given nothing, or something that is no primitive.
    """
    if not primitives or not all(map(_is_primitive, primitives)):
        raise RuleError(
            f"{registers} was given {tuple(primitives)!r}, expected primitives or their names, such as 'add'; "
            f"write @{registers}('name'), with parentheses"
        )
    return [getattr(primitive, "name", primitive) for primitive in primitives]


def register_local_params(*primitive_names: str) -> Callable[[LocalParamsFn], LocalParamsFn]:
    """Decorate the function that adapts the parameters of some primitives to pieces; returns it unchanged."""

    def register(fn: LocalParamsFn) -> LocalParamsFn:
        _LOCAL_PARAMS.update(dict.fromkeys(primitive_names, fn))
        return fn

    return register


def local_params(
    primitive_name: str, params: Params, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]
) -> Mapping[str, Any]:
    """An equation's parameters for pieces of these shapes; most parameters hold no sizes of split dimensions."""
    for name in names_of(primitive_name, params):
        if name in _LOCAL_PARAMS:
            return _LOCAL_PARAMS[name](params, in_shapes, out_shapes)
    return params


def _is_primitive(argument: Any) -> bool:
    return isinstance(argument, (str, Primitive))


def names_of(primitive_name: str, params: Params) -> tuple[str, ...]:
    """Names under which a rule is looked for, the callee's first."""
    callee = _compat.callee_name(primitive_name, params)
    return (f"{primitive_name}:{callee}", primitive_name) if callee else (primitive_name,)


def has_rule(primitive_name: str) -> bool:
    """Whether a rule is registered for a primitive."""
    return primitive_name in _RULES


def description_of(primitive_name: str, params: Params) -> DescribedRule | None:
    """The description that an equation's rule stands for, None where a function gave the rule."""
    rules = (_RULES[key] for key in names_of(primitive_name, params) if key in _RULES)
    rule_fn = next(rules, None)
    return rule_fn if isinstance(rule_fn, DescribedRule) else None


def registered_primitives() -> tuple[str, ...]:
    """Names of all primitives with a rule, sorted."""
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
    if primitive_name in _UNMEMOISED:
        return _compute_rule(primitive_name, in_avals, out_avals, params)
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
    ins = tuple(_Value(shape=tuple(aval.shape), dtype=aval.dtype) for aval in in_avals)
    outs = tuple(_Value(shape=tuple(aval.shape), dtype=aval.dtype) for aval in out_avals)
    rule_fn = next((_RULES[key] for key in names_of(name, params) if key in _RULES), None)
    if rule_fn is None:
        return unknown_rule(ins, outs)
    rule = _call(rule_fn, name, ins, outs, params)
    try:
        rule.check([value.shape for value in ins], [value.shape for value in outs])
    except RuleError as error:
        message = _CONTRADICTION_MSG.format(
            name=name, reason=error, rule=rule, operands=list(ins), results=list(outs), where=_where(rule_fn)
        )
        raise RuleError(message) from None
    return rule


def _call(rule_fn: RuleFn, name: str, ins: Avals, outs: Avals, params: Params) -> OperatorRule:
    """The rule, its error with the context that only the registry knows."""
    if not isinstance(rule_fn, DescribedRule):
        return rule_fn(ins, outs, params)
    try:
        return rule_fn(ins, outs, params)
    except RuleError as error:
        message = _DESCRIPTION_MSG.format(
            name=name, reason=error, operands=list(ins), results=list(outs), where=_where(rule_fn)
        )
        raise RuleError(message) from None


def _where(rule_fn: Any) -> str:
    """``module.function (file:line)`` of a registered function."""
    inner = rule_fn.func if isinstance(rule_fn, functools.partial) else rule_fn
    inner = getattr(inner, "description", inner)
    text = f"{getattr(inner, '__module__', '?')}.{getattr(inner, '__qualname__', repr(inner))}"
    code = getattr(inspect.unwrap(inner), "__code__", None)
    return text if code is None else f"{text} ({code.co_filename}:{code.co_firstlineno})"


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
