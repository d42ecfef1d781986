"""Multilinearity and kind of an operator, read off its description."""

from __future__ import annotations

import itertools
from typing import Literal

from jaxplan.ir.tdl._expression import (
    Arithmetic,
    Element,
    Expression,
    Index,
    OpaqueValue,
    Reduction,
    Variable,
)
from jaxplan.ir.tdl._language import Description, children, elements

_Degree = Literal["constant", "linear", "other"]
# Sets of more operands than this are not looked for; single operands and all together always are.
_MAX_SET = 3


def linear_sets(description: Description) -> tuple[tuple[int, ...], ...]:
    """The smallest sets of operands in which every result is jointly linear, as `OperatorRule.linear` has them."""
    operands = range(len(description.in_shapes))
    sizes = [n for n in range(1, len(operands) + 1) if n <= _MAX_SET or n == len(operands)]
    found: list[tuple[int, ...]] = []
    for chosen in itertools.chain.from_iterable(itertools.combinations(operands, n) for n in sizes):
        if any(set(known) <= set(chosen) for known in found):
            continue
        degrees = {_degree(body, frozenset(chosen)) for body in description.bodies}
        if degrees == {"linear"}:
            found.append(chosen)
    return tuple(found)


def family_of(description: Description, has_window: bool) -> str:
    """The family of an operator, by which it is grouped and priced (see `OperatorRule.family`)."""
    nodes = list(itertools.chain.from_iterable(map(_nodes, description.bodies)))
    if has_window:
        return "window"
    if any(isinstance(node, OpaqueValue) for node in nodes):
        return "opaque"
    if any(isinstance(node, Reduction) for node in nodes):
        return "contraction" if _is_contraction(description) else "reduction"
    is_elementwise = all(
        _is_aligned(read, variables)
        for variables, body in zip(description.variables, description.bodies)
        for read in elements(body)
    )
    return "elementwise" if is_elementwise else "shape"


def _is_aligned(read: Element, variables: tuple[Variable, ...]) -> bool:
    """Whether the indices are the result's own, in order; a scalar always is."""
    own = [((variable, 1),) for variable in variables]
    return not read.index or [isinstance(e, Index) and not e.constant and e.terms for e in read.index] == own


def _is_contraction(description: Description) -> bool:
    """One sum over a product in which the first two operands are factors."""
    if len(description.bodies) != 1 or linear_sets(description)[:2] != ((0,), (1,)):
        return False
    body = description.bodies[0]
    return isinstance(body, Reduction) and body.reducer == "sum"


def _nodes(expression: Expression) -> list[Expression]:
    return [expression, *itertools.chain.from_iterable(map(_nodes, children(expression)))]


def _degree(expression: Expression, operands: frozenset[int]) -> _Degree:
    """Whether a value is independent of some operands, linear in them together, or neither."""
    if isinstance(expression, Element):
        if any(_degree(value, operands) != "constant" for value in expression.data):
            return "other"
        if expression.operand not in operands:
            return "constant"
        return "other" if expression.padding else "linear"
    parts: list[_Degree] = [_degree(child, operands) for child in children(expression)]
    if all(part == "constant" for part in parts):
        return "constant"
    if isinstance(expression, Reduction):
        return parts[0] if expression.reducer == "sum" else "other"
    if not isinstance(expression, Arithmetic):
        return "other"
    if expression.kind == "add":
        return "linear" if all(part == "linear" for part in parts) else "other"
    if expression.kind in ("scale", "multiply"):
        return "linear" if sorted(parts) == ["constant", "linear"] else "other"
    return "linear" if expression.kind == "divide" and parts == ["linear", "constant"] else "other"
