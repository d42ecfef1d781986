"""Proof by counting through tiny problems, by elimination or messages where they close the gap, else by HiGHS.

The mixed-integer programme is made of the configurations that message passing cannot rule out, see `_candidates`:

    minimise   sum_v time_v x_v + sum_uv time_uv y_uv
    subject to sum_k x_v,k = 1;  sum_(j,c) y_uv,(i,j,c) = x_u,i;  sum_(i,c) y_uv,(i,j,c) = x_v,j;
               sum_v memory_v x_v + sum_uv memory_uv y_uv <= memory limit;  x binary, y binary where C > 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxplan.errors import ProblemError
from jaxplan.solvers._dual import tighten
from jaxplan.solvers._hull import fastest_point, lower_hull
from jaxplan.solvers._minimise import minimiser
from jaxplan.solvers._moves import points_between
from jaxplan.solvers._point import Point, score
from jaxplan.solvers._problem import Problem
from jaxplan.solvers._prune import prune
from jaxplan.solvers._restrict import Labels, labels_of, restrict
from jaxplan.solvers._solution import relative_gap

# Assignments with their choices that are counted through without a thought: milliseconds.
_MOST_COUNTED = 2_000
_MOST_COUNTED_ENTRIES = 2_000_000
# Minimisations and points on the way to a good assignment within a limit.
_HULL_SOLVES, _BETWEEN = 24, 256
# Above the solver's own tolerance of 1e-6 on a row scaled to the limit.
_ROW_TOLERANCE = 2e-6


def solve_exact(problem: Problem, memory_limit: int | None) -> tuple[Point, float] | None:
    """Return the fastest point of at most `memory_limit` bytes and a bound on its seconds, or None.

    Raises:
      ProblemError: HiGHS gave up.
    """
    if num_combinations(problem) <= _MOST_COUNTED:
        return _count(problem, memory_limit)
    if memory_limit is None:
        point, bound = fastest_point(problem, minimiser(problem)[0])
        if relative_gap(point.time, bound) == 0:
            return point, bound
    labels = _candidates(problem, memory_limit)
    return None if labels is None else solve_among(problem, labels, memory_limit)


def solve_among(
    problem: Problem, labels: Sequence[Labels], memory_limit: int | None, max_branches: int | None = None
) -> tuple[Point, float] | None:
    """Return the fastest point with some configurations alone and a bound on its seconds, or None.

    Args:
      problem: the problem to solve.
      labels: configurations of each node.
      memory_limit: bytes.
      max_branches: nodes of the search tree after which the programme stops with its best solution.
    """
    small = restrict(problem, labels)
    few = num_combinations(small) * (small.num_nodes + len(small.edges)) <= _MOST_COUNTED_ENTRIES
    found = _count(small, memory_limit) if few else _programme(small, memory_limit, max_branches)
    if found is None:
        return None
    point, bound = found
    assignment = tuple(kept[label] for kept, label in zip(labels, point.assignment))
    return dataclasses.replace(point, assignment=assignment), bound


def _candidates(problem: Problem, memory_limit: int | None) -> Sequence[Labels] | None:
    """Return configurations among which an optimum is, None where nothing fits the limit.

    With a limit, everything at most as slow as a known assignment that fits has
    time + slope x memory <= its time + slope x limit, for every slope; that of the hull at the limit makes
    the right side smallest.
    """
    if memory_limit is None:
        return tighten(problem, (1.0, 0.0)).labels
    minimise, _ = minimiser(problem)
    fast, _ = fastest_point(problem, minimise)
    if fast.memory <= memory_limit:
        return labels_of([fast.assignment])
    hull = lower_hull(problem, minimise, max_solves=_HULL_SOLVES, tolerance=1e-4)
    if hull.lower_bound(memory_limit) == math.inf:
        return None
    points = [*hull.points, *points_between(problem, hull.points, _BETWEEN)]
    fitting = [point.time for point in points if point.memory <= memory_limit]
    slopes = [line.slope for line in hull.lines if line.at(memory_limit) == hull.lower_bound(memory_limit)]
    if not fitting or not math.isfinite(slopes[0]):
        return prune(problem)
    upper = min(fitting) + slopes[0] * memory_limit
    return tighten(problem, (1.0, slopes[0]), upper).labels


def num_combinations(problem: Problem) -> int:
    """Return the number of assignments times that of their choices."""
    return math.prod(problem.num_configurations) * math.prod(edge.num_choices for edge in problem.edges)


def _count(problem: Problem, memory_limit: int | None) -> tuple[Point, float] | None:
    sizes = (*problem.num_configurations, *(edge.num_choices for edge in problem.edges))
    rows = np.empty((math.prod(sizes), len(sizes)), np.intp)
    rest = np.arange(len(rows))
    for column in reversed(range(len(sizes))):
        rest, rows[:, column] = np.divmod(rest, sizes[column])
    assignments, choices = rows[:, : problem.num_nodes], rows[:, problem.num_nodes :]
    times, memories, _ = problem.evaluate_many(assignments, choices)
    fits = np.isfinite(times) & (True if memory_limit is None else memories <= memory_limit)
    if not fits.any():
        return None
    candidates = np.nonzero(fits)[0]
    best = candidates[np.lexsort((memories[candidates], times[candidates]))[0]]
    (point,) = score(problem, assignments[best : best + 1], choices[best : best + 1])
    return point, point.time


def _programme(
    problem: Problem, memory_limit: int | None, max_branches: int | None
) -> tuple[Point, float] | None:
    """Solve the programme; where rounding lets the memory exceed the limit, tighten and repeat."""
    limit, bound = memory_limit, None
    for _ in range(4):
        result = _Programme(problem).solve(limit, max_branches)
        if result is None:
            return None
        point, proven = result
        bound = proven if bound is None else bound
        if memory_limit is None or point.memory <= memory_limit:
            return point, min(bound, point.time)
        limit = memory_limit - math.ceil(_ROW_TOLERANCE * abs(memory_limit)) - (point.memory - memory_limit)
    return None


class _Programme:
    """The columns and rows of a problem: x of every node first, then y of every edge."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.starts = np.cumsum([0, *problem.num_configurations])
        blocks = [edge.time.size for edge in problem.edges]
        self.edge_starts = self.starts[-1] + np.cumsum([0, *blocks])

    def solve(self, memory_limit: int | None, max_branches: int | None) -> tuple[Point, float] | None:
        from scipy.optimize import Bounds, LinearConstraint, milp  # heavy, and needed by this solver alone

        problem = self.problem
        time = np.concatenate([*problem.time, *(edge.time.ravel() for edge in problem.edges)])
        allowed = np.isfinite(time)
        scale = float(np.abs(time[allowed]).max()) or 1.0
        rows, right = self._rows()
        equalities = LinearConstraint(rows, right, right)  # pyright: ignore[reportArgumentType]
        constraints = [equalities]
        if memory_limit is not None:
            unit = max(1.0, abs(float(memory_limit)))
            constraints.append(LinearConstraint(self._memory()[None] / unit, -np.inf, memory_limit / unit))
        result: Any = milp(
            np.where(allowed, time, 0.0) / scale,
            integrality=self._integrality(),
            bounds=Bounds(0, allowed.astype(float)),  # pyright: ignore[reportArgumentType]
            constraints=constraints,
            options={"mip_rel_gap": 0.0} | ({} if max_branches is None else {"node_limit": max_branches}),
        )
        if result.status == 2 or (result.x is None and max_branches is not None):
            return None
        if result.x is None:
            raise ProblemError(f"HiGHS found no solution: {result.message}")
        return self._point(result.x), float(result.mip_dual_bound) * scale

    def _memory(self) -> np.ndarray:
        edges = [np.zeros(e.time.size) if e.memory is None else e.memory.ravel() for e in self.problem.edges]
        return np.concatenate([*self.problem.memory, *edges]).astype(float)

    def _integrality(self) -> np.ndarray:
        edges = [np.full(edge.time.size, int(edge.num_choices > 1)) for edge in self.problem.edges]
        return np.concatenate([np.ones(self.starts[-1], int), *edges])

    def _rows(self) -> tuple[Any, np.ndarray]:
        """Return the equalities: one for each node, one for each end's configurations of each edge."""
        from scipy.sparse import coo_array

        line, column, value, right = [], [], [], []
        for start, stop in zip(self.starts, self.starts[1:]):
            line.append(np.full(stop - start, len(right)))
            column.append(np.arange(start, stop))
            value.append(np.ones(stop - start))
            right.append(1.0)
        for edge, start in zip(self.problem.edges, self.edge_starts):
            shape = (*edge.time.shape[:2], edge.num_choices)
            labels = np.indices(shape).reshape(3, -1)
            for axis, node in enumerate((edge.source, edge.target)):
                own = np.arange(shape[axis])
                line += [len(right) + labels[axis], len(right) + own]
                column += [start + np.arange(edge.time.size), self.starts[node] + own]
                value += [np.ones(edge.time.size), -np.ones(shape[axis])]
                right += [0.0] * shape[axis]
        entries = (np.concatenate(value), (np.concatenate(line), np.concatenate(column)))
        return coo_array(entries, shape=(len(right), int(self.edge_starts[-1]))).tocsr(), np.array(right)

    def _point(self, values: np.ndarray) -> Point:
        """Return the assignment of a programme's solution; choices are read off at its configurations."""
        spans = zip(self.starts, self.starts[1:])
        assignment = np.array([[int(np.argmax(values[start:stop])) for start, stop in spans]])
        choices = np.zeros((1, len(self.problem.edges)), np.intp)
        for index, (edge, start) in enumerate(zip(self.problem.edges, self.edge_starts)):
            cells = values[start : start + edge.time.size].reshape(*edge.time.shape[:2], -1)
            choices[0, index] = int(np.argmax(cells[assignment[0, edge.source], assignment[0, edge.target]]))
        (point,) = score(self.problem, assignment, choices)
        return point
