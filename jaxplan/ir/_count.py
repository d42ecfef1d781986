"""The work of an operator: its arithmetic by unit and dtype, and the bytes that it moves."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from jaxplan.errors import RuleError

Amounts = tuple[tuple[str, float], ...]
"""(dtype, number of operations) pairs, each dtype once."""

_UNITS = ("matrix", "exact", "vector")
_BAD_AMOUNT_MSG = (
    "Count({field}=...) was given {given!r}; expected a number of at least 0{pairs}. "
    "Likely cause: a size that is not known when the step is traced"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The work of one execution of an operator on whole operands; splits of the operator divide it.

    Units work side by side, so the slowest of them and the memory decide the time. An operator that says nothing about
    bytes reads each operand once and writes each result once.

    Attributes:
      matrix: (dtype, FLOPs) pairs at the rate of matrix products in that dtype, two per multiply-add.
      exact: (dtype, FLOPs) pairs in full precision: float32 stays float32, as in the libraries of linear algebra.
      vector: (dtype, operations) pairs of vector units: additions, comparisons, steps of a function.
      moved: bytes through memory in all, where data passes through it several times; 0: as ``touched`` says.
      touched: bytes of each operand, then of each result, that are read or written; None for one that is touched as a
        whole, () where all are.
      rewrites: result 0 is operand 0 with so many bytes read and written anew, in place where nothing else reads
        operand 0; None for every other operator.
      added_to: additions to each number of result 0, where several updates may name one; 0 for other operators.
      kernels: kernels that run one after the other because each reads the results of the one before.
      streams: the compiler fuses the operator into its neighbours: it pays for the buffers that it touches, and for
        arithmetic as far as that takes longer than streaming its operands and results.
      caveat: the part of the work that is not known, '' where all of it is.

    >>> import jaxplan
    >>> jaxplan.Count(matrix=(("bfloat16", 2.0 * 64 * 128 * 256),), kernels=2).kernels  # a dot, in two kernels
    2
    """

    matrix: Amounts = ()
    exact: Amounts = ()
    vector: Amounts = ()
    moved: float = 0.0
    touched: tuple[float | None, ...] = ()
    rewrites: float | None = None
    added_to: float = 0.0
    kernels: int = 1
    streams: bool = False
    caveat: str = ""

    def __post_init__(self) -> None:
        for unit in _UNITS:
            for pair in getattr(self, unit):
                if not (isinstance(pair, tuple) and len(pair) == 2 and _is_amount(pair[1])):
                    text = " for each dtype, as in (('float32', 2e9),)"
                    raise RuleError(_BAD_AMOUNT_MSG.format(field=unit, given=getattr(self, unit), pairs=text))
        for field in ("moved", "added_to", "kernels"):
            if not _is_amount(getattr(self, field)):
                raise RuleError(_BAD_AMOUNT_MSG.format(field=field, given=getattr(self, field), pairs=""))

    @property
    def flops(self) -> float:
        """Operations of all units together."""
        return sum(number for unit in _UNITS for _, number in getattr(self, unit))


def added(counts: Iterable[tuple[float, Count]]) -> Count:
    """The arithmetic of several operators in one kernel, each so many times; nothing about their bytes."""
    totals: dict[str, dict[str, float]] = {unit: {} for unit in _UNITS}
    caveats: dict[str, None] = {}
    for times, count in counts:
        for unit, total in totals.items():
            for dtype, number in getattr(count, unit):
                total[dtype] = total.get(dtype, 0.0) + times * number
        caveats |= dict.fromkeys(filter(None, [count.caveat]))
    matrix, exact, vector = (tuple(sorted(total.items())) for total in totals.values())
    return Count(matrix=matrix, exact=exact, vector=vector, caveat="; ".join(caveats))


def _is_amount(number: object) -> bool:
    return isinstance(number, int | float) and math.isfinite(number) and number >= 0
