"""How often a ``while`` runs, where its jaxprs say so: a counter that goes by steps from one number to another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxplan.core import _compat

_STEPS_TO_END: dict[str, Callable[[float, float], float]] = {
    "lt": lambda distance, step: math.ceil(distance / step),
    "le": lambda distance, step: math.floor(distance / step) + 1,
    "gt": lambda distance, step: math.ceil(distance / step),
    "ge": lambda distance, step: math.floor(distance / step) + 1,
}
"""Comparison ``counter < end`` -> trips, from ``end - start`` and the step."""


def known_trips(params: Any, operands: Sequence[Any]) -> int | None:
    """Trips of a ``while`` equation; None where they depend on computed values.

    Args:
      params: of the equation.
      operands: the value of each operand, None where it is not known.
    """
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    cond, _ = _compat.open_jaxpr(params["cond_jaxpr"])
    body, _ = _compat.open_jaxpr(params["body_jaxpr"])
    if len(cond.eqns) != 1 or cond.eqns[0].primitive.name not in _STEPS_TO_END:
        return None
    (test,) = cond.eqns
    known = dict(zip(cond.invars[:num_cond], operands[:num_cond]))
    counter, end = test.invars[0], _number(test.invars[1], known)
    if cond.outvars[0] is not test.outvars[0] or counter not in cond.invars[num_cond:]:
        return None
    place = cond.invars.index(counter) - num_cond
    start = whole_number(operands[num_cond + num_body + place])
    known = dict(zip(body.invars[:num_body], operands[num_cond : num_cond + num_body]))
    step = _step(body, body.invars[num_body + place], body.outvars[place], known)
    if start is None or end is None or not step:
        return None
    falls = test.primitive.name in ("gt", "ge")
    if (step < 0) != falls:
        return None  # it does not end, or never begins
    return max(0, int(_STEPS_TO_END[test.primitive.name](end - start, step)))


def _step(body: Any, before: Any, after: Any, known: dict[Any, Any]) -> float | None:
    """The amount that each trip adds to a carry."""
    made = next((eqn for eqn in body.eqns if after in eqn.outvars), None)
    if made is None or made.primitive.name not in ("add", "sub"):
        return None
    first, second = made.invars
    if made.primitive.name == "add" and second is before:
        first, second = second, first
    number = _number(second, known)
    if first is not before or number is None:
        return None
    return number if made.primitive.name == "add" else -number


def _number(atom: Any, known: dict[Any, Any]) -> float | None:
    """A scalar integer, where it is one."""
    return whole_number(atom.val if isinstance(atom, _compat.Literal) else known.get(atom))


def whole_number(value: Any) -> int | None:
    """A known scalar integer as one, None for everything else."""
    if value is None or np.ndim(value) or not np.issubdtype(np.asarray(value).dtype, np.integer):
        return None
    return int(value)
