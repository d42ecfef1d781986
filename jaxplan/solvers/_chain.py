"""Costs of assignments that change in one place at a time, as a Markov chain asks for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from jaxplan.solvers._edge import at_choice, fastest_choice
from jaxplan.solvers._problem import Problem


class Walk(Protocol):
    """An assignment with its cost, and the cost after any one change.

    Law: after `propose(node, label)` returned c and `accept()`, `cost` is c, the cost of the changed
    assignment; without `accept` nothing has changed. A walk in which other nodes change along with the proposed one
    says so in `proposed`, a mapping from nodes to configurations.
    """

    @property
    def cost(self) -> float:
        """The cost of the assignment."""
        ...

    def propose(self, node: int, label: int) -> float:
        """Return the cost that the assignment would have with one node changed."""
        ...

    def accept(self) -> None:
        """Make the change proposed last."""
        ...


WalkFrom = Callable[[Sequence[int]], Walk]


class AdditiveWalk:
    """The problem's own seconds, each edge at its fastest choice.

    Forbidden assignments (infinite entries, bytes above a limit) cost more than any allowed one, and
    less the nearer they are to being allowed: a chain that starts there finds its way out. A proposal reads the
    node's own entry and those of its edges, nothing else.
    """

    def __init__(self, tables: AdditiveTables, assignment: Sequence[int], memory_limit: int | None) -> None:
        self._tables, self._limit = tables, memory_limit
        self.assignment = list(assignment)
        self._time, self._memory, self._forbidden = tables.whole(assignment)
        self._proposed = (0, self.assignment[0], self._time, self._memory, self._forbidden)

    @property
    def cost(self) -> float:
        return self._cost(self._time, self._memory, self._forbidden)

    def propose(self, node: int, label: int) -> float:
        before = self._tables.around(node, self.assignment[node], self.assignment)
        after = self._tables.around(node, label, self.assignment)
        now = (self._time, self._memory, self._forbidden)
        changed = (total - old + new for total, old, new in zip(now, before, after))
        self._proposed = (node, label, *changed)
        return self._cost(*self._proposed[2:])

    def accept(self) -> None:
        node, label, self._time, self._memory, self._forbidden = self._proposed
        self.assignment[node] = label

    def _cost(self, time: float, memory: float, forbidden: float) -> float:
        cost = time + forbidden * self._tables.penalty
        if self._limit is not None and memory > self._limit:
            cost += self._tables.penalty * (1 + (memory - self._limit) / max(1, abs(self._limit)))
        return cost


class AdditiveTables:
    """A problem's arrays by node, the fastest choice of every cell taken, infinities counted apart.

    Attributes:
      penalty: more than any finite assignment costs.
    """

    def __init__(self, problem: Problem) -> None:
        self._nodes = [(time, memory) for time, memory in zip(problem.time, problem.memory)]
        self._edges: list[list[tuple[int, np.ndarray, np.ndarray | None, bool]]] = [[] for _ in problem.time]
        made: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}
        self.penalty = 1.0 + sum(map(_largest, problem.time))
        for kind, edge in zip(problem.edge_kinds, problem.edges, strict=True):
            if kind not in made:
                made[kind] = _fastest(edge.time, edge.memory)
            time, memory = made[kind]
            self.penalty += _largest(time)
            self._edges[edge.source].append((edge.target, time, memory, True))
            self._edges[edge.target].append((edge.source, time, memory, False))

    def own(self, node: int, label: int) -> tuple[float, float, float]:
        """Return seconds, bytes and infinite entries (one or none) of a node alone."""
        time, memory = self._nodes[node]
        seconds = float(time[label])
        return (
            (0.0, float(memory[label]), 1.0) if math.isinf(seconds) else (seconds, float(memory[label]), 0.0)
        )

    def whole(self, assignment: Sequence[int]) -> tuple[float, float, float]:
        """Return seconds, bytes and infinite entries of an assignment."""
        around = [self.around(node, label, assignment) for node, label in enumerate(assignment)]
        own = [self.own(node, label) for node, label in enumerate(assignment)]
        # Edges are seen from both of their ends.
        time, memory, forbidden = ((sum(terms) + sum(alone)) / 2 for terms, alone in zip(zip(*around), zip(*own)))
        return time, memory, forbidden

    def around(self, node: int, label: int, assignment: Sequence[int]) -> tuple[float, float, float]:
        """Return those of a node and all its edges."""
        time, memory, forbidden = self.own(node, label)
        for other, edge_time, edge_memory, is_source in self._edges[node]:
            cell = (label, assignment[other]) if is_source else (assignment[other], label)
            seconds = float(edge_time[cell])
            if math.isinf(seconds):
                forbidden += 1.0
            else:
                time += seconds
            memory += float(edge_memory[cell]) if edge_memory is not None else 0.0
        return time, memory, forbidden


def _largest(costs: np.ndarray) -> float:
    return float(np.abs(costs[np.isfinite(costs)]).max(initial=0.0))


def _fastest(time: np.ndarray, memory: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    if time.ndim == 2:
        return time, memory
    known = np.zeros(time.shape, np.int64) if memory is None else memory
    picked = fastest_choice(time, known)
    return at_choice(time, picked), at_choice(known, picked)


def additive_walks(problem: Problem, memory_limit: int | None = None) -> WalkFrom:
    """Return a function that starts a walk on the problem's own costs."""
    tables = AdditiveTables(problem)
    return lambda assignment: AdditiveWalk(tables, assignment, memory_limit)


class ScoredWalk:
    """Any score of whole assignments, evaluated anew for every proposal."""

    def __init__(self, score: Callable[[Sequence[int]], float], assignment: Sequence[int]) -> None:
        self._score = score
        self.assignment = list(assignment)
        self.cost = score(self.assignment)
        self._proposed = (0, self.assignment[0], self.cost)

    def propose(self, node: int, label: int) -> float:
        changed = self.assignment.copy()
        changed[node] = label
        self._proposed = (node, label, self._score(changed))
        return self._proposed[2]

    def accept(self) -> None:
        node, label, self.cost = self._proposed
        self.assignment[node] = label
