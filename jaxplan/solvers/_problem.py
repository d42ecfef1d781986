"""The one formulation that all solvers share, and the one evaluator that scores their results.

In symbols:

    minimise   sum_v time_v[x_v] + sum_(u,v) time_uv[x_u, x_v, c_uv]        seconds  (`Problem.evaluate`)
    and        sum_v memory_v[x_v] + sum_(u,v) memory_uv[x_u, x_v, c_uv]    bytes
    over       a configuration x_v of each node and a choice c_uv of each edge.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.solvers import _validate
from jaxplan.solvers._edge import Edge, at_choice, cheapest_choice, fastest_choice

Weights = tuple[float, float]


@dataclass(frozen=True, slots=True, weakref_slot=True, init=False, eq=False, repr=False)
class Problem:
    """Nodes with configurations, edges with matrices, a time and a memory for every entry.

    Letters: `V` nodes, `E` edges, `K_v` configurations of node v, `C` choices of an edge, `N` assignments.
    Arrays of the right dtype are kept as they are, and arrays of equal content (identical layers) become one
    object: solvers fold repeated structure by identity. Do not write to them afterwards.

    Attributes:
      time: V arrays (K_v,) float64, seconds; infinite where a configuration is forbidden.
      memory: V arrays (K_v,) int64, bytes.
      edges: E edges; several may join the same two nodes.
      names: V names of the nodes, for error messages.
      num_configurations: (V,) K_v.
      node_kinds: (V,) the first node with the same arrays.
      edge_kinds: (E,) the first edge with the same arrays.

    Example:
      >>> problem = Problem(
      ...     time=[[1.0, 2.0], [1.0, 3.0]], memory=[[8, 2], [6, 1]], edges=[(0, 1, [[0.0, 1.0], [1.0, 0.0]])]
      ... )
      >>> problem
      Problem(2 nodes, 1 edges, 4 configurations)
      >>> problem.evaluate([0, 1])  # seconds 1 + 3 + 1, bytes 8 + 1, the only choice of the edge
      (5.0, 9, (0,))
    """

    time: tuple[np.ndarray, ...]
    memory: tuple[np.ndarray, ...]
    edges: tuple[Edge, ...]
    names: tuple[str, ...]
    num_configurations: tuple[int, ...]
    node_kinds: tuple[int, ...]
    edge_kinds: tuple[int, ...]
    _groups: Groups

    def __init__(
        self,
        *,
        time: Sequence[Any],
        memory: Sequence[Any] | None = None,
        edges: Sequence[Edge | tuple[Any, ...]] = (),
        names: Sequence[str] | None = None,
    ) -> None:
        """Check and keep the arrays.

        Args:
          time: V arrays (K_v,), seconds.
          memory: V arrays (K_v,), whole bytes; None stands for no memory at all.
          edges: (u, v, time_uv) or (u, v, time_uv, memory_uv), matrices (K_u, K_v) or (K_u, K_v, C) with
            infinite time where a choice does not exist.
          names: names of the nodes in error messages.

        Raises:
          ProblemError: the arrays do not fit together, hold NaN, or leave nothing to choose.
        """
        arrays = _validate.Arrays()
        names = _validate.node_names(names, len(time))
        times = tuple(arrays.node_time(array, name) for array, name in zip(time, names))
        if memory is None:
            memories = tuple(arrays.no_memory(len(array)) for array in times)
        else:
            _validate.same_length(len(memory), len(times))
            memories = tuple(arrays.node_memory(m, t, n) for m, t, n in zip(memory, times, names))
        sizes = tuple(len(array) for array in times)
        keep = functools.partial(object.__setattr__, self)
        keep("time", times)
        keep("memory", memories)
        keep("edges", tuple(arrays.edge(edge, index, sizes, names) for index, edge in enumerate(edges)))
        keep("names", names)
        keep("num_configurations", sizes)
        keep("node_kinds", _kinds(zip(times, memories)))
        keep("edge_kinds", _kinds((edge.time, edge.memory) for edge in self.edges))
        keep("_groups", Groups(self))

    @property
    def num_nodes(self) -> int:
        return len(self.time)

    def __repr__(self) -> str:
        labels = sum(self.num_configurations)
        return f"Problem({len(self.time)} nodes, {len(self.edges)} edges, {labels} configurations)"

    def evaluate(
        self, assignment: Sequence[int], choices: Sequence[int] | None = None
    ) -> tuple[float, int, tuple[int, ...]]:
        """Return seconds, bytes and the choices of one assignment.

        Args:
          assignment: (V,) configuration of each node.
          choices: (E,) choice of each edge; by default the fastest one, ties to less memory.

        Raises:
          ProblemError: a configuration or a choice is out of range.
        """
        _validate.assignment_range(
            assignment, choices, names=self.names, sizes=self.num_configurations, edges=self.edges
        )
        rows = np.asarray(assignment, np.intp)[None]
        given = None if choices is None else np.asarray(choices, np.intp)[None]
        times, memories, picked = self.evaluate_many(rows, given)
        return float(times[0]), int(memories[0]), tuple(picked[0].tolist())

    def evaluate_many(
        self, assignments: np.ndarray, choices: np.ndarray | None = None, weights: Weights | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Score N assignments: (N,) seconds, (N,) bytes and (N, E) choices.

        Sums of seconds are rounded once (`math.fsum`): equal costs in any order have equal sums.

        Args:
          assignments: (N, V) configuration of each node.
          choices: (N, E) choice of each edge; negative entries and None are filled in.
          weights: of time and memory, to fill in the choice of least weighted cost instead of the fastest.
        """
        times, memories, picked = self.costs(assignments, choices, weights)
        totals = np.array([math.fsum(row) for row in times.tolist()])
        return totals, memories.sum(axis=1), picked

    def costs(
        self, assignments: np.ndarray, choices: np.ndarray | None = None, weights: Weights | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the terms of `evaluate_many`'s sums: (N, V + E) seconds and bytes, and (N, E) choices."""
        num_rows = len(assignments)
        times = np.empty((num_rows, self.num_nodes + len(self.edges)))
        memories = np.zeros(times.shape, np.int64)
        picked = np.zeros((num_rows, len(self.edges)), np.intp)
        times[:, : self.num_nodes], memories[:, : self.num_nodes] = self.node_costs(assignments)
        for indices, sources, targets, edge in self._groups.edges:
            given = None if choices is None else choices[:, indices]
            terms = _edge_costs(edge, assignments[:, sources], assignments[:, targets], given, weights)
            columns = self.num_nodes + indices
            times[:, columns], memories[:, columns], picked[:, indices] = terms
        return times, memories, picked

    def node_costs(self, assignments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the (N, V) seconds and bytes of the nodes alone."""
        times = np.empty(assignments.shape)
        memories = np.empty(assignments.shape, np.int64)
        for nodes, time, memory in self._groups.nodes:
            labels = assignments[:, nodes]
            times[:, nodes], memories[:, nodes] = time[labels], memory[labels]
        return times, memories

    def edge_groups(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, Edge]]:
        """Return, for each different pair of an edge's arrays, the edges that have it and their two ends."""
        return self._groups.edges


class Groups:
    """Nodes and edges that share their arrays: each group is looked up at once."""

    def __init__(self, problem: Problem) -> None:
        times, memories, edges = problem.time, problem.memory, problem.edges
        nodes = _members(problem.node_kinds)
        self.nodes = [(np.array(group), times[first], memories[first]) for first, group in nodes.items()]
        self.edges = [
            (
                np.array(group),
                np.array([edges[index].source for index in group]),
                np.array([edges[index].target for index in group]),
                edges[first],
            )
            for first, group in _members(problem.edge_kinds).items()
        ]


def _kinds(arrays: Iterable[tuple[np.ndarray | None, ...]]) -> tuple[int, ...]:
    """Of each entry the first one with the same arrays; the caller keeps the arrays alive."""
    first = Memo()
    return tuple(first.setdefault(first.numbers(of), index) for index, of in enumerate(arrays))


def _members(kinds: Sequence[int]) -> dict[int, list[int]]:
    """First entry of each kind -> all entries of it."""
    found: dict[int, list[int]] = {}
    for index, first in enumerate(kinds):
        found.setdefault(first, []).append(index)
    return found


def _edge_costs(
    edge: Edge, sources: np.ndarray, targets: np.ndarray, given: np.ndarray | None, weights: Weights | None
) -> tuple[np.ndarray, np.ndarray | int, np.ndarray | int]:
    """Return the seconds, bytes and choices of equal edges, for (N, G) configurations of their ends."""
    time, memory = edge.costs_at(sources, targets)
    if edge.num_choices == 1:
        return time[..., 0], memory[..., 0], 0
    picked = fastest_choice(time, memory) if weights is None else cheapest_choice(time, memory, *weights)
    if given is not None:
        picked = np.where(given >= 0, given, picked)
    return at_choice(time, picked), at_choice(memory, picked), picked
