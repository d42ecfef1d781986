"""Tofu's search: dynamic programming along critical paths, recursively over the prime factors of the devices.

Source: Tofu, section 4.2.2 (CriticalDP), 4.4 (recursion), 6.3 (the searches it was compared with). The graph
given is the coarsened one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from jaxplan.errors import InfeasibleError, ProblemError
from jaxplan.solvers._elimination import run_schedule
from jaxplan.solvers._order import neighbours
from jaxplan.solvers._problem import Problem
from jaxplan.solvers._restrict import original_labels, restrict
from jaxplan.solvers._schedule import best_schedule

Recost = Callable[[tuple[tuple[int, ...], ...]], "Problem | None"]
"""From the assignments of the steps so far to the problem of the next one: the program is smaller by the splits
and larger by the fetched parts. None when every prime factor is used up."""


_DEAD_END_MSG = (
    "fixing one path after the other, Tofu's search reached a dead end: nothing on the path of node {name} goes "
    "with nodes that are already fixed (infinite entries). Use solver='auto', or finite costs."
)


def recursive_dp(
    first: Problem, recost: Recost, sizes: Sequence[float] | None = None, groups: Sequence[int] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Return one assignment for each prime factor of the device count, outermost first (section 4.4).

    Args:
      first: the problem of splitting everything over the first factor, along one dimension.
      recost: the problem of each later factor.
      sizes, groups: as in `critical_dp`. Sizes are those of the first step; where later ones have other edges, they
        take the default.
    """
    steps = (critical_dp(first, sizes, groups),)
    while (problem := recost(steps)) is not None:
        known = sizes if len(problem.edges) == len(first.edges) else None
        steps += (critical_dp(problem, known, groups),)
    return steps


