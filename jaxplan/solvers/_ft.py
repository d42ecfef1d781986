"""Frontier tracking (FT-LDP): eliminations down to a linear graph, then a sweep along it, on Pareto lists.

Source: TensorOpt, section 3.2: node elimination (Eq. 4), edge elimination (Eq. 5), branch elimination
(Eq. 6), heuristic elimination (Eq. 7), marking of the linear graph (Algorithm 2), linear dynamic programming
(Algorithm 3), unrolling. A node that others merged into (Eq. 6) is a group: its configurations are
combinations of those of its members.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from jaxplan.solvers._factors import Factor, ListsOverflow, Workshop, unroll
from jaxplan.solvers._order import neighbours
from jaxplan.solvers._problem import Problem

# Branch elimination multiplies configurations; beyond this many in one group a node is fixed instead (Eq. 7).
MAX_GROUP_CONFIGURATIONS = 4096
HEURISTICS = ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (3.0, 1.0), (1.0, 3.0))
"""Weights of time and memory by which Eq. 7 decides: the paper names several heuristics, and no figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """The result of frontier tracking.

    Attributes:
      assignments: (N, V) configurations, ascending in memory.
      choices: (N, E) choices.
      is_exact: whether this is the whole frontier: no list thinned, no node fixed.
      num_fixed: nodes that Eq. 7 decided; other heuristics then find other points.
    """

    assignments: np.ndarray
    choices: np.ndarray
    is_exact: bool
    num_fixed: int = 0


def track_frontier(
    problem: Problem,
    *,
    cap: int | None,
    budget: int,
    max_group: int = MAX_GROUP_CONFIGURATIONS,
    linear: bool = True,
    heuristic: tuple[float, float] = HEURISTICS[0],
) -> Tracked | None:
    """Return the frontier of the whole problem, or None where it takes more than `budget` candidates.

    Args:
      problem: the problem to solve.
      cap: most points of a list, thinned over its own range; None keeps lists exact.
      budget: points that may be looked at in all.
      max_group: most configurations of a group of merged nodes.
      linear: mark a linear graph and sweep along it (FT-LDP); otherwise eliminate all but one node of each
        part (FT-Elimination).
      heuristic: weights of time and memory where a node's configuration is decided (Eq. 7).
    """
    workshop = Workshop(cap=cap, budget=budget)
    try:
        graph = _Graph(problem, workshop, heuristic)
        parts = [_sweep(graph, chain) for chain in _reduce_to_chains(graph, max_group, linear)]
        whole = workshop.products([*parts, *graph.constants])
    except ListsOverflow:
        return None
    assignments, choices = unroll(whole, problem.num_nodes, len(problem.edges))
    return Tracked(
        assignments=assignments, choices=choices, is_exact=workshop.is_exact, num_fixed=graph.num_fixed
    )


class _Graph:
    """Groups of nodes, the factor of each, and one factor between two groups that are joined.

    A group goes by the index of one of its nodes; ``num_configurations`` holds those of each.
    """

    def __init__(self, problem: Problem, workshop: Workshop, heuristic: tuple[float, float]) -> None:
        self.workshop = workshop
        self.heuristic = heuristic
        self.num_fixed = 0
        self.sizes = problem.num_configurations
        self.own = {node: workshop.node(problem, node) for node in range(problem.num_nodes)}
        self.members: dict[int, tuple[int, ...]] = {node: (node,) for node in self.own}
        self.num_configurations = dict(enumerate(problem.num_configurations))
        self.adjacent = dict(enumerate(neighbours(problem)))
        self.between: dict[tuple[int, int], Factor] = {}
        self.constants: list[Factor] = []
        for index, edge in enumerate(problem.edges):
            self._join(edge.source, edge.target, workshop.edge(edge, index))

    def edge(self, one: int, two: int) -> Factor:
        return self.between[min(one, two), max(one, two)]

    def eliminate(self, group: int) -> None:
        """Remove a group with at most two neighbours (Eq. 4); one with none becomes a constant."""
        others = sorted(self.adjacent[group])
        factor = self.workshop.products([self.own[group], *(self.edge(group, other) for other in others)])
        factor = self._without(factor, group)
        self._forget(group)
        if not others:
            self.constants.append(factor)
        elif len(others) == 1:
            self.own[others[0]] = self.workshop.product(self.own[others[0]], factor)
        else:
            self._join(others[0], others[1], factor)

    def merge(self, group: int, into: int) -> None:
        """Make two joined groups one (Eq. 6)."""
        shared = self.edge(group, into)
        self.own[into] = self.workshop.products([self.own[into], shared, self.own[group]])
        self.members[into] += self.members[group]
        self.num_configurations[into] *= self.num_configurations[group]
        moved = [(other, self.edge(group, other)) for other in sorted(self.adjacent[group]) if other != into]
        self._forget(group)
        for other, factor in moved:
            self._join(into, other, factor)

    def fix(self, group: int) -> None:
        """Decide a group's configuration and leave its edges to its neighbours (Eq. 7).

        The heuristic: the configuration with the least weighted sum, over the group and its edges, of the least time
        and the least memory there, each as a fraction of its range over the configurations.
        """
        self.num_fixed += 1
        labels = self._best_labels(group)
        factors = {other: self.edge(group, other) for other in sorted(self.adjacent[group])}
        own = self.own[group]
        for name, label in zip(self.members[group], labels):
            own = self.workshop.fixed(own, name, label)
            for other, factor in factors.items():
                if name in factor.names:
                    factors[other] = self.workshop.fixed(factor, name, label)
        self._forget(group)
        self.constants.append(own)
        for other, factor in factors.items():
            self.own[other] = self.workshop.product(self.own[other], factor)

    def sweep_step(self, reached: Factor, previous: int, group: int) -> Factor:
        """Return the cumulative frontier of `group` from that of `previous` (Algorithm 3, line 6)."""
        factor = self.workshop.product(reached, self.edge(previous, group))
        return self.workshop.product(self._without(factor, previous), self.own[group])

    def close(self, reached: Factor, group: int) -> Factor:
        """Return the frontier over all configurations of the last group (Algorithm 3, line 9)."""
        return self._without(reached, group)

    def _without(self, factor: Factor, group: int) -> Factor:
        for name in self.members[group]:
            factor = self.workshop.union(factor, name)
        return factor

    def _join(self, one: int, two: int, factor: Factor) -> None:
        """Add a factor between two groups; several become one (Eq. 5)."""
        key = (min(one, two), max(one, two))
        if key in self.between:
            factor = self.workshop.product(self.between[key], factor)
        self.between[key] = factor
        self.adjacent[one].add(two)
        self.adjacent[two].add(one)

    def _forget(self, group: int) -> None:
        for other in self.adjacent.pop(group):
            self.adjacent[other].discard(group)
            del self.between[min(group, other), max(group, other)]
        del self.own[group]

    def _best_labels(self, group: int) -> tuple[int, ...]:
        names = self.members[group]
        score = np.zeros([self.sizes[name] for name in names])
        for factor in [self.own[group], *(self.edge(group, other) for other in sorted(self.adjacent[group]))]:
            time, memory = (
                factor.lists.time,
                np.where(np.isfinite(factor.lists.time), factor.lists.memory.astype(float), np.inf),
            )
            for weight, costs in zip(self.heuristic, (time, memory)):
                least = _least_over(costs.min(axis=-1), factor.names, names)
                score = score + np.where(np.isfinite(least), weight * np.where(np.isfinite(least), least, 0.0), np.inf)
        return tuple(int(label) for label in np.unravel_index(np.argmin(score), score.shape))


