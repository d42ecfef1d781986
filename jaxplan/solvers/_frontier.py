"""The frontier of a whole problem: exact lists where they fit, else hull, moves and restricted lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from jaxplan.core._log import until_interrupted
from jaxplan.errors import InfeasibleError, ProblemError
from jaxplan.solvers._elimination import NOTHING_FEASIBLE_MSG
from jaxplan.solvers._ft import HEURISTICS, track_frontier
from jaxplan.solvers._hull import Hull, Progress, lower_hull
from jaxplan.solvers._mcmc import Chains
from jaxplan.solvers._minimise import Minimiser, messages_additions, minimiser
from jaxplan.solvers._moves import points_between
from jaxplan.solvers._one_mesh import Meanings, merged, problems_by_mesh
from jaxplan.solvers._optcnn import optcnn_order
from jaxplan.solvers._pareto import reduce_lists
from jaxplan.solvers._point import Point, non_dominated, score
from jaxplan.solvers._problem import Problem
from jaxplan.solvers._segments import LIST_CAP, points_in_segment
from jaxplan.solvers._single import SINGLE_SOLVERS, chain_frontier, solve_single
from jaxplan.solvers._solution import Solution, relative_gap, solution

FRONTIER_SOLVERS = ("auto", "ft", "ft-elimination", "pase", "optcnn")
SOLVERS = (*FRONTIER_SOLVERS, *SINGLE_SOLVERS, "one_mesh")
# Solvers that minimise weighted sums alone: their frontier is the hull and the assignments that moves find around it.
_SUM_SOLVERS = ("pase", "optcnn")
# Those that work on lists from end to end, as published.
_LIST_SOLVERS = ("ft", "ft-elimination")

# Budgets, in entries looked at; a core does about 5e8 sums and 2e7 list candidates a second (measured on one
# core of a 2 GHz server). They bound the time and, unlike a clock, give the same answer on every machine.
_EXACT_LISTS_CANDIDATES = 2_000_000
_THINNED_LISTS_CANDIDATES = 40_000_000
_LISTS_ADDITIONS = 100_000_000
_HULL_ADDITIONS = 300_000_000
# Below a thousandth of the step time the order of two plans is beyond any cost model.
HULL_TOLERANCE = 1e-3
_LEAST_SOLVES, _MOST_SOLVES = 16, 64
# Lists between neighbours on the hull are made where hull and moves leave fewer points, or a larger gap.
_MANY_POINTS, _SMALL_GAP = 32, 0.01
_MOST_SEGMENTS = 8
# More bytes than anything takes.
_ANY_MEMORY = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A frontier before it is thinned and labelled.

    Attributes:
      points: ascending in memory, none beaten by another.
      hull: bounds for every memory limit, None where `points` is the exact frontier.
      exact_spans: (first, last) bytes between which `points` holds the whole frontier.
    """

    points: tuple[Point, ...]
    hull: Hull | None
    exact_spans: tuple[tuple[int, int], ...] = ()

    def lower_bound(self, memory: int) -> float:
        """Return seconds that no assignment of at most `memory` bytes beats."""
        if self.hull is not None and not any(low <= memory <= high for low, high in self.exact_spans):
            return self.hull.lower_bound(memory)
        return min((point.time for point in self.points if point.memory <= memory), default=float("inf"))


