"""Symbolic intervals (Tofu section 3.2, figure 5): the elements of a dimension that an affine index can take.

Both ends are affine in the symbolic upper bounds of the variables. Unlike in the paper two intervals may be added,
which makes ``x + dx`` a window with a halo instead of an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from jaxplan.ir.tdl._expression import Index, Variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """``sum of coefficient * upper bound of variable, + constant``."""

    terms: tuple[tuple[Variable, Fraction], ...] = ()
    constant: Fraction = Fraction(0)

    def __add__(self, other: Bound) -> Bound:
        factors = dict(self.terms)
        for variable, factor in other.terms:
            factors[variable] = factors.get(variable, Fraction(0)) + factor
        terms = tuple((variable, factor) for variable, factor in factors.items() if factor)
        return Bound(terms=terms, constant=self.constant + other.constant)

    def __mul__(self, number: int) -> Bound:
        terms = tuple((variable, factor * number) for variable, factor in self.terms if number)
        return Bound(terms=terms, constant=self.constant * number)

    def at(self, sizes: Mapping[Variable, int]) -> Fraction:
        """The bound for given ranges."""
        return sum((factor * sizes[variable] for variable, factor in self.terms), self.constant)

    def __str__(self) -> str:
        words = [_word(variable, factor) for variable, factor in self.terms]
        if self.constant or not words:
            words.append(str(self.constant))
        return " + ".join(words).replace("+ -", "- ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Whole numbers from ``first`` up to, not including, ``stop``; prints with capital letters for upper bounds."""

    first: Bound
    stop: Bound

    def __add__(self, other: Interval | int) -> Interval:
        """All sums of an element of each: one less than both lengths together."""
        if isinstance(other, int):
            shift = Bound(constant=Fraction(other))
            return Interval(first=self.first + shift, stop=self.stop + shift)
        less = Bound(constant=Fraction(-1))
        return Interval(first=self.first + other.first, stop=self.stop + other.stop + less)

    def __mul__(self, number: int) -> Interval:
        """From the first to the last multiple, holes included."""
        one = Bound(constant=Fraction(1))
        ends = self.first * number, (self.stop + one * -1) * number
        first, last = ends if number >= 0 else ends[::-1]
        return Interval(first=first, stop=last + one)

    def at(self, sizes: Mapping[Variable, int]) -> tuple[int, int]:
        """First element and stop for given ranges, rounded outwards."""
        return self.first.at(sizes).__floor__(), self.stop.at(sizes).__ceil__()

    def __str__(self) -> str:
        return f"[{self.first}, {self.stop})"


def part_of(variable: Variable, part: int = 0, num_parts: int = 1) -> Interval:
    """The values of a variable in one of several equal parts: ``[0, X/2)`` and ``[X/2, X)`` of two."""
    ends = (Fraction(part, num_parts), Fraction(part + 1, num_parts))
    first, stop = (Bound(terms=((variable, end),) if end else ()) for end in ends)
    return Interval(first=first, stop=stop)


def index_interval(index: Index, ranges: Mapping[Variable, Interval]) -> Interval:
    """The elements that an affine index takes; variables not in ``ranges`` run over all their values."""
    one = Bound(constant=Fraction(1))
    interval = Interval(first=Bound(), stop=one)
    for variable, factor in index.terms:
        interval = interval + ranges.get(variable, part_of(variable)) * factor
    return interval + index.constant


def _word(variable: Variable, factor: Fraction) -> str:
    name = variable.name.upper()
    number = "" if factor.numerator == 1 else f"{factor.numerator}*"
    return f"{number}{name}" + (f"/{factor.denominator}" if factor.denominator > 1 else "")