def critical_dp(
    problem: Problem, sizes: Sequence[float] | None = None, groups: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return an assignment by dynamic programming along critical paths (section 4.2.2).

    The path of groups with the largest sum of tensor sizes is solved exactly beside the fixed nodes, and then fixed;
    then the next one, until every node is. All members of a group on the path are decided with it (section 4.2.1). With
    one configuration per tensor and no recursion this is the paper's EqualChop.

    Args:
      problem: the coarsened graph; edges point the way data flows, or are taken from lower to higher group.
      sizes: (E,) bytes of the tensors on the edges; by default the mean cost of the edge's finite entries.
      groups: (V,) number of each node's group: operators of both passes and the parameters they train, in order of the
        forward pass. By default each node is one.
    """
    lengths = _edge_sizes(problem) if sizes is None else np.asarray(sizes, float)
    if lengths.shape != (len(problem.edges),):
        raise ProblemError(
            f"sizes has shape {lengths.shape}, expected one for each of {len(problem.edges)} edges"
        )
    group_of = range(problem.num_nodes) if groups is None else groups
    members: dict[int, list[int]] = {}
    for node, group in enumerate(group_of):
        members.setdefault(group, []).append(node)
    steps = _steps_between(problem, lengths, group_of)
    adjacent = neighbours(problem)
    fixed: dict[int, int] = {}
    open_groups = set(members)
    while open_groups:
        path = _critical_path(steps, open_groups)
        open_groups.difference_update(path)
        fixed |= _solve_path(problem, adjacent, [node for group in path for node in members[group]], fixed)
    return tuple(fixed[node] for node in range(problem.num_nodes))


def all_row_greedy(
    problem: Problem, rows: Mapping[int, int], suits_itself: Sequence[bool] | None = None
) -> tuple[int, ...]:
    """Return an assignment where tensors are split by rows and every operator suits itself (section 6.3).

    Args:
      problem: nodes of tensors and of operators.
      rows: for each node that holds a tensor, its configuration that splits the first dimension.
      suits_itself: (V,) whether a node takes the cheapest configuration beside the others' rows; by default those that
        hold no tensor. Where one node stands for an operator and its result, both hold.
    """
    if suits_itself is None:
        suits_itself = [node not in rows for node in range(problem.num_nodes)]
    fixed, adjacent = dict(rows), neighbours(problem)
    for node, suits in enumerate(suits_itself):
        if suits:
            others = {other: label for other, label in rows.items() if other != node}
            fixed |= _solve_path(problem, adjacent, [node], others)
    return tuple(fixed[node] for node in range(problem.num_nodes))


def all_row_random(
    problem: Problem, rows: Mapping[int, int], suits_itself: Sequence[bool], *, seed: int = 0
) -> tuple[int, ...]:
    """Return an assignment where tensors are split by rows and every operator takes any configuration (section 6.3).

    Args:
      problem: nodes of tensors and of operators.
      rows: for each node that holds a tensor, its configuration that splits the first dimension.
      suits_itself: (V,) whether a node draws one of its configurations that take finite time by themselves.
      seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    fixed = dict(rows)
    for node, draws in enumerate(suits_itself):
        if draws:
            fixed[node] = int(rng.choice(np.flatnonzero(np.isfinite(problem.time[node]))))
    return tuple(fixed[node] for node in range(problem.num_nodes))


def greedy_largest_first(problem: Problem, sizes: Sequence[float] | None = None) -> tuple[int, ...]:
    """Return an assignment that decides the largest nodes first, each by the best replies of its neighbours.

    Source: section 6.3, there said to equal Spartan's. A neighbour that is not decided counts with its
    cheapest configuration.

    Args:
      problem: the problem to solve.
      sizes: (V,) bytes of each node's tensor; by default the mean of its finite costs and its edges'.
    """
    weights = _node_sizes(problem) if sizes is None else np.asarray(sizes, float)
    edges: list[list[tuple[int, np.ndarray]]] = [[] for _ in problem.time]
    for edge in problem.edges:
        table = edge.scalarised(1.0, 0.0)
        edges[edge.source].append((edge.target, table))
        edges[edge.target].append((edge.source, table.T))
    fixed: dict[int, int] = {}
    for node in sorted(range(problem.num_nodes), key=lambda node: (-weights[node], node)):
        costs = problem.time[node].copy()
        for other, table in edges[node]:
            costs = costs + (
                table[:, fixed[other]] if other in fixed else (table + problem.time[other]).min(axis=1)
            )
        fixed[node] = int(np.argmin(costs))
    return tuple(fixed[node] for node in range(problem.num_nodes))


def _edge_sizes(problem: Problem) -> np.ndarray:
    return np.array([_mean_finite(edge.time) for edge in problem.edges])


def _node_sizes(problem: Problem) -> np.ndarray:
    sizes = np.array([_mean_finite(time) for time in problem.time])
    for edge, size in zip(problem.edges, _edge_sizes(problem)):
        sizes[edge.source] += size
        sizes[edge.target] += size
    return sizes


def _mean_finite(costs: np.ndarray) -> float:
    return float(costs[np.isfinite(costs)].mean())


def _steps_between(
    problem: Problem, lengths: np.ndarray, group_of: Sequence[int]
) -> dict[int, dict[int, float]]:
    """Group -> the groups before it that an edge joins it to -> sum of the edges' lengths."""
    steps: dict[int, dict[int, float]] = {}
    for edge, length in zip(problem.edges, lengths.tolist()):
        before, after = sorted((group_of[edge.source], group_of[edge.target]))
        if before != after:
            of = steps.setdefault(after, {})
            of[before] = of.get(before, 0.0) + length
    return steps


def _critical_path(steps: Mapping[int, Mapping[int, float]], inside: Collection[int]) -> list[int]:
    """Return the longest path through some groups, in their order."""
    best = dict.fromkeys(sorted(inside), 0.0)
    before: dict[int, int] = {}
    for group in best:
        for previous, length in steps.get(group, {}).items():
            if previous in best and best[previous] + length > best[group]:
                best[group], before[group] = best[previous] + length, previous
    path = [max(best, key=lambda group: (best[group], -group))]
    while path[-1] in before:
        path.append(before[path[-1]])
    return path[::-1]


def _solve_path(
    problem: Problem, adjacent: Sequence[set[int]], path: Sequence[int], fixed: Mapping[int, int]
) -> dict[int, int]:
    """Return the best configurations of the path's nodes beside the fixed ones; undecided neighbours are left out."""
    place = {node: index for index, node in enumerate(path)}
    around = sorted({n for node in path for n in adjacent[node] if n in fixed})
    nodes = [*path, *around]
    place |= {node: len(path) + index for index, node in enumerate(around)}
    part = Problem(
        time=[problem.time[node] for node in nodes],
        edges=[
            (place[edge.source], place[edge.target], edge.time)
            for edge in problem.edges
            if {edge.source, edge.target} <= place.keys() and not {edge.source, edge.target} <= set(around)
        ],
        names=[problem.names[node] for node in nodes],
    )
    labels = [tuple(range(len(problem.time[node]))) for node in path] + [(fixed[node],) for node in around]
    try:
        small = restrict(part, labels)
        optimum = run_schedule(small, best_schedule(small))
    except InfeasibleError as error:
        raise InfeasibleError(_DEAD_END_MSG.format(name=problem.names[path[0]])) from error
    (row,) = original_labels(np.array([optimum.assignment]), labels)
    return {node: int(row[place[node]]) for node in path}
