"""Memory traffic of an equation: whole buffers, or the rows that it touches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxplan.cost._splits import equation_splits, tensor_splits
from jaxplan.ir import (
    CONTRACTION_FAMILIES,
    CUT,
    JOIN,
    REGION_IN,
    REGION_OUT,
    Count,
    Equation,
    GroupSpace,
    StepGraph,
)
from jaxplan.xla._buffers import Buffers

WRITE, ROWS = "write", "rows"
_STREAMING = Count(streams=True)
_IN_AND_OUT = 2
"""Rows that are updated are at most read and written once per trip: repeated ones stay in the cache."""


class Pass(NamedTuple):
    """Bytes of one tensor on one device, shape (K,); ``kind`` is the phase that reads them, `WRITE`, or `ROWS` that are
    updated in place. Reads of one tensor in one phase are one kernel's, and no more than all of it."""

    kind: str
    tensor: int
    num_bytes: np.ndarray
    at_most: np.ndarray


def passes_of(
    graph: StepGraph, equation: int, buffers: Buffers, space: GroupSpace, splits: np.ndarray
) -> Iterator[Pass]:
    """The tensors that an equation reads (in its phase) and writes, as far as they are buffers."""
    eqn = graph.program.equations[equation]
    count = graph.counts[equation] or _STREAMING
    positions = list(_touched(graph, eqn, buffers, count))
    parts = equation_splits(space, splits, equation) if positions else splits
    for kind, t, touched in positions:
        whole = buffers.num_bytes[t] / tensor_splits(space, splits, t)
        num_bytes = whole if touched is None else np.minimum(whole, touched / parts)
        if kind == ROWS:
            whole = _IN_AND_OUT * whole
            num_bytes = np.minimum(whole, (touched or 0.0) / parts)
        yield Pass(kind, t, num_bytes, whole)


def _touched(
    graph: StepGraph, eqn: Equation, buffers: Buffers, count: Count
) -> Iterator[tuple[str, int, float | None]]:
    """(kind, tensor, bytes of the whole that are touched; None: all)."""
    if eqn.name in (CUT, JOIN) or _is_operand_of_dots(graph, eqn, buffers):  # the same buffer
        return
    if eqn.name == "optimization_barrier" and eqn.phase == "update" and buffers.materialised[eqn.results[0]]:
        return  # sums of gradients stay where they are
    if eqn.index in buffers.sums:  # the dot's library call reads the other summand and writes the dot's result
        yield eqn.phase, buffers.sums[eqn.index], None
        return
    if eqn.name == REGION_IN:  # slices are read; constants and carries stay where they are
        yield from ((eqn.phase, t, None) for t in eqn.operands if eqn.params["role"] == "x")
        return
    if eqn.name == REGION_OUT:
        yield from ((WRITE, t, None) for t in eqn.results if eqn.params["role"] == "y")
        return
    touched = count.touched or (None,) * (len(eqn.operands) + len(eqn.results))
    sides = [(eqn.phase, t) for t in eqn.operands] + [(WRITE, t) for t in eqn.results]
    first = len(eqn.operands)
    for position, ((kind, t), num_bytes) in enumerate(zip(sides, touched, strict=True)):
        if count.rewrites is not None and position in (0, first):
            if position == 0:
                yield from _rewritten(graph, eqn, buffers, count.rewrites)
        elif buffers.materialised[t]:
            yield kind, t, num_bytes


def _is_operand_of_dots(graph: StepGraph, eqn: Equation, buffers: Buffers) -> bool:
    """Whether an equation is a reshape of a buffer that dots alone read, each of which counts what it reads."""
    if eqn.name != "reshape" or buffers.materialised[eqn.results[0]]:
        return False
    readers = graph.values.consumers[eqn.results[0]]
    return bool(readers) and all(graph.rules[c].family in CONTRACTION_FAMILIES for c in readers)


def _rewritten(
    graph: StepGraph, eqn: Equation, buffers: Buffers, rows: float
) -> Iterator[tuple[str, int, float | None]]:
    """Operand 0 and the result that takes its place: both as a whole where the operand lives on, the result where the
    operand is no buffer (zeros, a value of the same kernel); and the rows."""
    operand, result = eqn.operands[0], eqn.results[0]
    if not is_overwritten(graph, eqn) or not buffers.materialised[operand]:
        if buffers.materialised[operand]:
            yield eqn.phase, operand, None
        if buffers.materialised[result]:
            yield WRITE, result, None
    yield ROWS, result, rows


def is_rewriting(graph: StepGraph, eqn: Equation) -> bool:
    """Whether an equation updates its operand in place."""
    count = graph.counts[eqn.index]
    return count is not None and count.rewrites is not None and is_overwritten(graph, eqn)


def is_overwritten(graph: StepGraph, eqn: Equation) -> bool:
    """Whether nothing reads operand 0 of an equation later, so that the result may take its buffer."""
    program, t = graph.program, eqn.operands[0]
    made_by = graph.values.producer[t]
    if made_by < 0 and not any(program.donated[i] for i, u in enumerate(program.inputs) if u == t):
        return False
    by = program.equations[made_by] if made_by >= 0 else None
    if by is not None and by.name == REGION_IN and by.params["role"] != "carry":
        return False  # read again in the next trip, or by another branch
    if t in program.returned:
        return False
    return all(c <= eqn.index or _is_carry_exit(program.equations[c], t) for c in graph.values.consumers[t])


def _is_carry_exit(eqn: Equation, t: int) -> bool:
    """Whether an equation reads a carry only as the buffer of its successor."""
    return eqn.name == REGION_OUT and eqn.params["role"] == "carry" and t not in eqn.operands[1:]
