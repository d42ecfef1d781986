"""Micro-batches in the search: the step as it is, and the same step with its batch worked through in slices.

Each number of slices is a program of its own (`jaxplan.ir.microbatch`) that is planned like any other; the frontier
holds the plans of all of them that nothing beats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jaxplan.core._interrupt import current
from jaxplan.errors import ArgumentError, InfeasibleError
from jaxplan.ir import MicroBatches, StepGraph, sliced_graph
from jaxplan.ir.microbatch import NotSeparableError
from jaxplan.plans._frontier import Frontier
from jaxplan.search._programs import PlanGraph, merged
from jaxplan.search._what_if import batch_sizes

NUMBERS = (2, 4, 8, 16)
"""Numbers of micro-batches that are looked at."""
MORE_NUMBERS = (*NUMBERS, 32, 64, 128)
"""... and where none of these fits."""
LEAST_LOSS = 0.25
"""By default slices are looked at where the memory limit costs this share of the time of a step. Recomputing the whole
forward pass costs as much: it is a third of the arithmetic of a step, so four thirds are computed."""


def in_microbatches(graph: StepGraph, num: int) -> StepGraph:
    """The step with its batch worked through in slices.

    Raises:
      ArgumentError: the batch does not divide into so many.
      NotSeparableError: examples are not independent; names the line.
    """
    program = graph.program
    if program.source is None:
        raise ArgumentError("micro-batches need the step itself, which is not at hand")
    dims = {path: min(of) for path, of in batch_sizes(graph).items()}
    return sliced_graph(graph, MicroBatches(num=num, dims=dims))


def plan_with_microbatches(
    graph: StepGraph,
    asked: bool | int | None,
    plan_graph: PlanGraph,
    limit_bytes: int | None = None,
    most_bytes: int | None = None,
) -> Frontier:
    """The frontier of a step, in as many slices as asked for.

    Args:
      limit_bytes: that a device holds, if it is limited.
      most_bytes: of all devices together, for the arrays that are stored from step to step, if they are limited.

    Raises:
      InfeasibleError: no plan fits, in slices neither.
      NotSeparableError: slices were asked for, and the examples are not independent.
    """
    if asked is False or not graph.program.equations:
        return plan_graph(graph)
    if asked is None:
        try:
            whole = plan_graph(graph)
        except InfeasibleError as error:
            if most_bytes is not None and sum(graph.program.tensors[t].num_bytes for t in graph.stored) > most_bytes:
                raise  # the arrays that are stored from step to step do not fit, in slices neither
            return _first_that_fits(graph, plan_graph, error, limit_bytes)
        if current().happened or not _is_slowed(whole):
            return whole
        try:
            slices = _first_that_fits(graph, plan_graph, InfeasibleError("no slices fit"), limit_bytes)
            return merged([whole, slices])
        except InfeasibleError:  # or the examples are not independent: there is the step as it is
            return whole
    if asked is not True:
        return plan_graph(in_microbatches(graph, asked))
    found, first = [], None
    try:
        found.append(plan_graph(graph))
    except InfeasibleError as error:
        first = error
    for sliced in _sliced_graphs(graph, NUMBERS):
        if found and current().happened:
            break
        try:
            found.append(plan_graph(sliced))
        except InfeasibleError as error:
            first = first or error
    if not found:
        assert first is not None
        raise first
    return merged(found)


def _is_slowed(whole: Frontier) -> bool:
    """Whether a reference that does not fit is faster by `LEAST_LOSS`, or nothing fits without attention in blocks."""
    limit = whole.memory_limit_bytes
    if limit is None:
        return False
    beyond = [plan.time_seconds for plan in whole.references.values() if plan.memory_bytes > limit]
    is_beaten = min(beyond, default=math.inf) < (1 - LEAST_LOSS) * whole.fastest().time_seconds
    return is_beaten or all(plan.sequences is not None for plan in whole.points)


def _sliced_graphs(graph: StepGraph, numbers: Sequence[int]) -> Iterator[StepGraph]:
    """The step in ever more slices, as far as its batch divides.

    Raises:
      NotSeparableError: it cannot run in the first number. More may be too many: a sort in blocks needs rows.
    """
    sizes = [size for dims in batch_sizes(graph).values() for size in dims.values()]
    usable = [num for num in numbers if all(size % num == 0 and size >= 2 * num for size in sizes)]
    for num in usable:
        try:
            sliced = in_microbatches(graph, num)
        except NotSeparableError:
            if num == usable[0]:
                raise
            return
        yield sliced


def _first_that_fits(
    graph: StepGraph, plan_graph: PlanGraph, error: InfeasibleError, limit_bytes: int | None
) -> Frontier:
    """The plans in the fewest slices that fit, with those of the next number; else the error of the step as it is.

    The memory of a slice halves with each number, so from four slices on all further numbers together save no more than
    the last one did: where that is not enough, they are not tried.
    """
    found: list[Frontier] = []
    before: int | None = None
    try:
        for sliced in _sliced_graphs(graph, MORE_NUMBERS):
            try:
                found.append(plan_graph(sliced))
            except InfeasibleError as other:
                least = other.smallest_memory_bytes
                error = other if (least or 0) < (error.smallest_memory_bytes or 0) else error
                if limit_bytes and before and least and least - (before - least) > limit_bytes:
                    break
                before = least
            if len(found) == 2 or (found and current().happened):
                break
    except (NotSeparableError, ArgumentError) as reason:
        raise _with_reason(error, reason) from None
    if not found:
        raise error
    return merged(found)


def _with_reason(error: InfeasibleError, reason: Exception) -> InfeasibleError:
    """The error of the step as it is, with the reason why slices of its batch do not help."""
    first_line = str(reason).partition("\n")[0]
    return InfeasibleError(
        f"{error}\n  micro-batches: {first_line}",
        smallest_memory_bytes=error.smallest_memory_bytes,
        memory_parts=error.memory_parts,
    )
