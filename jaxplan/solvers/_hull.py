"""The lower convex hull of the frontier, by scalarised minimisations.

Every point that minimises time + slope x memory is truly on the frontier, and each such minimum is a straight
line below the whole frontier: a bound on the time at every memory limit.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxplan.core._log import until_interrupted
from jaxplan.solvers._minimise import Minimiser
from jaxplan.solvers._point import Point, non_dominated, score
from jaxplan.solvers._problem import Problem, Weights

# Sums of a thousand float64 costs agree to about 1e-13; below this fraction a difference is rounding.
ROUNDING = 1e-11
# Weight of the other objective at the two ends, as a fraction of both ranges: breaks ties there.
_TIE_WEIGHT = 1e-6

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A proven bound below (time, memory): no assignment lies below it, up to rounding.

    Attributes:
      time: seconds.
      memory: bytes.
      slope: seconds per byte, at least 0; infinite where memory alone was minimised.
      slack: how far below the point the bound lies: seconds, or bytes where the slope is infinite. Zero where
        the minimisation was proven.
    """

    time: float
    memory: int
    slope: float
    slack: float = 0.0

    def at(self, memory: int) -> float:
        if self.slope == math.inf:
            return -math.inf if memory >= self.memory - self.slack else math.inf
        return self.time - self.slack - self.slope * (memory - self.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hull:
    """Vertices of the lower convex hull and the lines below it.

    Attributes:
      points: the vertices, ascending in memory.
      lines: bounds, one for each minimisation.
      is_complete: whether every vertex was found, not only those that `max_solves` let through.
    """

    points: tuple[Point, ...]
    lines: tuple[Line, ...]
    is_complete: bool

    def lower_bound(self, memory: int) -> float:
        """Return seconds that no assignment of at most `memory` bytes beats."""
        return max(line.at(memory) for line in self.lines)


def fastest_point(problem: Problem, minimise: Minimiser, *, break_ties: bool = True) -> tuple[Point, float]:
    """Return the fastest assignment and a bound on its seconds.

    With `break_ties` it is the leanest of the fastest, as far as one more solve tells.

    Raises:
      InfeasibleError: every assignment has infinite time.
    """
    fast, line = _minimised(problem, minimise, (1.0, 0.0))
    bound = line.time - line.slack
    if not break_ties or not has_memory(problem):
        return fast, bound
    tied, _ = _minimised(problem, minimise, (1.0, _TIE_WEIGHT * fast.time / max(1, abs(fast.memory))))
    return (tied if tied.time <= fast.time and tied.memory < fast.memory else fast), bound


def has_memory(problem: Problem) -> bool:
    """Return whether anything in the problem takes memory."""
    if any(array.any() for array in problem.memory):
        return True
    return any(edge.memory is not None and edge.memory.any() for edge in problem.edges)


def leanest_point(problem: Problem, minimise: Minimiser) -> Point:
    """Return an assignment of least memory.

    Raises:
      InfeasibleError: every assignment has infinite time.
    """
    return _minimised(problem, minimise, (0.0, 1.0))[0]


def lower_hull(
    problem: Problem,
    minimise: Minimiser,
    *,
    max_solves: int = 64,
    tolerance: float = 0.0,
    progress: Progress | None = None,
) -> Hull:
    """Find the hull by dichotomy: between two neighbours, minimise along the normal of the line through them.

    The pair with the largest possible gain comes first, so `max_solves` cuts off the least gains. An interrupt
    (Ctrl-C) ends the search with the vertices found so far.

    Args:
      problem: the problem to solve.
      minimise: solves it for given weights.
      max_solves: most minimisations; four are needed for the ends.
      tolerance: leave neighbours alone where nothing between can gain more than this fraction of the time.
      progress: called with "hull" and the fraction of solves used.

    Raises:
      InfeasibleError: every assignment has infinite time.
    """
    found, lines = _ends(problem, minimise)
    queue: list[tuple[float, int, Line, Line]] = []
    points = {(point.memory, point.time): point for point in found}
    order = itertools.count()

    def push(left: Line, right: Line) -> None:
        gain = _possible_gain(left, right)
        if gain > tolerance:
            heapq.heappush(queue, (-gain, next(order), left, right))

    for left, right in itertools.pairwise(sorted(lines, key=lambda line: (line.memory, -line.slope))):
        push(left, right)
    with until_interrupted("the hull"):  # the vertices found so far are a hull, with weaker bounds
        while queue and len(lines) < max_solves:
            *_, left, right = queue[0]
            slope = (left.time - right.time) / (right.memory - left.memory)
            point, line = _minimised(problem, minimise, (1.0, slope))
            heapq.heappop(queue)
            lines.append(line)
            if (left.time - point.time) - slope * (point.memory - left.memory) > ROUNDING * left.time:
                points[point.memory, point.time] = point
                push(left, line)
                push(line, right)
            if progress is not None:
                progress("hull", len(lines) / max_solves)
    return Hull(points=tuple(non_dominated(points.values())), lines=tuple(lines), is_complete=not queue)


def _possible_gain(left: Line, right: Line) -> float:
    """Return how far, as a fraction, the bounds through two points meet below the chord between them."""
    if left.memory >= right.memory or left.time <= right.time:
        return 0.0
    if left.slope == math.inf:
        return math.inf
    chord = (left.time - right.time) / (right.memory - left.memory)
    steeper, flatter = left.slope - chord, chord - right.slope
    if steeper <= 0 or flatter <= 0:
        return 0.0
    reach = (right.memory - left.memory) * flatter / (steeper + flatter)
    return reach * steeper / (left.time - chord * reach)


def _ends(problem: Problem, minimise: Minimiser) -> tuple[list[Point], list[Line]]:
    """Return the leanest and the fastest point, each also with ties resolved where the next slope can."""
    fast, fast_line = _minimised(problem, minimise, (1.0, 0.0))
    lean, lean_line = _minimised(problem, minimise, (0.0, 1.0))
    if lean.memory >= fast.memory:
        return [fast], [fast_line]
    ratio = max(fast.time, lean.time - fast.time) / (fast.memory - lean.memory)
    near_lean, near_lean_line = _minimised(problem, minimise, (_TIE_WEIGHT / ratio, 1.0))
    near_fast, near_fast_line = _minimised(problem, minimise, (1.0, _TIE_WEIGHT * ratio))
    return [lean, near_lean, near_fast, fast], [lean_line, near_lean_line, near_fast_line, fast_line]


def _minimised(problem: Problem, minimise: Minimiser, weights: Weights) -> tuple[Point, Line]:
    """Solve for one pair of weights and score the result exactly."""
    optimum = minimise(weights)
    (point,) = score(problem, np.array([optimum.assignment], np.intp), weights=weights)
    slope = weights[1] / weights[0] if weights[0] else math.inf
    slack = (optimum.value - optimum.bound) / (weights[0] or weights[1])
    if slack <= ROUNDING * abs(point.time if weights[0] else point.memory):
        slack = 0.0
    return point, Line(time=point.time, memory=point.memory, slope=slope, slack=slack)
