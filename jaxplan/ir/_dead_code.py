"""Which equations of a program are live, loops and branches included."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from jaxplan.ir._program import REGION_OUT, Equation, Region


def remove_dead(
    equations: Sequence[Equation], outputs: Sequence[int], regions: Sequence[Region]
) -> tuple[tuple[Equation, ...], tuple[Region, ...]]:
    """Drop equations with unread results, keeping those with effects; indices are renumbered.

    A carry is live when its last value is read, or its value in the body: repeated until nothing changes.
    """
    live, before = set(outputs), -1
    kept = _live_equations(equations, live, regions)
    while regions and len(live) != before:
        before = len(live)
        kept = _live_equations(equations, live, regions)
    renumbered = tuple([eqn.at(i, eqn.operands, eqn.results) for i, eqn in enumerate(kept)])
    if not regions:
        return renumbered, ()
    alive = {eqn.index for eqn in kept}
    place = list(itertools.accumulate((eqn.index in alive for eqn in equations), initial=0))
    return renumbered, tuple(_renumbered(region, place, alive) for region in regions)


def _live_equations(
    equations: Sequence[Equation], live: set[int], regions: Sequence[Region]
) -> list[Equation]:
    kept: list[Equation] = []
    for eqn in reversed(equations):
        is_carry = eqn.name == REGION_OUT and eqn.params["role"] == "carry"
        if (
            not live.isdisjoint(eqn.results)
            or (is_carry and eqn.operands[0] in live)
            or getattr(eqn.origin, "effects", None)
        ):
            kept.append(eqn)
            live.update(eqn.operands)
            if eqn.name == REGION_OUT:
                region = regions[eqn.params["region"]]
                live.update(t for t in (region.selector, region.predicate) if t is not None)
    kept.reverse()
    return kept


def _renumbered(region: Region, place: Sequence[int], alive: set[int]) -> Region:
    """``place[i]``: how many of the first ``i`` equations are alive."""
    return dataclasses.replace(
        region,
        start=place[region.start],
        stop=place[region.stop],
        entries=tuple(tuple(place[e] for e in body if e in alive) for body in region.entries),
        exits=tuple(place[e] for e in region.exits if e in alive),
        ranges=tuple((place[first], place[last]) for first, last in region.ranges),
    )
