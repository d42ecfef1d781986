"""One fastest assignment, by a solver's name."""

from __future__ import annotations

from itertools import pairwise

from jaxplan._errors import InfeasibleError, ProblemError
from jaxplan.solvers._elimination import NOTHING_FEASIBLE_MSG
from jaxplan.solvers._exact import solve_exact
from jaxplan.solvers._frontier import (
    FRONTIER_SOLVERS,
    HULL_TOLERANCE,
    minimiser_for,
    num_solves,
    solution,
)
from jaxplan.solvers._hull import Hull, Progress, fastest_point, leanest_point, lower_hull
from jaxplan.solvers._minimise import minimiser
from jaxplan.solvers._moves import points_between
from jaxplan.solvers._point import Point, non_dominated
from jaxplan.solvers._problem import Problem
from jaxplan.solvers._segments import points_in_segment
from jaxplan.solvers._solution import Solution

SOLVERS = (*FRONTIER_SOLVERS, "exact")

# Points kept on the way to one memory limit; the more, the closer the best of them comes to the limit.
_POINTS = 256

_OVER_LIMIT_MSG = (
    "no assignment fits {limit} bytes: the leanest one takes {least} bytes and {seconds:.6g} s. Raise the "
    "memory limit, or give nodes leaner configurations."
)


def solve(
    problem: Problem,
    solver: str = "auto",
    memory_limit: int | None = None,
    *,
    progress: Progress | None = None,
) -> Solution:
    """Return the fastest assignment found of at most `memory_limit` bytes.

    Without a limit that binds, the result is optimal and its gap zero. With one, "exact" stays optimal; the
    others return the fastest point of their frontier that fits, and the gap to the hull's bound.

    Args:
      problem: what to solve.
      solver: "pase" (elimination in PaSE's min-degree order, recurrence 4), "auto" (the cheapest order,
        ties to less memory), "ft" (from TensorOpt's frontier) or "exact" (counting, or integer programming).
      memory_limit: bytes.
      progress: called with the name of a stage and the fraction of it done.

    Raises:
      ProblemError: no such solver, or a graph too wide for elimination.
      InfeasibleError: nothing fits the limit, or every assignment takes infinite time.
    """
    if solver not in SOLVERS:
        raise ProblemError(f"no solver is called {solver!r}; known are {', '.join(SOLVERS)}")
    if solver == "exact":
        result = solve_exact(problem, memory_limit)
        if result is None:
            raise _infeasible(problem, memory_limit)
        return solution(*result, solver)
    minimise, num_additions = minimiser_for(problem, solver)
    point, bound = fastest_point(problem, minimise, break_ties=solver != "pase")
    if memory_limit is None or point.memory <= memory_limit:
        return solution(point, bound, solver)
    hull = lower_hull(
        problem, minimise, max_solves=num_solves(num_additions), tolerance=HULL_TOLERANCE, progress=progress
    )
    points = [*hull.points, *points_between(problem, hull.points, _POINTS)]
    bound = hull.lower_bound(memory_limit)
    if solver != "pase" and (around := _segment_around(hull, memory_limit)) is not None:
        found, is_exact = points_in_segment(problem, *around, points)
        points += found
        if is_exact:
            bound = min(point.time for point in found if point.memory <= memory_limit)
    fitting = [point for point in non_dominated(points) if point.memory <= memory_limit]
    if not fitting:
        raise _infeasible(problem, memory_limit)
    return solution(fitting[-1], bound, solver)


def _segment_around(hull: Hull, memory_limit: int) -> tuple[Point, Point] | None:
    """Return the two neighbouring vertices between which the limit lies."""
    for lean, fast in pairwise(hull.points):
        if lean.memory <= memory_limit < fast.memory:
            return lean, fast
    return None


def _infeasible(problem: Problem, memory_limit: int | None) -> InfeasibleError:
    """Return the error that says what would fit."""
    point = leanest_point(problem, minimiser(problem)[0])
    if memory_limit is None:
        return InfeasibleError(NOTHING_FEASIBLE_MSG)
    text = _OVER_LIMIT_MSG.format(limit=memory_limit, least=point.memory, seconds=point.time)
    return InfeasibleError(text, smallest_memory_bytes=point.memory)
