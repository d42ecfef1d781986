"""The elements that a description reads, and the obstacles to splitting its variables.

Partition-n-reduce (Tofu section 3.2): an operator is run as it is on parts of its operands, and the results are put
side by side or reduced. So a variable may be split only if nothing depends on its absolute value, and a reduced one
only if its reduction can be taken last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxplan.errors import RuleError
from jaxplan.ir._rule import Reducer
from jaxplan.ir.tdl._expression import (
    Arithmetic,
    Element,
    Expression,
    Index,
    OpaqueValue,
    Reduction,
    Variable,
    Whole,
)
from jaxplan.ir.tdl._language import Description, children

_ALL_REDUCERS: frozenset[Reducer] = frozenset({"sum", "max", "min", "prod"})
_NONE: frozenset[Reducer] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Facts of one description.

    Attributes:
      owner: variable -> number of the result that it belongs to, in order of appearance.
      elements: reads of operands, with the number of the result they are for.
      sizes: variable -> its range.
      refused: variable -> why it may not be split, for reasons other than where it reads.
    """

    owner: dict[Variable, int]
    elements: tuple[tuple[int, Element], ...]
    sizes: dict[Variable, int]
    refused: dict[Variable, str]


def find_reads(description: Description) -> Reads:
    """Walk over every result of a description.

    Raises:
      RuleError: a read lies outside of its operand, or ranges contradict each other or are unknown.
    """
    walk = _Walk()
    for number, (variables, body) in enumerate(zip(description.variables, description.bodies)):
        walk.owner.update(dict.fromkeys(variables, number))
        walk.visit(body, number, _ALL_REDUCERS)
    sizes = _find_sizes(description, walk)
    for _, element in walk.elements:
        _check_bounds(description, element, sizes)
    return Reads(owner=walk.owner, elements=tuple(walk.elements), sizes=sizes, refused=walk.refused)


class _Walk:
    """Collects facts; ``allowed`` are the reducers that could join partial values at this place."""

    def __init__(self) -> None:
        self.owner: dict[Variable, int] = {}
        self.elements: list[tuple[int, Element]] = []
        self.refused: dict[Variable, str] = {}

    def visit(self, expression: Expression, number: int, allowed: frozenset[Reducer]) -> None:
        if isinstance(expression, Index):
            self._refuse(expression, "its own value enters the result, and a part would count from zero")
            return
        if isinstance(expression, Element):
            self.elements.append((number, expression))
            self._own(expression, number)
        if isinstance(expression, OpaqueValue):
            for entry in expression.index:
                if isinstance(entry, Index):
                    self._refuse(entry, f"it picks from the result of {expression.name}")
        if isinstance(expression, Reduction):
            self.owner.update(dict.fromkeys(expression.variables, number))
            if expression.reducer not in allowed:
                reason = f"its {expression.reducer} is not taken last: parts could not be joined afterwards"
                self.refused.update(dict.fromkeys(expression.variables, reason))
        for child, reducers in _passed_on(expression, allowed):
            self.visit(child, number, reducers)

    def _refuse(self, index: Index, reason: str) -> None:
        for variable in index.variables:
            self.refused.setdefault(variable, reason)

    def _own(self, element: Element, number: int) -> None:
        for entry in element.index:
            for variable in entry.variables if isinstance(entry, Index) else ():
                self.owner.setdefault(variable, number)
                if variable.kind == "opaque":
                    self.refused.setdefault(variable, "it is inside the argument of an opaque function")


def _passed_on(
    expression: Expression, allowed: frozenset[Reducer]
) -> Iterator[tuple[Expression, frozenset[Reducer]]]:
    """The values that a value is made of, each with the reducers that may still be taken after it.

    A sum distributes over factors; ``a + sum(b)`` would count ``a`` once per part.
    """
    if isinstance(expression, Reduction):
        yield expression.body, allowed & {expression.reducer}
    elif isinstance(expression, Arithmetic) and expression.kind in ("scale", "multiply", "divide"):
        for position, child in enumerate(expression.arguments):
            is_number = isinstance(child, Index) and not child.terms
            passes = not (expression.kind == "divide" and position)
            if not is_number:
                yield child, allowed & {"sum"} if passes else _NONE
    else:
        for child in children(expression):
            yield child, _NONE


def _find_sizes(description: Description, walk: _Walk) -> dict[Variable, int]:
    """Ranges as the description says, or as the dimensions that a variable indexes alone.

    Where a dimension is read in no other way, the two must agree; ``a[i] * a[i + n]`` reads it half by half.
    """
    sizes = {variable: variable.size for variable in walk.owner if variable.size is not None}
    source = {
        variable: f"dimension {axis} of result {number}"
        for number, variables in enumerate(description.variables)
        for axis, variable in enumerate(variables)
    }
    shifted = {
        (element.operand, axis)
        for _, element in walk.elements
        for axis, entry in enumerate(element.index)
        if isinstance(entry, Whole) or not _is_plain(entry)
    }
    for _, element in walk.elements:
        shape, name = description.in_shapes[element.operand], description.operand_names[element.operand]
        for axis, (entry, size) in enumerate(zip(element.index, shape)):
            if isinstance(entry, Whole) or not _is_plain(entry):
                continue
            variable, where = entry.terms[0][0], f"dimension {axis} of {name}"
            is_part = element.padding is not None or (element.operand, axis) in shifted
            if sizes.setdefault(variable, size) != size and not is_part:
                raise RuleError(
                    f"index {variable} ranges over {sizes[variable]} in {source.get(variable, 'its declaration')} "
                    f"and over {size} in {where}"
                )
            source.setdefault(variable, where)
    for variable in walk.owner:
        if variable not in sizes and variable.kind == "opaque":
            continue
        if variable not in sizes:
            raise RuleError(
                f"the range of index {variable} is unknown: it indexes no dimension alone.\n"
                f"  fix: say it after the function, as in Sum(lambda {variable}: ..., {variable}=3)"
            )
    return sizes


def _is_plain(index: Index) -> bool:
    """Whether an index is a variable and nothing else."""
    return len(index.terms) == 1 and index.terms[0][1] == 1 and not index.constant


def _check_bounds(description: Description, element: Element, sizes: dict[Variable, int]) -> None:
    """Raise RuleError if an element lies outside of its operand somewhere."""
    if element.padding is not None:
        return
    shape, name = description.in_shapes[element.operand], description.operand_names[element.operand]
    for axis, (entry, size) in enumerate(zip(element.index, shape)):
        if isinstance(entry, Whole) or not all(sizes.get(variable) for variable in entry.variables):
            continue  # a slice, no elements at all, or a range that nobody knows
        reach = [factor * (sizes[variable] - 1) for variable, factor in entry.terms]
        first = entry.constant + sum(min(r, 0) for r in reach)
        last = entry.constant + sum(max(r, 0) for r in reach)
        if first < 0 or last >= size:
            raise RuleError(
                f"{name}[{entry}] reads elements {first} to {last} of dimension {axis} of size {size}.\n"
                f"  fix: correct the index, or write padded({name}) where a constant surrounds the operand"
            )
