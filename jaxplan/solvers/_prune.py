"""Exact pruning by dominance: a configuration goes when another is no worse for any choice of its neighbours.

Dead-end elimination in the form of Goldstein, 10.1016/S0006-3495(94)80923-3, for one or for several weighted
costs at once. Configuration c of node v goes when some living c' has, for every pair of weights,

    cost_v[c'] - cost_v[c] + sum over edges of max over living j and choices of (cost[c', j] - cost[c, j]) <= 0.

The left side is convex and homogeneous in the weights: a relation of two pairs holds for all pairs in between, so
that pruning for time and for memory keeps the whole frontier. The relation is transitive, and all nodes are
looked at against the same living configurations, so equal layers lose equal configurations.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.solvers._edge import weighted
from jaxplan.solvers._problem import Problem, Weights
from jaxplan.solvers._restrict import Labels

TIME_AND_MEMORY: tuple[Weights, ...] = ((1.0, 0.0), (0.0, 1.0))

# Columns of an edge that a pair of configurations is compared in before it is compared in all.
_SAMPLED_COLUMNS = 8
# Dominators tried for one configuration: those that look best in the sample.
_MOST_TRIED = 8
# Entries compared at a time: 8 MB of float64.
_BLOCK_ENTRIES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Side:
    """An edge seen from one of its ends: (K, K_other * C) costs for each pair of weights, and the other end."""

    tables: tuple[np.ndarray, ...]
    num_choices: int
    other: int
    key: Hashable


def prune(problem: Problem, weights: Sequence[Weights] = TIME_AND_MEMORY) -> list[Labels]:
    """Return the configurations of each node that survive, ascending, at least one of each.

    For each pair of weights a best assignment survives; with `TIME_AND_MEMORY`, for every point of the
    frontier an assignment with its costs does. Edges keep all their choices.

    Args:
      problem: the problem to prune.
      weights: of time and memory, one pair or several.
    """
    sides = _sides(problem, weights)
    node_costs = [
        [weighted(time, memory, *pair) for pair in weights]
        for time, memory in zip(problem.time, problem.memory)
    ]
    living = [tuple(range(size)) for size in problem.num_configurations]
    known: dict[Hashable, Labels] = {}
    changed = set(range(problem.num_nodes))
    while changed:
        before, looked_at, changed = list(living), sorted(changed), set()
        for node in looked_at:
            around = tuple((side.key, before[side.other]) for side in sides[node])
            key = (problem.node_kinds[node], before[node], around)
            if key not in known:
                known[key] = _undominated(node_costs[node], sides[node], before, before[node])
            if known[key] != before[node]:
                living[node] = known[key]
                changed |= {node, *(side.other for side in sides[node])}
    return living


def _sides(problem: Problem, weights: Sequence[Weights]) -> list[list[_Side]]:
    """Return for each node its edges, seen from it."""
    sides: list[list[_Side]] = [[] for _ in range(problem.num_nodes)]
    made: dict[Hashable, tuple[np.ndarray, ...]] = {}
    for kind, edge in zip(problem.edge_kinds, problem.edges, strict=True):
        for flip, (own, other) in enumerate(((edge.source, edge.target), (edge.target, edge.source))):
            key = (kind, flip)
            if key not in made:
                made[key] = tuple(
                    _seen_from(weighted(edge.time, edge.memory, *pair), flip) for pair in weights
                )
            sides[own].append(_Side(tables=made[key], num_choices=edge.num_choices, other=other, key=key))
    return sides


def _seen_from(table: np.ndarray, flip: int) -> np.ndarray:
    cells = table if table.ndim == 3 else table[..., None]
    return np.ascontiguousarray(np.swapaxes(cells, 0, 1) if flip else cells)


def _undominated(
    node_costs: Sequence[np.ndarray], sides: Sequence[_Side], living: Sequence[Labels], labels: Labels
) -> Labels:
    """Return those of a node's living configurations that no other one dominates."""
    if len(labels) == 1:
        return labels
    rows = np.array(labels)
    num_weights = len(node_costs)
    own = [costs[rows] for costs in node_costs]
    tables = [[_cut(side.tables[w], rows, living[side.other]) for side in sides] for w in range(num_weights)]
    winners, losers = _promising_pairs(own, tables)
    for w in range(num_weights):
        terms = [_difference(own[w][winners], own[w][losers])]
        terms += [_largest_difference(table, winners, losers) for table in tables[w]]
        holds = ~(_total(terms) > 0)
        winners, losers = winners[holds], losers[holds]
    dominates = np.zeros((len(rows), len(rows)), bool)
    dominates[winners, losers] = True
    later = np.tri(len(rows), k=-1, dtype=bool)  # of two that dominate each other, the first stays
    dominates &= ~(dominates.T & later)
    return tuple(rows[~dominates.any(axis=0)].tolist())


def _cut(table: np.ndarray, rows: np.ndarray, columns: Labels) -> np.ndarray:
    cut = table[rows] if len(columns) == table.shape[1] else table[np.ix_(rows, np.array(columns))]
    return cut.reshape(len(rows), -1)


def _promising_pairs(
    own: Sequence[np.ndarray], tables: Sequence[Sequence[np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return (winner, loser) pairs that a sample of the columns does not rule out."""
    num = len(own[0])
    possible = ~np.eye(num, dtype=bool)
    promise = np.zeros((num, num))
    for costs, edges in zip(own, tables):
        terms = [_difference(costs[:, None], costs[None])]
        for table in edges:
            sample = table[:, :: -(-table.shape[1] // _SAMPLED_COLUMNS)]
            terms.append(_difference(sample[:, None], sample[None]).max(axis=2))
        total = _total(terms)
        possible &= ~(total > 0)
        size = np.abs(total[np.isfinite(total)]).max(initial=0.0) or 1.0
        promise += np.clip(total / size, -1.0, 1.0)
    promise = np.where(possible, promise, np.inf)
    if num > _MOST_TRIED:
        worst_tried = np.partition(promise, _MOST_TRIED - 1, axis=0)[_MOST_TRIED - 1]
        possible &= promise <= worst_tried
    winners, losers = np.nonzero(possible)
    return winners, losers


def _total(terms: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sum; minus infinity wherever a term is: there the loser cannot be used at all."""
    with np.errstate(invalid="ignore"):
        total = sum(terms[1:], start=terms[0])
    return np.where(np.isnan(total), -np.inf, total)


def _difference(winner: np.ndarray, loser: np.ndarray) -> np.ndarray:
    """Return winner - loser; where the loser is infinite there is nothing to compare: minus infinity."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(loser), -np.inf, winner - loser)


def _largest_difference(table: np.ndarray, winners: np.ndarray, losers: np.ndarray) -> np.ndarray:
    """Return for each pair the largest difference of two rows."""
    result = np.empty(len(winners))
    step = max(1, _BLOCK_ENTRIES // table.shape[1])
    for start in range(0, len(winners), step):
        block = slice(start, start + step)
        result[block] = _difference(table[winners[block]], table[losers[block]]).max(axis=1)
    return result
