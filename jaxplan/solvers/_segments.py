"""The frontier between two neighbours of the hull, on the configurations that can matter there.

The corners below the staircase of known points are open between two hull vertices. Every assignment in
one has time + slope x memory at most that of the highest corner, so message passing can fix configurations
away; on the few that are left Pareto lists are mostly exact, and then so is that part of the frontier.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from jaxplan.solvers._dual import tighten
from jaxplan.solvers._ft import track_frontier
from jaxplan.solvers._point import Point, non_dominated, score
from jaxplan.solvers._problem import Problem
from jaxplan.solvers._prune import prune
from jaxplan.solvers._restrict import Labels, original_labels, restrict

# Candidates of the lists of one segment, exact and thinned; a core looks at some 2e7 a second.
_EXACT_CANDIDATES = 2_000_000
_THINNED_CANDIDATES = 2_000_000
# Configurations left per node beyond which exact lists are not worth the attempt.
_MOST_PER_NODE = 3
# Points of a thinned list.
LIST_CAP = 48
# Thinned lists lower the staircase, so that a second look leaves fewer configurations.
_LOOKS = 2
_MAX_GROUP = 256


def points_in_segment(
    problem: Problem, lean: Point, fast: Point, known: Sequence[Point]
) -> tuple[list[Point], bool]:
    """Return points between two neighbouring vertices, and whether the frontier between them is complete.

    Args:
      problem: the problem to solve.
      lean: a vertex of the hull.
      fast: the next one, with more memory and less time.
      known: points found so far, anywhere.
    """
    slope = (lean.time - fast.time) / (fast.memory - lean.memory)
    stairs = _between(known, lean, fast)
    for _ in range(_LOOKS):
        upper = max(above.time + slope * right.memory for above, right in pairwise(stairs))
        labels = tighten(problem, (1.0, slope), upper).labels
        found, is_exact = _lists(problem, labels)
        before, stairs = stairs, _between([*stairs, *found], lean, fast)
        if is_exact or stairs == before:
            return stairs, is_exact
    return stairs, False


def _between(points: Sequence[Point], lean: Point, fast: Point) -> list[Point]:
    inside = [point for point in points if lean.memory <= point.memory <= fast.memory]
    return non_dominated([lean, *inside, fast])


def _lists(problem: Problem, labels: Sequence[Labels]) -> tuple[list[Point], bool]:
    """Return the frontier over some configurations, thinned where its lists are too long."""
    small = restrict(problem, labels)
    undominated = prune(small)
    small = restrict(small, undominated)
    labels = [tuple(kept[label] for label in rows) for kept, rows in zip(labels, undominated)]
    attempts = [(None, _EXACT_CANDIDATES), (LIST_CAP, _THINNED_CANDIDATES)]
    if sum(small.num_configurations) > _MOST_PER_NODE * small.num_nodes:
        del attempts[0]
    for cap, budget in attempts:
        tracked = track_frontier(small, cap=cap, budget=budget, max_group=_MAX_GROUP)
        if tracked is not None and len(tracked.assignments):
            points = score(problem, original_labels(tracked.assignments, labels), tracked.choices)
            return points, tracked.is_exact
    return [], False