def _least_over(costs: np.ndarray, axes: tuple[int, ...], names: tuple[int, ...]) -> np.ndarray:
    """Return the least costs for the configurations of `names`, as fractions of their finite range."""
    rest = tuple(place for place, axis in enumerate(axes) if axis not in names)
    least = costs.min(axis=rest)
    kept = [axis for axis in axes if axis in names]
    least = np.transpose(least, np.argsort([names.index(axis) for axis in kept]))
    finite = least[np.isfinite(least)]
    spread = float(np.ptp(finite)) if finite.size else 0.0
    scaled = (
        (least - finite.min(initial=np.inf)) / spread if spread else np.where(np.isfinite(least), 0.0, np.inf)
    )
    return scaled[tuple(slice(None) if name in kept else None for name in names)]


def _reduce_to_chains(graph: _Graph, max_group: int, linear: bool) -> list[list[int]]:
    """Apply eliminations until every part is a chain of marked groups (Algorithm 2, lines 4 to 11)."""
    chains: list[list[int]] = []
    unmarked = set(graph.own)
    while unmarked:
        chain = [min(unmarked)]
        unmarked.discard(chain[0])
        chains.append(chain)
        while True:
            if linear:
                _extend(graph, chain, unmarked)
            inside = _reachable(graph, chain[-1]) & unmarked
            if not inside:
                break
            unmarked -= _eliminate_some(graph, inside, max_group)
    return chains


def _extend(graph: _Graph, chain: list[int], unmarked: set[int]) -> None:
    """Mark the group after the last marked one while there is just one."""
    while len(following := graph.adjacent[chain[-1]] & unmarked) == 1:
        chain.append(min(following))
        unmarked.discard(chain[-1])


def _reachable(graph: _Graph, start: int) -> set[int]:
    seen, pending = {start}, [start]
    while pending:
        new = graph.adjacent[pending.pop()] - seen
        seen |= new
        pending += new
    return seen


def _eliminate_some(graph: _Graph, inside: set[int], max_group: int) -> set[int]:
    """Remove the groups of at most two neighbours or, where there is none, merge or fix one; return them."""
    removed: set[int] = set()
    for group in sorted(inside):
        if len(graph.adjacent[group]) <= 2:
            graph.eliminate(group)
            removed.add(group)
    if removed:
        return removed
    size = graph.num_configurations
    pairs = [(size[group] * size[other], group, other) for group in inside for other in graph.adjacent[group]]
    weight, group, other = min(pairs)
    if weight <= max_group:
        graph.merge(group, other)
    else:
        group = max(inside, key=lambda group: (len(graph.adjacent[group]), -group))
        graph.fix(group)
    return {group}


def _sweep(graph: _Graph, chain: list[int]) -> Factor:
    """Sweep along a linear graph (Algorithm 3)."""
    reached = graph.own[chain[0]]
    for previous, group in pairwise(chain):
        reached = graph.sweep_step(reached, previous, group)
    return graph.close(reached, chain[-1])
