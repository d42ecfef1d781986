"""Which of many priced plans become the points of a frontier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from jaxplan.plans._undominated import Timed, undominated

NUM_RUNGS = 24
"""Steps of the geometric ladder of memory between the leanest and the fastest point, one point at each rung at most."""
SAME_MEMORY = 0.01
"""Plans nearer than this fraction of memory are one point, the fastest of them: no prediction tells them apart, and
nobody gives half of the speed for a hundredth of the memory."""
SAME_TIME = 0.01
"""Plans nearer than this fraction of time are equally fast: of two with the same memory the leaner one is enough."""

_P = TypeVar("_P", bound=Timed)
_Q = TypeVar("_Q", bound=Timed)


def shown_points(references: Sequence[_P], found: Sequence[_Q], limit_bytes: int | None) -> list[_P | _Q]:
    """The points that a person is shown: both ends, and the ones nearest to the rungs between them.

    Neighbours are `SAME_MEMORY` apart, the leanest two perhaps less: the leanest takes no more memory than any
    reference strategy, and a plan that is faster than it by more than `SAME_TIME` stands beside it.

    Args:
      references, found: plans of the reference strategies, and others.
      limit_bytes: memory of a device; None: all fit.

    Returns:
      Points by ascending memory; none where nothing fits.
    """
    # Of equals what was found: it splits the leading dimension where others cost the same: its pieces arrive in order.
    everything: list[_P | _Q] = [*found, *references]
    best = undominated(p for p in everything if limit_bytes is None or p.memory_bytes <= limit_bytes)
    best = _apart(best, min((p.memory_bytes for p in references), default=math.inf))
    if len(best) <= 2:
        return best
    low, high = best[0].memory_bytes, best[-1].memory_bytes
    kept = {0, len(best) - 1}
    for rung in range(1, NUM_RUNGS):
        wanted = low * (high / low) ** (rung / NUM_RUNGS)
        kept.add(min(range(len(best)), key=lambda i: abs(best[i].memory_bytes - wanted)))
    return [best[i] for i in sorted(kept)]


def _apart(plans: Sequence[_P], most_bytes: float) -> list[_P]:
    """Of undominated plans by ascending memory the fastest, and from there each time the next that saves
    `SAME_MEMORY`. Below the last stands the fastest of at most ``most_bytes``, in its place where that is as fast."""
    kept = list(plans[-1:])
    for plan in reversed(plans):
        if (1 + SAME_MEMORY) * plan.memory_bytes <= kept[-1].memory_bytes:
            kept.append(plan)
    lean = [plan for plan in plans if plan.memory_bytes <= most_bytes]
    if lean and lean[-1].memory_bytes < kept[-1].memory_bytes:
        if len(kept) > 1 and lean[-1].time_seconds <= (1 + SAME_TIME) * kept[-1].time_seconds:
            kept.pop()
        kept.append(lean[-1])
    return kept[::-1]
