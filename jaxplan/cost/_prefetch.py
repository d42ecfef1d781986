"""How long before their readers parameters are gathered: prediction and lowering share it."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence

from jaxplan.ir import StepGraph
from jaxplan.xla.rules.both.schedule import LARGE_PARAMETER_BYTES

PREFETCH_CONTRACTIONS = 8
"""A parameter is gathered at most this many contractions before it is read, about a block of a transformer: the
compiler was seen to gather all parameters of a model first."""
PREFETCH_LOOK_UPS = 1
"""A table is gathered when the rows of the one before are in memory: the compiler was seen to fuse 26 look-ups into the
operator that joins their rows, and to gather all tables for it."""

OuterOperators = Mapping[str, Sequence[int]]
"""Family ("contraction" or "gather") -> its equations outside of loops, ascending."""


def outer_operators(graph: StepGraph) -> OuterOperators:
    """The operators of a step by which the lowering counts how far ahead parameters are gathered."""
    found: dict[str, list[int]] = {"contraction": [], "gather": []}
    for e in graph.program.equations:
        if e.region < 0 and graph.rules[e.index].family in found:
            found[graph.rules[e.index].family].append(e.index)
    return found


def place_of_guard(outer: OuterOperators, first: int) -> tuple[str, int]:
    """(family, place among its operators) of the one before which a parameter read at ``first`` is not gathered.

    A negative place: there is none, the step may begin with it.
    """
    like, ahead = "contraction", PREFETCH_CONTRACTIONS
    if first in outer["gather"]:
        like, ahead = "gather", PREFETCH_LOOK_UPS
    return like, bisect.bisect_left(outer[like], first) - ahead


def prefetched_from(graph: StepGraph, parameter: int, first: int, outer: OuterOperators) -> int:
    """The equation from which on the compiler may gather a parameter that is first read at ``first``."""
    like, place = place_of_guard(outer, first)
    is_large = graph.program.tensors[parameter].num_bytes >= LARGE_PARAMETER_BYTES
    return outer[like][place] if is_large and place >= 0 else 0


def views_of(graph: StepGraph, t: int) -> Iterator[int]:
    """A tensor, the tensor that it is a view or a cast of, and so on."""
    yield t
    while (e := graph.values.producer[t]) >= 0 and len(graph.program.equations[e].operands) == 1:
        (t,) = graph.program.equations[e].operands
        yield t
