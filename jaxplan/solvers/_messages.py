"""Message passing: lower bounds on one weighted cost at any width of the graph, by sequential sweeps.

Sequential tree-reweighted message passing (TRW-S): Kolmogorov, "Convergent tree-reweighted message passing for
energy minimization", IEEE TPAMI 28(10), 2006, Fig. 3. Messages move cost between nodes and edges without
changing the sum of any assignment; the least costs of all parts then add up to a bound.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.solvers._edge import weighted
from jaxplan.solvers._problem import Problem, Weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """One weighted cost of a problem: a vector for each node and one matrix for each pair that is joined.

    Infinite entries are replaced by a finite cost larger than any feasible sum.

    Attributes:
      nodes: V arrays (K_v,).
      pairs: the two nodes of each matrix, the lower one first.
      tables: (K_low, K_high) of each pair.
      flipped: the same transposed, contiguous: sweeps read along rows.
      ceiling: costs from here up stand for infinity.
    """

    nodes: tuple[np.ndarray, ...]
    pairs: tuple[tuple[int, int], ...]
    tables: tuple[np.ndarray, ...]
    flipped: tuple[np.ndarray, ...]
    ceiling: float

    @classmethod
    def of(cls, problem: Problem, weights: Weights) -> Network:
        """Return the network of `weights[0] * time + weights[1] * memory`."""
        nodes = [weighted(t, m, *weights) for t, m in zip(problem.time, problem.memory)]
        made: dict[Hashable, np.ndarray] = {}
        of_pair: dict[tuple[int, int], list[tuple[Hashable, np.ndarray]]] = {}
        for kind, edge in zip(problem.edge_kinds, problem.edges, strict=True):
            flip = edge.source > edge.target
            key = (kind, flip)
            if key not in made:
                table = edge.scalarised(*weights)
                made[key] = np.ascontiguousarray(table.T if flip else table)
            pair = (min(edge.source, edge.target), max(edge.source, edge.target))
            of_pair.setdefault(pair, []).append((key, made[key]))
        ceiling = (
            1.0 + sum(map(_largest, nodes)) + sum(_largest(made[k]) for e in of_pair.values() for k, _ in e)
        )
        merged = [_merged(entries, made, ceiling) for entries in of_pair.values()]
        shared = Memo()
        flipped = [
            shared[number] if number in shared else shared.setdefault(number, np.ascontiguousarray(table.T))
            for number, table in zip(shared.numbers(merged), merged, strict=True)
        ]
        return cls(
            nodes=tuple(np.minimum(costs, ceiling) for costs in nodes),
            pairs=tuple(of_pair),
            tables=tuple(merged),
            flipped=tuple(flipped),
            ceiling=ceiling,
        )

    def cut(self, kept: Sequence[np.ndarray]) -> Network:
        """Return the network of the entries `kept[v]` of each node v alone."""
        nodes = tuple(costs[rows] for costs, rows in zip(self.nodes, kept))
        tables = tuple(
            np.ascontiguousarray(table[np.ix_(kept[u], kept[v])])
            for (u, v), table in zip(self.pairs, self.tables)
        )
        flipped = tuple(np.ascontiguousarray(table.T) for table in tables)
        return Network(nodes=nodes, pairs=self.pairs, tables=tables, flipped=flipped, ceiling=self.ceiling)

    def cost(self, assignment: Sequence[int]) -> float:
        """Return the sum of one assignment."""
        own = sum(float(costs[label]) for costs, label in zip(self.nodes, assignment))
        return own + sum(float(t[assignment[u], assignment[v]]) for (u, v), t in zip(self.pairs, self.tables))


def _largest(costs: np.ndarray) -> float:
    return float(np.abs(costs[np.isfinite(costs)]).max(initial=0.0))


def _merged(
    entries: list[tuple[Hashable, np.ndarray]], made: dict[Hashable, np.ndarray], ceiling: float
) -> np.ndarray:
    """Return the sum of the tables between two nodes, equal sums as one object."""
    key = ("sum", *(entry for entry, _ in entries))
    if key not in made:
        made[key] = np.minimum(sum(table for _, table in entries), ceiling)
    return made[key]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sweep:
    """The result of one sweep.

    Attributes:
      bound: no assignment costs less.
      reduced: V arrays (K_v,): how far above `bound`, at least, every assignment with that configuration is.
      assignment: configurations decided one after the other, each given those before it; None where none was asked for.
    """

    bound: float
    reduced: tuple[np.ndarray, ...]
    assignment: tuple[int, ...] | None


class Messages:
    """Messages of a network between sweeps; after a sweep all point the way that it went."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.current = [np.zeros(len(network.nodes[v])) for _, v in network.pairs]
        lower: list[list[tuple[int, int]]] = [[] for _ in network.nodes]
        upper: list[list[tuple[int, int]]] = [[] for _ in network.nodes]
        for edge, (u, v) in enumerate(network.pairs):
            upper[u].append((edge, v))
            lower[v].append((edge, u))
        self.lower, self.upper = lower, upper
        # From zero messages to ones that point down, as a forward sweep wants them.
        self._sweep(forward=False, decides=False)

    def sweep(self, *, decides: bool = True) -> tuple[Sweep, Sweep]:
        """Pass messages up the order of nodes, then down; without an assignment where ``decides`` is False."""
        return self._sweep(forward=True, decides=decides), self._sweep(forward=False, decides=decides)

    def cut(self, network: Network, kept: Sequence[np.ndarray]) -> None:
        """Go on with the same network after some entries are gone."""
        self.network = network
        self.current = [message[kept[u]] for message, (u, _) in zip(self.current, network.pairs)]

    def _sweep(self, *, forward: bool, decides: bool) -> Sweep:
        network, current = self.network, self.current
        ahead, behind = (self.upper, self.lower) if forward else (self.lower, self.upper)
        tables = network.tables if forward else network.flipped
        decided = [0] * len(network.nodes) if decides else None
        reduced: list[np.ndarray] = [np.empty(0)] * len(network.nodes)
        bound = 0.0
        nodes = range(len(network.nodes))
        for node in nodes if forward else reversed(nodes):
            if decided is not None:
                given = network.nodes[node]
                for edge, other in behind[node]:
                    given = given + tables[edge][decided[other]]
                for edge, _ in ahead[node]:
                    given = given + current[edge]
                decided[node] = int(given.argmin())
            costs = network.nodes[node]
            for edge, _ in behind[node]:
                costs = costs + current[edge]
            for edge, _ in ahead[node]:
                costs = costs + current[edge]
            least = float(np.minimum.reduce(costs))
            bound += least
            costs = costs - least
            reduced[node] = costs
            share = costs / max(len(ahead[node]), len(behind[node]), 1)
            for edge, _ in ahead[node]:
                message = np.minimum.reduce(tables[edge] + (share - current[edge])[:, None])
                least = float(np.minimum.reduce(message))
                bound += least
                current[edge] = message - least
        return Sweep(bound=bound, reduced=tuple(reduced), assignment=None if decided is None else tuple(decided))