def frontier(
    problem: Problem,
    solver: str = "auto",
    *,
    max_points: int = 256,
    progress: Progress | None = None,
    chains: Chains | None = None,
    meanings: Meanings | None = None,
) -> tuple[Solution, ...]:
    """Return assignments that nothing known beats in both time and memory, ascending in memory.

    Where exact Pareto lists fit a stated budget the frontier is exact and every gap is zero. Elsewhere its
    hull is exact, its ends included, and each gap says how far a point is from the hull's bound; that of the last,
    the fastest, holds at any memory. Of equal
    points found, the one with the lexicographically smallest assignment, then choices, is returned.

    Args:
      problem: the problem to solve.
      solver: "auto"; "ft" or "ft-elimination" for TensorOpt's lists over all configurations, thinned where
        exact ones do not fit; "pase" or "optcnn" for the hull by their eliminations and moves alone;
        "one_mesh" for the frontier under Mesh-TensorFlow's restrictions, bounds without them;
        "mcmc" for the assignments that its chains visited; the others for one point, their fastest.
      max_points: most points returned; hull vertices stay longest, both ends always.
      progress: called with the name of a stage and the fraction of it done.
      chains: the starts and the score of "mcmc"; by default the additive costs.
      meanings: the axes behind each configuration, for "one_mesh", see there.

    Raises:
      ProblemError: no such solver, a graph too wide for elimination, or "one_mesh" without meanings.
      InfeasibleError: every assignment takes infinite time.

    Example:
      >>> problem = Problem(
      ...     time=[[1.0, 2.0], [1.0, 3.0]], memory=[[8, 2], [6, 1]], edges=[(0, 1, [[0.0, 1.0], [1.0, 0.0]])]
      ... )
      >>> [(point.time, point.memory) for point in frontier(problem)]
      [(5.0, 3), (4.0, 8), (2.0, 14)]
    """
    if max_points < 2:
        raise ProblemError(f"max_points is {max_points}, expected at least 2: the leanest and the fastest")
    check_solver(solver)
    if solver == "mcmc":
        return chain_frontier(problem, chains, max_points)
    if solver in SINGLE_SOLVERS:
        return (solve_single(problem, solver, None, chains),)
    if solver == "one_mesh":
        return _on_meshes(problem, meanings, max_points)
    found = find_frontier(problem, solver, max_points=max_points, progress=progress)
    corners = found.hull.points if found.hull is not None else ()
    *points, fastest = thinned(found.points, corners, max_points)
    bounded = [solution(point, found.lower_bound(point.memory), solver) for point in points]
    return (*bounded, solution(fastest, found.lower_bound(_ANY_MEMORY), solver))


def _on_meshes(problem: Problem, meanings: Meanings | None, max_points: int) -> tuple[Solution, ...]:
    """Return the undominated points of the frontiers on all meshes."""
    found = [
        (frontier(on_mesh, max_points=max_points), labels)
        for on_mesh, labels in problems_by_mesh(problem, meanings)
    ]
    everything = merged(found, problem, minimiser(problem)[0]((1.0, 0.0)).bound)
    if not everything:
        raise InfeasibleError(NOTHING_FEASIBLE_MSG)
    return everything


def check_solver(solver: str) -> None:
    """Raise the error that lists the known names, if this is none of them."""
    if solver not in SOLVERS:
        raise ProblemError(f"no solver is called {solver!r}; known are {', '.join(SOLVERS)}")


def find_frontier(
    problem: Problem, solver: str, *, max_points: int, progress: Progress | None = None
) -> Found:
    """Do the work of `frontier`, all points kept."""
    report = progress or (lambda stage, fraction: None)
    if solver not in _SUM_SOLVERS and (exact := _exact_lists(problem, solver)) is not None:
        with until_interrupted("the search"):
            report("lists", 1.0)
        return Found(points=tuple(exact), hull=None)
    minimise, num_additions = minimiser_for(problem, solver)
    hull = lower_hull(
        problem, minimise, max_solves=num_solves(num_additions), tolerance=HULL_TOLERANCE, progress=progress
    )
    points = list(hull.points)
    with until_interrupted("looking between the vertices of the hull"):
        report("moves", 0.0)  # where an interrupt has ended the stage before, this one ends here
        points = non_dominated([*points, *points_between(problem, hull.points, max_points)])
        report("moves", 1.0)
        if solver in _LIST_SOLVERS:
            points = non_dominated([*points, *_thinned_lists(problem, solver)])
    if solver in _SUM_SOLVERS:
        return Found(points=tuple(points), hull=hull)
    found, spans = _fill_gaps(problem, hull, points, report)
    return Found(points=tuple(non_dominated([*points, *found])), hull=hull, exact_spans=tuple(spans))


def outline(problem: Problem, max_solves: int) -> Hull:
    """The hull by the default engine as far as so many minimisations tell, four of them for its ends.

    Raises:
      InfeasibleError: every assignment takes infinite time.
    """
    return lower_hull(
        problem, minimiser_for(problem, "auto")[0], max_solves=max_solves, tolerance=HULL_TOLERANCE
    )


