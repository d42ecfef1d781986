"""One fastest assignment, by a solver's name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from jaxplan.errors import InfeasibleError
from jaxplan.solvers._dual import tighten
from jaxplan.solvers._elimination import NOTHING_FEASIBLE_MSG
from jaxplan.solvers._exact import solve_among
from jaxplan.solvers._frontier import (
    HULL_TOLERANCE,
    check_solver,
    minimiser_for,
    num_solves,
)
from jaxplan.solvers._hull import Hull, Progress, fastest_point, lower_hull
from jaxplan.solvers._mcmc import Chains
from jaxplan.solvers._minimise import minimiser
from jaxplan.solvers._moves import points_between
from jaxplan.solvers._one_mesh import Meanings, merged, problems_by_mesh
from jaxplan.solvers._point import Point, non_dominated
from jaxplan.solvers._problem import Problem
from jaxplan.solvers._segments import points_in_segment
from jaxplan.solvers._single import SINGLE_SOLVERS, infeasible, solve_single
from jaxplan.solvers._solution import Solution, relative_gap, solution

# Points kept on the way to one memory limit; the more, the closer the best of them comes to the limit.
_POINTS = 256
# Where lists leave a larger gap, a programme on at most this many configurations is tried, this long.
_SMALL_GAP, _MOST_LABELS, _MOST_BRANCHES = 2e-3, 4000, 500


def solve(
    problem: Problem,
    solver: str = "auto",
    memory_limit: int | None = None,
    *,
    progress: Progress | None = None,
    chains: Chains | None = None,
    meanings: Meanings | None = None,
) -> Solution:
    """Return the fastest assignment found of at most `memory_limit` bytes.

    Without a limit that binds, the result is optimal and its gap zero. With one, "exact" stays optimal; the
    others return the fastest point of their frontier that fits, and the gap to the hull's bound.

    Args:
      problem: the problem to solve.
      solver: "auto" (elimination in the cheapest order or message passing, ties to less memory), "pase"
        (PaSE's min-degree order, recurrence 4), "optcnn", "ft" or "ft-elimination" (as "auto", from TensorOpt's
        lists within a limit), "one_mesh" (as "auto", under Mesh-TensorFlow's restrictions; the bound is without
        them), "exact" (counting, or integer programming), "tofu" (CriticalDP) or "mcmc" (FlexFlow's search, on the
        additive costs unless `chains` says otherwise).
      memory_limit: bytes.
      progress: called with the name of a stage and the fraction of it done.
      chains: the walks of "mcmc"; their score may exceed the limit, their last assignment is checked.
      meanings: the axes behind each configuration, for "one_mesh", see there.

    Raises:
      ProblemError: no such solver, a graph too wide for elimination, or "one_mesh" without meanings.
      InfeasibleError: nothing fits the limit, or every assignment takes infinite time.

    Example:
      >>> problem = Problem(
      ...     time=[[1.0, 2.0], [1.0, 3.0]], memory=[[8, 2], [6, 1]], edges=[(0, 1, [[0.0, 1.0], [1.0, 0.0]])]
      ... )
      >>> solve(problem)
      Solution(2 s, 14 bytes, gap 0.00%, auto)
      >>> solve(problem, memory_limit=5)
      Solution(5 s, 3 bytes, gap 0.00%, auto)
    """
    check_solver(solver)
    if solver in SINGLE_SOLVERS:
        return solve_single(problem, solver, memory_limit, chains)
    if solver == "one_mesh":
        return _on_meshes(problem, meanings, memory_limit)
    minimise, num_additions = minimiser_for(problem, solver)
    point, bound = fastest_point(problem, minimise, break_ties=solver != "pase")
    if memory_limit is None or point.memory <= memory_limit:
        return solution(point, bound, solver)
    hull = lower_hull(
        problem, minimise, max_solves=num_solves(num_additions), tolerance=HULL_TOLERANCE, progress=progress
    )
    points = [*hull.points, *points_between(problem, hull.points, _POINTS)]
    best, bound = _fitting(points, memory_limit), hull.lower_bound(memory_limit)
    around = _segment_around(hull, memory_limit)
    if solver != "pase" and best is not None and around is not None:
        best, bound = _closer(problem, around, points, memory_limit, bound)
    if best is None:
        raise infeasible(problem, memory_limit)
    return solution(best, bound, solver)


def _on_meshes(problem: Problem, meanings: Meanings | None, memory_limit: int | None) -> Solution:
    """Return the fastest of the solutions on all meshes; where none fits, raise the error that names the leanest."""
    found, failures = [], [InfeasibleError(NOTHING_FEASIBLE_MSG)]
    for on_mesh, labels in problems_by_mesh(problem, meanings):
        try:
            found.append(([solve(on_mesh, "auto", memory_limit)], labels))
        except InfeasibleError as error:
            failures.append(error)
    if not found:
        raise min(failures, key=lambda error: (error.smallest_memory_bytes is None, error.smallest_memory_bytes))
    return merged(found, problem, minimiser(problem)[0]((1.0, 0.0)).bound)[-1]


def _closer(
    problem: Problem, around: tuple[Point, Point], points: Sequence[Point], memory_limit: int, bound: float
) -> tuple[Point, float]:
    """Return the fastest point within the limit by lists between two vertices, then by a programme."""
    lean, fast = around
    found, is_exact = points_in_segment(problem, lean, fast, points)
    best = _fitting([*points, *found], memory_limit) or lean
    if is_exact:
        return best, best.time
    if relative_gap(best.time, bound) <= _SMALL_GAP:
        return best, bound
    slope = (lean.time - fast.time) / (fast.memory - lean.memory)
    labels = tighten(problem, (1.0, slope), best.time + slope * memory_limit).labels
    if sum(map(len, labels)) > _MOST_LABELS:
        return best, bound
    programme = solve_among(problem, labels, memory_limit, _MOST_BRANCHES)
    if programme is None:
        return best, bound
    point, proven = programme
    return min(best, point, key=lambda point: (point.time, point.memory)), max(bound, proven)


def _fitting(points: Sequence[Point], memory_limit: int) -> Point | None:
    """Return the fastest point within the limit."""
    fitting = [point for point in non_dominated(points) if point.memory <= memory_limit]
    return fitting[-1] if fitting else None


def _segment_around(hull: Hull, memory_limit: int) -> tuple[Point, Point] | None:
    """Return the two neighbouring vertices between which the limit lies."""
    for lean, fast in pairwise(hull.points):
        if lean.memory <= memory_limit < fast.memory:
            return lean, fast
    return None
