"""Values of a softmax and of its gradient as sums of products of named factors.

A backward pass is recognised by the values that it computes, not by how it is written: JAX differentiates a division,
a custom rule or a formula of the user's into different equations, and all of them have one normal form.
"""

from __future__ import annotations

from collections.abc import Hashable

Monomial = tuple[tuple[Hashable, int], ...]
"""(symbol, power) pairs, sorted by the text of the symbol, no power zero."""
Terms = dict[Monomial, float]
"""Monomial -> coefficient."""

EXPONENTIAL, GRADIENT, NORMALISER, DOTTED = "E", "G", "l", "T"
"""exp(score - row maximum); gradient of the weights; row sum of E; row sum of E G."""
_ONE: Monomial = ()


def symbol(name: Hashable, power: int = 1) -> Terms:
    """A factor by itself."""
    return {((name, power),): 1.0}


def constant(value: float) -> Terms:
    return {_ONE: value} if value else {}


WEIGHTS: Terms = {((EXPONENTIAL, 1), (NORMALISER, -1)): 1.0}
"""The softmax: E / l."""
SCORE_GRADIENT: Terms = {
    ((EXPONENTIAL, 1), (GRADIENT, 1), (NORMALISER, -1)): 1.0,
    ((EXPONENTIAL, 1), (NORMALISER, -2), (DOTTED, 1)): -1.0,
}
"""The gradient of the scores: E (G - T / l) / l."""


def added(a: Terms, b: Terms, sign: float = 1.0) -> Terms:
    total = dict(a)
    for monomial, value in b.items():
        total[monomial] = total.get(monomial, 0.0) + sign * value
    return {monomial: value for monomial, value in total.items() if value}


def multiplied(a: Terms, b: Terms) -> Terms:
    total: Terms = {}
    for m, x in a.items():
        for n, y in b.items():
            total = added(total, {_product(m, n): x * y})
    return total


def power(a: Terms, exponent: int) -> Terms | None:
    """A power of a single product; None of a sum."""
    if len(a) != 1:
        return None
    ((monomial, value),) = a.items()
    return {tuple((s, p * exponent) for s, p in monomial if p * exponent): value**exponent}


def row_sum(a: Terms, of_keys: frozenset[Hashable]) -> Terms | None:
    """The sum over keys; None where it is no known one.

    Args:
      of_keys: symbols that vary from key to key beside E and G.
    """
    total: Terms = {}
    for monomial, value in a.items():
        powers = dict(monomial)
        core = powers.pop(EXPONENTIAL, 0), powers.pop(GRADIENT, 0)
        if core not in ((1, 0), (1, 1)) or of_keys & powers.keys():
            return None
        name = DOTTED if core[1] else NORMALISER
        total = added(total, {_product(_sorted(powers), ((name, 1),)): value})
    return total


def same(a: Terms, b: Terms) -> bool:
    """Equal up to the rounding of coefficients."""
    return a.keys() == b.keys() and all(abs(a[m] - b[m]) <= 1e-6 * abs(b[m]) for m in a)


def _product(m: Monomial, n: Monomial) -> Monomial:
    powers = dict(m)
    for name, p in n:
        powers[name] = powers.get(name, 0) + p
    return _sorted(powers)


def _sorted(powers: dict[Hashable, int]) -> Monomial:
    return tuple(sorted(((s, p) for s, p in powers.items() if p), key=lambda pair: str(pair[0])))
