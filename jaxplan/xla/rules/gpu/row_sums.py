"""Sums over rows, the gradients of biases and scales, in GPU programs."""

from __future__ import annotations

from collections.abc import Iterable

from jaxplan.ir import Equation
from jaxplan.xla._facts import Facts

SPLIT_ROWS = 4096
"""A sum over more rows than these is split into two, the first of which is fused with its operand:
https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/tree_reduction_rewriter.cc
(``ReductionDimensionRaceFreeBound``)."""


def row_sums(facts: Facts, tensors: Iterable[int]) -> list[Equation]:
    """The equations that sum one of some tensors over its rows and keep its columns, the last dimension."""
    found: list[Equation] = []
    for t in tensors:
        last = len(facts.tensors[t].shape) - 1
        sums = (e for e in facts.readers(t) if facts.family(e.index) == "reduction")
        found += (e for e in sums if last not in e.params.get("axes", (last,)))
    return found
