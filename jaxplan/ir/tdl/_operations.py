"""How many operations a description spells out."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxplan.ir.tdl._expression import Arithmetic, Expression, OpaqueValue, Reduction, Variable
from jaxplan.ir.tdl._language import Description, children


def operations_of(description: Description, sizes: Mapping[Variable, int]) -> float | None:
    """Additions, multiplications and other functions of numbers for all elements of all results; None where an
    ``Opaque`` function computes some of them.

    ``sizes``: the range of each variable.
    """
    total = 0.0
    for shape, body in zip(description.out_shapes, description.bodies, strict=True):
        number = _per_element(body, sizes)
        if number is None:
            return None
        total += number * math.prod(shape)
    return total


def _per_element(expression: Expression, sizes: Mapping[Variable, int]) -> float | None:
    if isinstance(expression, OpaqueValue):
        return None
    parts = [_per_element(child, sizes) for child in children(expression)]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if isinstance(expression, Reduction):
        return (sum(known) + 1) * math.prod(sizes[variable] for variable in expression.variables)
    return sum(known) + isinstance(expression, Arithmetic)
