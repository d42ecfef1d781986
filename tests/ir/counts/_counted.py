"""Numbers that count the operations on them, and counts of functions' equations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jaxplan.ir import Count, operator_count
from jaxplan.ir.rules import operator_rule
from tests.ir.rules._equations import equations


class Tally:
    """How many operations were done."""

    def __init__(self) -> None:
        self.operations = 0


class Number:
    """A number that adds to a tally with each operation."""

    def __init__(self, value: Any, tally: Tally) -> None:
        self.value, self.tally = value, tally

    def _new(self, value: Any) -> Number:
        self.tally.operations += 1
        return Number(value, self.tally)

    def __add__(self, other: Any) -> Number:
        return self._new(self.value + _value(other))

    def __sub__(self, other: Any) -> Number:
        return self._new(self.value - _value(other))

    def __rsub__(self, other: Any) -> Number:
        return self._new(_value(other) - self.value)

    def __mul__(self, other: Any) -> Number:
        return self._new(self.value * _value(other))

    def __truediv__(self, other: Any) -> Number:
        return self._new(self.value / _value(other))

    def __xor__(self, other: Any) -> Number:
        return self._new(self.value ^ _value(other))

    def __or__(self, other: Any) -> Number:
        return self._new(self.value | _value(other))

    def __lshift__(self, other: Any) -> Number:
        return self._new((self.value << _value(other)) & 0xFFFFFFFF)

    def __rshift__(self, other: Any) -> Number:
        return self._new(self.value >> _value(other))

    def sqrt(self) -> Number:
        return self._new(math.sqrt(self.value))

    __radd__, __rmul__ = __add__, __mul__


def _value(other: Any) -> Any:
    return other.value if isinstance(other, Number) else other


def matrix(rows: Any, tally: Tally) -> list[list[Number]]:
    """A matrix of counting numbers."""
    return [[Number(float(x), tally) for x in row] for row in rows]


def count_of(fn: Callable[..., Any], primitive: str, *args: Any) -> Count:
    """The count of the only equation of a primitive in a function."""
    import jax

    (eqn,) = [e for e in equations(jax.make_jaxpr(fn)(*args)) if e.primitive.name == primitive]
    avals = [[atom.aval for atom in side] for side in (eqn.invars, eqn.outvars)]
    rule = operator_rule(primitive, *avals, eqn.params)
    found = operator_count(primitive, *avals, eqn.params, rule)
    assert found is not None
    return found
