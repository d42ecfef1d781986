"""How a value depends on the arrangement of examples in micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

LOOP = -1
Place = tuple[int, int]
"""A micro-batch that a value is of: (`LOOP`, region) of one per trip, (K, k) of the k-th of K."""
Term = tuple[int, tuple[Place, ...]]
"""A summand: a signature, and the numbered micro-batches that it is of."""


class Depends(Exception):
    """Something depends on the arrangement."""


class Again(Exception):
    """A loop over micro-batches was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a value depends on the arrangement.

    Attributes:
      kind: ``same`` (not at all), ``examples``, ``part``, ``stack``, or ``sum`` (a carry that summands are added to).
      dims: dimensions of the numbers of micro-batches that are not entered, the outermost first, then that of the
        examples (examples); of the numbers (stack); the equation through which it enters (sum); dimensions along
        which it varies (same).
      family: numbers of micro-batches of all levels, and their size (examples).
      entered: the micro-batches that it is of.
      terms: summands of numbered micro-batches that are added so far (part, sum).
    """

    kind: str
    dims: tuple[int, ...] = ()
    family: tuple[int, ...] = ()
    entered: tuple[Place, ...] = ()
    terms: tuple[Term, ...] = ()

    def moved(self, by: int) -> How:
        return replace(self, dims=tuple([d + by for d in self.dims]))

    @property
    def numbered(self) -> tuple[Place, ...]:
        """The micro-batches that it is of by their numbers."""
        return tuple(place for place in self.entered if place[0] != LOOP)


def same(shape: Sequence[int]) -> How:
    """Of a value that does not depend on the arrangement and may vary along all dimensions."""
    return How(kind="same", dims=tuple(range(len(shape))))
