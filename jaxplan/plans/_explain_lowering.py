"""The part of `plan.explain()` on the lowering decisions."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.partition import Lowering


def lowering_rows(lowering: Lowering) -> list[str]:
    """One row for each kind of decision that the plan has."""
    found = [f"  {number:>5} x {text}" for number, text in _counts(lowering) if number]
    return found or ["  none besides constraints"]


def _counts(lowering: Lowering) -> Iterator[tuple[int, str]]:
    schedule, reshardings = lowering.schedule, lowering.reshardings
    narrow = [r.dtype for r in reshardings if r.dtype is not None]
    yield len(schedule.orders), "weight gradient that runs after the input gradient of the same cotangent"
    yield len(schedule.barriers), "dot that runs only after all earlier weight gradients"
    yield len(schedule.trip_barriers), "barrier in a loop that recomputes, behind earlier dots of the trip"
    yield len(schedule.recompute_barriers), "recomputed block that begins after all earlier weight gradients"
    yield len(schedule.deferred), "weight gradient that is predicted to be deferred"
    yield sum(r.repeated for r in reshardings), "copy that is gathered again in the backward pass"
    yield len(narrow), f"transfer in a narrower dtype ({', '.join(sorted(set(narrow)))})"
    yield len(lowering.islands), "operator in a manual region"
    yield len(lowering.reduced_at_once), "gradient that is reduced as soon as it is made"
    yield len(lowering.gather_guards), "operator before which parameters are not gathered"
    yield len(lowering.merge_guards), "dot that is not merged with others of the same operand"
    yield len(lowering.written) + len(lowering.written_copies), "result that is materialised behind a barrier"
    yield len(lowering.unpoolings), "gradient of max pooling that waits for its cotangent"