def _fill_gaps(
    problem: Problem, hull: Hull, points: Sequence[Point], report: Progress
) -> tuple[list[Point], list[tuple[int, int]]]:
    """Return more points where few are known, or far from the bound, and the spans that are complete."""
    segments = _open_segments(hull, points)
    affordable = _LISTS_ADDITIONS // max(1, messages_additions(problem))
    segments = segments[: int(min(_MOST_SEGMENTS, affordable))]
    found: list[Point] = []
    spans: list[tuple[int, int]] = []
    with until_interrupted("filling gaps"):
        for done, (lean, fast) in enumerate(segments):
            report("lists", done / len(segments))
            inside, is_exact = points_in_segment(problem, lean, fast, points)
            found += inside
            if is_exact:
                spans.append((lean.memory, fast.memory))
        report("lists", 1.0)
    return found, spans


def _open_segments(hull: Hull, points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Return the neighbours on the hull with the largest gaps between them first, closed ones not at all."""
    is_sparse = len(points) < _MANY_POINTS
    ranked = []
    for lean, fast in pairwise(hull.points):
        inside = [point for point in points if lean.memory <= point.memory <= fast.memory]
        # Just below a point's memory the one before it is the best that is known.
        gap = max(relative_gap(a.time, hull.lower_bound(b.memory - 1)) for a, b in pairwise(inside))
        if gap > (HULL_TOLERANCE if is_sparse else _SMALL_GAP):
            ranked.append((-gap, lean.memory, lean, fast))
    return [(lean, fast) for *_, lean, fast in sorted(ranked, key=lambda item: item[:2])]


def minimiser_for(problem: Problem, solver: str) -> tuple[Minimiser, int]:
    """Return the minimiser of a solver: in PaSE's order (GenerateSeq), OptCNN's, else the cheapest order."""
    if solver == "optcnn":
        return minimiser(problem, optcnn_order(problem))
    return minimiser(problem, "min-degree" if solver == "pase" else None)


def num_solves(num_additions: int) -> int:
    """Return how many minimisations the hull may take."""
    affordable = _HULL_ADDITIONS // max(1, num_additions)
    return int(min(_MOST_SOLVES, max(_LEAST_SOLVES, affordable)))


def thinned(points: tuple[Point, ...], corners: Iterable[Point], max_points: int) -> list[Point]:
    """Return at most `max_points`: both ends, then hull vertices, then points spread over the curve."""
    if len(points) <= max_points:
        return list(points)
    ends = {points[0].order, points[-1].order}
    keep = [point for point in _spread(list(corners), max_points) if point.order not in ends]
    keep = keep[: max_points - 2]
    taken = ends | {point.order for point in keep}
    rest = [point for point in points if point.order not in taken]
    room = max_points - len(taken)
    chosen = [points[0], points[-1], *keep, *(_spread(rest, room) if room > 1 else [])]
    return non_dominated(chosen)


def _spread(points: list[Point], num: int) -> list[Point]:
    if len(points) <= num:
        return points
    times = np.array([[point.time for point in points]])
    memories = np.array([[point.memory for point in points]])
    return [points[place] for place in reduce_lists(times, memories, max(2, num)).source[0]]


def _exact_lists(problem: Problem, solver: str) -> list[Point] | None:
    """Return the exact frontier where its lists fit the budget."""
    if sum(problem.num_configurations) ** 2 > _EXACT_LISTS_CANDIDATES:
        return None
    linear = solver != "ft-elimination"
    tracked = track_frontier(problem, cap=None, budget=_EXACT_LISTS_CANDIDATES, linear=linear)
    if tracked is None or not tracked.is_exact:
        return None
    if not len(tracked.assignments):
        raise InfeasibleError(NOTHING_FEASIBLE_MSG)
    return non_dominated(score(problem, tracked.assignments, tracked.choices))


def _thinned_lists(problem: Problem, solver: str) -> list[Point]:
    """Return the points that thinned lists over all configurations find, none where they do not fit the budget.

    Where nodes are decided by a heuristic, each of `HEURISTICS` is tried.
    """
    points: list[Point] = []
    for heuristic in HEURISTICS:
        tracked = track_frontier(
            problem,
            cap=LIST_CAP,
            budget=_THINNED_LISTS_CANDIDATES,
            linear=solver != "ft-elimination",
            heuristic=heuristic,
        )
        if tracked is None:
            break
        if len(tracked.assignments):
            points += score(problem, tracked.assignments, tracked.choices)
        if not tracked.num_fixed:
            break
    return points
