"""Expressions of the description language for one element of a result (Tofu section 3.1).

An index is *affine* in the variables, ``2 * x + dx - 1``; everything else is a value, of which the analysis uses only
the elements that it reads and how reductions and operands enter it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal

from jaxplan.errors import RuleError
from jaxplan.ir._rule import Reducer

_NOT_AFFINE_MSG = (
    "the index {index} is not affine in the index variables: expected sums of variables times whole numbers, such as "
    "2 * x + dx - 1.\n"
    "  likely cause: a product, a quotient or a remainder of variables\n"
    "  fix: write ':' inside an Opaque call, which says that the whole dimension is read"
)

VariableKind = Literal["result", "reduction", "opaque"]
ArithmeticKind = Literal["add", "scale", "multiply", "divide", "other"]


class Variable:
    """An index variable; two are the same only if they are the same object.

    Attributes:
      kind: ``result`` (a dimension of a result), ``reduction``, or ``opaque`` (inside the argument of an Opaque call).
      reducer: operation that joins the terms of a ``reduction`` variable.
      size: its range if the description says so, else None: it is read off the shapes.
    """

    __slots__ = ("kind", "name", "reducer", "size")
    kind: VariableKind
    reducer: Reducer | None

    def __init__(
        self, name: str, kind: VariableKind, reducer: Reducer | None = None, size: int | None = None
    ) -> None:
        self.name, self.kind, self.reducer, self.size = name, kind, reducer, size

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expression:
    """A value; arithmetic on values and numbers gives values."""

    def __add__(self, other: Any) -> Expression:
        return _add(self, other)

    def __radd__(self, other: Any) -> Expression:
        return _add(other, self)

    def __sub__(self, other: Any) -> Expression:
        return _add(self, -as_expression(other))

    def __rsub__(self, other: Any) -> Expression:
        return _add(other, -self)

    def __neg__(self) -> Expression:
        return _multiply(-1, self)

    def __mul__(self, other: Any) -> Expression:
        return _multiply(self, other)

    def __rmul__(self, other: Any) -> Expression:
        return _multiply(other, self)

    def __truediv__(self, other: Any) -> Expression:
        return _arithmetic("divide", self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return _arithmetic("divide", other, self)

    def _other(self, *others: Any) -> Expression:
        return _arithmetic("other", self, *others)

    __pow__ = __rpow__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _other
    __lt__ = __le__ = __gt__ = __ge__ = __abs__ = __invert__ = _other
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _other

    def __bool__(self) -> bool:
        raise RuleError(
            "a description asked whether a value is true, and it has none: it describes all elements at once.\n"
            "  fix: pass the condition and both values to an Opaque call"
        )

    def __iter__(self) -> Any:
        raise RuleError("a value of a description is one element: it cannot be unpacked or looped over")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constant(Expression):
    """A number."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Index(Expression):
    """An affine form: ``terms`` are (variable, coefficient), coefficients are not zero."""

    terms: tuple[tuple[Variable, int], ...]
    constant: int

    def __str__(self) -> str:
        words = [
            f"{variable}" if factor == 1 else f"{factor} * {variable}" for variable, factor in self.terms
        ]
        if self.constant or not words:
            words.append(str(self.constant))
        return " + ".join(words).replace("+ -", "- ")

    @property
    def variables(self) -> tuple[Variable, ...]:
        return tuple(variable for variable, _ in self.terms)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Whole:
    """All of a dimension; ``reason`` says why not less."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Element(Expression):
    """An element of an operand, or a slab of it where some dimensions are `Whole`.

    Attributes:
      operand: number of the operand.
      index: one entry per dimension.
      data: values that entries are computed from (``table[ids[b], d]``); only their reads are known.
      padding: the value outside of the operand; None where nothing outside is read.
    """

    operand: int
    index: tuple[Index | Whole, ...]
    data: tuple[Expression, ...] = ()
    padding: float | None = None

    @property
    def is_slab(self) -> bool:
        return any(isinstance(entry, Whole) for entry in self.index) and not self.data


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arithmetic(Expression):
    """``scale`` is a number times a value; ``other`` is any function."""

    kind: ArithmeticKind
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reduction(Expression):
    """``Sum`` and its kin over ``variables``."""

    reducer: Reducer
    variables: tuple[Variable, ...]
    body: Expression


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpaqueValue(Expression):
    """The result of an Opaque call, or an element of it."""

    name: str
    arguments: tuple[Expression, ...]
    index: tuple[Expression | Whole, ...] = ()

    def __getitem__(self, entries: Any) -> OpaqueValue:
        entries = entries if isinstance(entries, tuple) else (entries,)
        index = tuple(Whole(reason="a slice") if isinstance(e, slice) else as_expression(e) for e in entries)
        return OpaqueValue(name=self.name, arguments=self.arguments, index=index)


def as_expression(value: Any) -> Expression:
    """A number or a value as a value; whole numbers are indices too."""
    if isinstance(value, Expression):
        return value
    try:
        return Index(terms=(), constant=operator.index(value))
    except TypeError:
        pass
    if isinstance(value, (float, complex)):
        return Constant(value=value)
    raise RuleError(
        f"a description contains {value!r} of type {type(value).__name__}: expected a number, an element such as "
        "data[b, x], or a value made from them"
    )


def as_index(value: Any) -> Index | None:
    """An affine index; None for one that is read from data.

    Raises:
      RuleError: it is not affine.
    """
    expression = as_expression(value)
    if isinstance(expression, Index):
        return expression
    if reads_data(expression):
        return None
    raise RuleError(_NOT_AFFINE_MSG.format(index=to_text(expression)))


def reads_data(expression: Expression) -> bool:
    """Whether a value depends on more than index variables and numbers."""
    if isinstance(expression, Arithmetic):
        return any(map(reads_data, expression.arguments))
    return not isinstance(expression, (Index, Constant))


def to_text(expression: Expression) -> str:
    """A value for an error text; operators that the language does not tell apart are written as functions."""
    if isinstance(expression, Index):
        return str(expression)
    if isinstance(expression, Arithmetic):
        sign = {"add": " + ", "scale": " * ", "multiply": " * ", "divide": " / "}.get(expression.kind)
        words = list(map(to_text, expression.arguments))
        return f"({sign.join(words)})" if sign else f"f({', '.join(words)})"
    return str(expression.value) if isinstance(expression, Constant) else "..."


def _is_number(expression: Expression) -> bool:
    return isinstance(expression, Constant) or (isinstance(expression, Index) and not expression.terms)


def _add(left: Any, right: Any) -> Expression:
    a, b = as_expression(left), as_expression(right)
    if isinstance(a, Index) and isinstance(b, Index):
        factors = dict(a.terms)
        for variable, factor in b.terms:
            factors[variable] = factors.get(variable, 0) + factor
        terms = tuple((variable, factor) for variable, factor in factors.items() if factor)
        return Index(terms=terms, constant=a.constant + b.constant)
    return Arithmetic(kind="add", arguments=(a, b))


def _multiply(left: Any, right: Any) -> Expression:
    a, b = as_expression(left), as_expression(right)
    if isinstance(a, Index) and isinstance(b, Index) and not (a.terms and b.terms):
        number, index = (a.constant, b) if not a.terms else (b.constant, a)
        terms = tuple((variable, factor * number) for variable, factor in index.terms if number)
        return Index(terms=terms, constant=index.constant * number)
    kind: ArithmeticKind = "scale" if _is_number(a) or _is_number(b) else "multiply"
    return Arithmetic(kind=kind, arguments=(a, b))


def _arithmetic(kind: ArithmeticKind, *arguments: Any) -> Expression:
    return Arithmetic(kind=kind, arguments=tuple(map(as_expression, arguments)))
