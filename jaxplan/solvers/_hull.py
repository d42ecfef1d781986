"""The lower convex hull of the frontier, by exact scalarised eliminations.

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

from jaxplan.solvers._elimination import run_schedule
from jaxplan.solvers._point import Point, non_dominated, score
from jaxplan.solvers._problem import Problem, Weights
from jaxplan.solvers._schedule import Schedule

# Sums of a thousand float64 costs agree to about 1e-13; below this fraction a difference is rounding.
ROUNDING = 1e-11
# Weight of the other objective at the two ends, as a fraction of both ranges: breaks ties there.
_TIE_WEIGHT = 1e-6

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A proven bound through (time, memory): no assignment lies below it, up to rounding.

    Attributes:
      time: seconds.
      memory: bytes.
      slope: seconds per byte, at least 0; infinite where no assignment takes less memory.
    """

    time: float
    memory: int
    slope: float

    def at(self, memory: int) -> float:
        if self.slope == math.inf:
            return -math.inf if memory >= self.memory else math.inf
        return self.time - self.slope * (memory - self.memory)


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


def fastest_point(problem: Problem, schedule: Schedule, *, break_ties: bool = True) -> Point:
    """Return the fastest assignment; with `break_ties` the leanest of them, as far as one more solve tells.

    Raises:
      InfeasibleError: every assignment has infinite time.
    """
    fast, _ = _minimise(problem, schedule, (1.0, 0.0))
    if not break_ties or not any(array.any() for array in problem.memory):
        return fast
    tied, _ = _minimise(problem, schedule, (1.0, _TIE_WEIGHT * fast.time / max(1, abs(fast.memory))))
    return tied if tied.time <= fast.time and tied.memory < fast.memory else fast


def leanest_point(problem: Problem, schedule: Schedule) -> Point:
    """Return an assignment of least memory.

    Raises:
      InfeasibleError: every assignment has infinite time.
    """
    return _minimise(problem, schedule, (0.0, 1.0))[0]


def lower_hull(
    problem: Problem,
    schedule: Schedule,
    *,
    max_solves: int = 64,
    tolerance: float = 0.0,
    progress: Progress | None = None,
) -> Hull:
    """Find the hull by dichotomy: between two neighbours, minimise along the normal of the line through them.

    The pair with the largest possible gain comes first, so `max_solves` cuts off what matters least.

    Args:
      problem: what to solve.
      schedule: its elimination.
      max_solves: most eliminations; four are needed for the ends.
      tolerance: leave neighbours alone where nothing between can gain more than this fraction of the time.
      progress: called with "hull" and the fraction of solves used.

    Raises:
      InfeasibleError: every assignment has infinite time.
    """
    found, lines = _ends(problem, schedule)
    queue: list[tuple[float, int, Line, Line]] = []
    points = {(point.memory, point.time): point for point in found}
    order = itertools.count()

    def push(left: Line, right: Line) -> None:
        gain = _possible_gain(left, right)
        if gain > tolerance:
            heapq.heappush(queue, (-gain, next(order), left, right))

    for left, right in itertools.pairwise(sorted(lines, key=lambda line: (line.memory, -line.slope))):
        push(left, right)
    while queue and len(lines) < max_solves:
        *_, left, right = heapq.heappop(queue)
        slope = (left.time - right.time) / (right.memory - left.memory)
        point, line = _minimise(problem, schedule, (1.0, slope))
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


def _ends(problem: Problem, schedule: Schedule) -> tuple[list[Point], list[Line]]:
    """Return the leanest and the fastest point, each also with ties resolved where the next slope can."""
    fast, fast_line = _minimise(problem, schedule, (1.0, 0.0))
    lean, lean_line = _minimise(problem, schedule, (0.0, 1.0))
    if lean.memory >= fast.memory:
        return [fast], [fast_line]
    ratio = max(fast.time, lean.time - fast.time) / (fast.memory - lean.memory)
    near_lean, near_lean_line = _minimise(problem, schedule, (_TIE_WEIGHT / ratio, 1.0))
    near_fast, near_fast_line = _minimise(problem, schedule, (1.0, _TIE_WEIGHT * ratio))
    return [lean, near_lean, near_fast, fast], [lean_line, near_lean_line, near_fast_line, fast_line]


def _minimise(problem: Problem, schedule: Schedule, weights: Weights) -> tuple[Point, Line]:
    """Solve for one pair of weights and score the result exactly."""
    optimum = run_schedule(problem, schedule, weights)
    (point,) = score(problem, np.array([optimum.assignment], np.intp), weights=weights)
    slope = weights[1] / weights[0] if weights[0] else math.inf
    return point, Line(time=point.time, memory=point.memory, slope=slope)
