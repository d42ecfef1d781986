"""The words of the description language: operands, ``Sum`` and its kin, ``Opaque``, ``padded``.

A description is a function of operands that returns, per result, a function of index variables::

    def conv1d(data, filters):
        return lambda b, co, x: Sum(lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx])

It is run once per distinct equation, with stand-ins for everything, and says nothing of how to compute.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxplan.errors import RuleError
from jaxplan.ir._rule import Reducer, Shape
from jaxplan.ir.tdl._expression import (
    Arithmetic,
    Element,
    Expression,
    Index,
    OpaqueValue,
    Reduction,
    Variable,
    Whole,
    as_expression,
    as_index,
)

DescriptionFn = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The result of running a description on stand-ins.

    Attributes:
      operand_names: parameter names of the function.
      in_shapes, out_shapes: the shapes it was run for.
      variables: per result, the index variables, one per dimension.
      bodies: per result, the element as an expression.
    """

    operand_names: tuple[str, ...]
    in_shapes: tuple[Shape, ...]
    out_shapes: tuple[Shape, ...]
    variables: tuple[tuple[Variable, ...], ...]
    bodies: tuple[Expression, ...]


class Operand:
    """A stand-in for an operand: index it with one affine expression, ``:`` or ``...`` per dimension.

    Attributes:
      shape: its shape, for descriptions that depend on it.
    """

    def __init__(self, name: str, position: int, shape: Shape, padding: float | None = None) -> None:
        self.name, self.position, self.shape, self.padding = name, position, shape, padding

    def __getitem__(self, entries: Any) -> Element:
        entries = self._without_ellipsis(entries if isinstance(entries, tuple) else (entries,))
        if len(entries) != len(self.shape):
            raise RuleError(
                f"operand {self.name!r} is read with {len(entries)} indices, and it has rank {len(self.shape)}: "
                f"its shape is {self.shape}"
            )
        index: list[Index | Whole] = []
        data: list[Expression] = []
        for entry in entries:
            if isinstance(entry, slice):
                index.append(Whole(reason=f"a slice of {self.name} reads it"))
                continue
            affine = as_index(entry)
            if affine is None:
                data.append(as_expression(entry))
                index.append(Whole(reason=f"which element of {self.name} is read depends on data"))
            else:
                index.append(affine)
        return Element(operand=self.position, index=tuple(index), data=tuple(data), padding=self.padding)

    def _without_ellipsis(self, entries: tuple[Any, ...]) -> tuple[Any, ...]:
        places = [i for i, entry in enumerate(entries) if entry is Ellipsis]
        if not places:
            return entries
        missing = len(self.shape) - len(entries) + 1
        if len(places) > 1 or missing < 0:
            raise RuleError(
                f"operand {self.name!r} of rank {len(self.shape)} is read with {len(entries)} indices"
            )
        return (*entries[: places[0]], *(slice(None),) * missing, *entries[places[0] + 1 :])

    def __iter__(self) -> Any:
        raise RuleError(f"operand {self.name!r} cannot be looped over: index it, as in {self.name}[i, j]")


def padded(operand: Operand, value: float = 0.0) -> Operand:
    """The operand, with a constant wherever an index lies outside of it."""
    return Operand(operand.name, operand.position, operand.shape, padding=value)


def Sum(body: Callable[..., Any], **ranges: int) -> Reduction:
    """The sum over the parameters of ``body``; a range that no operand's shape tells is given by name."""
    return _reduction("sum", body, ranges)


def Max(body: Callable[..., Any], **ranges: int) -> Reduction:
    """The largest over the parameters of ``body``; see `Sum`."""
    return _reduction("max", body, ranges)


def Min(body: Callable[..., Any], **ranges: int) -> Reduction:
    """The smallest over the parameters of ``body``; see `Sum`."""
    return _reduction("min", body, ranges)


def Prod(body: Callable[..., Any], **ranges: int) -> Reduction:
    """The product over the parameters of ``body``; see `Sum`."""
    return _reduction("prod", body, ranges)


def _reduction(reducer: Reducer, body: Callable[..., Any], ranges: Mapping[str, int]) -> Reduction:
    names = _parameters(body, f"the argument of {reducer.capitalize()}")
    unknown = [name for name in ranges if name not in names]
    if unknown:
        raise RuleError(
            f"{reducer.capitalize()} was given ranges of {unknown}, and its variables are {list(names)}"
        )
    variables = tuple(Variable(name, "reduction", reducer, ranges.get(name)) for name in names)
    return Reduction(
        reducer=reducer, variables=variables, body=as_expression(body(*map(_index_of, variables)))
    )


class Opaque:
    """A function of which only the reads are known.

    Called with elements, slabs (``mat[b, :, :]``) or functions of index variables, it returns a value, or a tensor
    that is indexed: ``Cholesky(mat[b, :, :])[i, j]``.
    """

    def __init__(self, name: str = "an opaque function") -> None:
        self.name = name

    def __call__(self, *arguments: Any) -> OpaqueValue:
        return OpaqueValue(name=self.name, arguments=tuple(map(self._argument, arguments)))

    def _argument(self, argument: Any) -> Expression:
        if isinstance(argument, Operand):
            return argument[...]
        if callable(argument) and not isinstance(argument, Expression):
            names = _parameters(argument, f"an argument of {self.name}")
            variables = [Variable(name, "opaque") for name in names]
            return as_expression(argument(*map(_index_of, variables)))
        return as_expression(argument)


