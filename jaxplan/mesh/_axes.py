"""Atomic axes: the device count of every level of the machine, split into primes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomicAxis:
    """One prime factor of the device order; axis 0 of a topology is the outermost (slowest, most major).

    Attributes:
      name: mesh axis name: `node` for the only axis of its level, `gpu0`, `gpu1` where a level has several.
      size: devices along it, a prime number.
      level: index into `Topology.levels`, 0 = outermost.
    """

    name: str
    size: int
    level: int

    def __repr__(self) -> str:
        return f"{self.name}({self.size})"


def prime_factors(count: int) -> tuple[int, ...]:
    """Prime factors of a device count in descending order, `()` for 1.

    Descending, so that the minor axes are the twos: a tensor dimension takes odd factors rarely, and the axes
    that are used most then sit where the neighbours are nearest.
    """
    factors: list[int] = []
    divisor = 2
    while divisor * divisor <= count:
        while count % divisor == 0:
            factors.append(divisor)
            count //= divisor
        divisor += 1
    if count > 1:
        factors.append(count)
    return tuple(reversed(factors))


def atomic_axes(levels: Iterable[tuple[str, int]]) -> tuple[AtomicAxis, ...]:
    """Axes of levels given as (axis name prefix, size), outermost first.

    Example:
      >>> atomic_axes([("node", 2), ("gpu", 4)])
      (node(2), gpu0(2), gpu1(2))
    """
    return tuple(
        AtomicAxis(name=prefix if len(factors) == 1 else f"{prefix}{i}", size=factor, level=level)
        for level, (prefix, size) in enumerate(levels)
        for factors in (prime_factors(size),)
        for i, factor in enumerate(factors)
    )
