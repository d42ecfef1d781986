"""Solvers that return one assignment: the exact programme, and the published heuristics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxplan.errors import InfeasibleError
from jaxplan.solvers._chain import additive_walks
from jaxplan.solvers._elimination import NOTHING_FEASIBLE_MSG
from jaxplan.solvers._exact import solve_exact
from jaxplan.solvers._hull import leanest_point
from jaxplan.solvers._mcmc import Chains, walk_chains
from jaxplan.solvers._minimise import minimiser
from jaxplan.solvers._point import score
from jaxplan.solvers._problem import Problem
from jaxplan.solvers._solution import Solution, solution
from jaxplan.solvers._tofu import all_row_greedy, critical_dp, greedy_largest_first

_TOFU_SOLVERS = ("equal-chop", "all-row-greedy", "greedy-by-size")
SINGLE_SOLVERS = ("tofu", "mcmc", "exact", *_TOFU_SOLVERS)

_OVER_LIMIT_MSG = (
    "no assignment fits {limit} bytes: the leanest one takes {least} bytes and {seconds:.6g} s. Raise the "
    "memory limit, or give nodes leaner configurations."
)
_HEURISTIC_MSG = (
    "solver {solver!r} ended at {found} bytes and {time:.6g} s; the limit is {limit} bytes. It is a heuristic that "
    "may miss assignments that fit. Use solver='auto'."
)


def solve_single(
    problem: Problem, solver: str, memory_limit: int | None, chains: Chains | None = None
) -> Solution:
    """Return the solution of one of `SINGLE_SOLVERS`; see `solve`."""
    if solver == "exact":
        found = solve_exact(problem, memory_limit)
        if found is None:
            raise infeasible(problem, memory_limit)
        return solution(*found, solver)
    nodes = range(problem.num_nodes)
    if solver in ("tofu", "equal-chop"):
        assignment = critical_dp(problem)
    elif solver == "all-row-greedy":
        assignment = all_row_greedy(problem, dict.fromkeys(nodes, 0), [True for _ in nodes])
    elif solver == "greedy-by-size":
        assignment = greedy_largest_first(problem)
    else:
        chains = chains or Chains(walk_from=additive_walks(problem, memory_limit))
        assignment = walk_chains(problem, chains.walk_from, chains.initial, chains.options).assignment
    return heuristic_solution(problem, solver, assignment, memory_limit=memory_limit)


def chain_frontier(
    problem: Problem, chains: Chains | None, max_points: int
) -> tuple[Solution, ...]:
    """Return the visited assignments that no other visited one beats in both cost and memory, ascending in memory.

    Costs are those that chains walk on, such as simulated seconds; the seconds of the solutions are additive.
    """
    chains = chains or Chains(walk_from=additive_walks(problem))
    seen = walk_chains(problem, chains.walk_from, chains.initial, chains.options).seen
    if not seen:
        raise infeasible(problem, None)
    places = np.unique(np.linspace(0, len(seen) - 1, max_points).round().astype(np.intp))
    points = score(problem, np.array([seen[place].assignment for place in places], np.intp))
    bound = minimiser(problem)[0]((1.0, 0.0)).bound
    return tuple(solution(point, bound, "mcmc") for point in points)


def heuristic_solution(
    problem: Problem,
    solver: str,
    assignment: Sequence[int],
    choices: Sequence[int] | None = None,
    memory_limit: int | None = None,
) -> Solution:
    """Return an assignment with the bound of the default engines.

    Args:
      problem: the problem of the assignment.
      solver: the name of the search that ended at it.
      assignment: (V,) configuration of each node.
      choices: (E,) choice of each edge; by default the fastest.
      memory_limit: bytes.

    Raises:
      InfeasibleError: it takes infinite time, or more memory than that.
    """
    given = None if choices is None else np.array([choices], np.intp)
    (point,) = score(problem, np.array([assignment], np.intp), given)
    bound = minimiser(problem)[0]((1.0, 0.0)).bound
    if math.isfinite(point.time) and (memory_limit is None or point.memory <= memory_limit):
        return solution(point, bound, solver)
    lean = leanest_point(problem, minimiser(problem)[0])
    if memory_limit is not None and lean.memory > memory_limit:
        raise infeasible(problem, memory_limit)
    text = _HEURISTIC_MSG.format(solver=solver, found=point.memory, time=point.time, limit=memory_limit)
    raise InfeasibleError(text, smallest_memory_bytes=lean.memory)


def infeasible(problem: Problem, memory_limit: int | None) -> InfeasibleError:
    """Return the error that names the least memory that fits."""
    point = leanest_point(problem, minimiser(problem)[0])
    if memory_limit is None:
        return InfeasibleError(NOTHING_FEASIBLE_MSG)
    text = _OVER_LIMIT_MSG.format(limit=memory_limit, least=point.memory, seconds=point.time)
    return InfeasibleError(text, smallest_memory_bytes=point.memory)
