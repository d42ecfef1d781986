"""Windows of past values in the state of a step: ``before, now -> now, step(now, before)``.

A value that is returned both unchanged and updated is continued by its update; the copy takes the place of the value
before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jaxplan.ir._assign import Score
from jaxplan.ir._program import PairFlow
from jaxplan.ir._successors import Flow


def with_past_values(found: Mapping[int, int], scores: Mapping[tuple[int, int], Score]) -> dict[int, int]:
    """The same assignment, but no value is continued by a copy of it while another that is farther takes its update.

    Of ``before, now -> now, step(now, before)`` as bare arrays in any order, ``step(now, before)`` succeeds ``now``,
    the nearer one, and the copy of ``now`` takes the place of ``before``.
    """
    result = dict(found)
    for a, b in found.items():
        if not scores[a, b].is_unchanged:
            continue
        for c, d in result.items():
            if scores.get((c, d), scores[a, b]).is_unchanged or (a, d) not in scores:
                continue
            if scores[a, d].steps < scores[c, d].steps:
                result[a], result[c] = d, b
                break
    return result


def without_past_values(flows: Mapping[tuple[int, int], Flow]) -> Iterator[tuple[int, int]]:
    """Pairs of places, without copies of a value that is nearest to the update at its own place: past values."""
    nearest: dict[int, int] = {}  # target -> source
    for (a, b), flow in flows.items():
        if b not in nearest or flow.steps < flows[nearest[b], b].steps:
            nearest[b] = a
    for (a, b), flow in flows.items():
        own = flows.get((a, a))
        is_updated = own is not None and own.kind == "updated" and nearest[a] == a
        if a == b or flow.kind == "updated" or not is_updated:
            yield a, b


def is_window(kinds: Mapping[tuple[int, int], PairFlow], size: int) -> bool:
    """Whether values move along places unchanged: a window of past values, or buffers that are swapped.

    In ``now, step(now, before)`` for ``before, now`` the value ``now`` is returned both unchanged and updated, so that
    the unchanged one is a past value, at the place of another. A network that is frozen is only returned unchanged.

    Args:
      kinds: by (source, target), both numbered in order.
      size: of sources and of targets.
    """
    unchanged = {a: b for (a, b), kind in kinds.items() if kind == "unchanged"}
    updated = {a for (a, _), kind in kinds.items() if kind == "updated"}
    moves = not updated.isdisjoint(unchanged) or len(set(unchanged.values())) == size
    return moves and all(b in unchanged.values() or kinds.get((b, b)) == "updated" for b in range(size))