def run_description(
    description: DescriptionFn,
    in_shapes: Sequence[Shape],
    out_shapes: Sequence[Shape],
    params: Mapping[str, Any],
) -> Description:
    """Run a description on stand-ins for operands of these shapes.

    Keyword-only parameters of it are read from ``params``, the parameters of the equation.

    Raises:
      RuleError: arity or rank does not match, an index is not affine, or a parameter is missing.
    """
    names, options = operands_and_options(description, len(in_shapes))
    if len(names) != len(in_shapes):
        raise RuleError(f"the description has operands {list(names)}, and the operator has {len(in_shapes)}")
    missing = [name for name in options if name not in params]
    if missing:
        raise RuleError(f"the description asks for parameters {missing}; the operator has {sorted(params)}")
    operands = [Operand(name, i, tuple(shape)) for i, (name, shape) in enumerate(zip(names, in_shapes))]
    returned = description(*operands, **{name: params[name] for name in options})
    functions = returned if isinstance(returned, (tuple, list)) else (returned,)
    if len(functions) != len(out_shapes):
        raise RuleError(
            f"the description returns {len(functions)} results, and the operator has {len(out_shapes)}"
        )
    variables, bodies = [], []
    for number, (function, shape) in enumerate(zip(functions, out_shapes)):
        variables.append(_result_variables(function, number, shape))
        bodies.append(_body(function, variables[-1]))
    return Description(
        operand_names=names,
        in_shapes=tuple(map(tuple, in_shapes)),
        out_shapes=tuple(map(tuple, out_shapes)),
        variables=tuple(variables),
        bodies=tuple(bodies),
    )


def operands_and_options(
    description: DescriptionFn, num_operands: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of a description's operands and of its keyword-only parameters; ``*operands`` takes as many as there are.

    Raises:
      RuleError: it is no function of operands.
    """
    if not callable(description):
        raise RuleError(
            f"a description is {description!r}: expected a function of operands that returns a function of index "
            "variables, such as lambda a, b: lambda i, j: Sum(lambda k: a[i, k] * b[k, j])"
        )
    parameters = inspect.signature(description).parameters.values()
    options = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            names.extend(f"{parameter.name}{i}" for i in range(len(names), num_operands))
    return tuple(names), options


def _result_variables(function: Any, number: int, shape: Shape) -> tuple[Variable, ...]:
    if isinstance(function, Expression) or not callable(function):
        if not shape:
            return ()
        raise RuleError(
            f"result {number} is described by {type(function).__name__}: expected a function of {len(shape)} index "
            "variables"
        )
    names = _parameters(function, f"result {number}", len(shape))
    if len(names) != len(shape):
        raise RuleError(
            f"result {number} is described with index variables {list(names)}, and it has rank {len(shape)}: "
            f"its shape is {tuple(shape)}"
        )
    return tuple(Variable(name, "result", size=size) for name, size in zip(names, shape))


def _body(function: Any, variables: tuple[Variable, ...]) -> Expression:
    body = as_expression(function(*map(_index_of, variables)) if callable(function) else function)
    for element in elements(body, inside_opaque=False):
        if element.is_slab:
            raise RuleError(
                "a slice stands outside of an Opaque call: a value is one element, as in data[b, x]"
            )
    return body


def _parameters(function: Any, what: str, num_variables: int | None = None) -> tuple[str, ...]:
    """Names of a function's parameters; ``*i`` stands for as many as are wanted, one with a default is no variable."""
    if not callable(function) or isinstance(function, Expression):
        raise RuleError(
            f"{what} is {function!r}: expected a function of index variables, such as lambda i: ..."
        )
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL and num_variables is not None:
            names.extend(f"{parameter.name}{i}" for i in range(len(names), num_variables))
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        else:
            raise RuleError(f"{what} has the parameter {parameter}: expected plain names of index variables")
    return tuple(names)


def _index_of(variable: Variable) -> Index:
    return Index(terms=((variable, 1),), constant=0)


def children(expression: Expression) -> tuple[Expression, ...]:
    """The values that a value is made of."""
    if isinstance(expression, Arithmetic):
        return expression.arguments
    if isinstance(expression, Reduction):
        return (expression.body,)
    if isinstance(expression, Element):
        return expression.data
    if isinstance(expression, OpaqueValue):
        return expression.arguments + tuple(e for e in expression.index if isinstance(e, Expression))
    return ()


def elements(expression: Expression, inside_opaque: bool = True) -> list[Element]:
    """All reads of operands in a value, those in arguments of Opaque calls unless told otherwise."""
    found = [expression] if isinstance(expression, Element) else []
    if isinstance(expression, OpaqueValue) and not inside_opaque:
        return found
    return [*found, *itertools.chain.from_iterable(elements(c, inside_opaque) for c in children(expression))]
