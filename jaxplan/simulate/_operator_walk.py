"""Chains over operators with their weights: an operator's configuration decides those of its weights, too.

Source: FlexFlow, section 6.2: a proposal replaces the configuration of one operator. FlexFlow's operators hold their
weights; here stored arrays and their updates are groups of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxplan.cost._model import CostModel
from jaxplan.cost._prediction import Predictor
from jaxplan.ir import STORED_KINDS
from jaxplan.simulate._plan_pieces import PlanPieces
from jaxplan.simulate._plan_walk import DeltaPlanWalk, FullPlanWalk
from jaxplan.simulate._simulated_plan import PlanSimulator
from jaxplan.solvers import Problem

MOST_FOLLOWERS = 64
"""Groups that change with one proposal at most."""


class OperatorWalk:
    """A walk in which groups of stored values follow the proposed group, and so do neighbours that no longer fit it.

    They take the configuration that is cheapest beside the others, by the additive costs.

    Attributes:
      proposed: configurations of the last proposal, of the proposed group and of those that follow it.
    """

    def __init__(self, walk: DeltaPlanWalk | FullPlanWalk, problem: Problem, is_stored: Sequence[bool]) -> None:
        self._walk, self._problem, self._is_stored = walk, problem, is_stored
        self._tables: list[list[tuple[int, np.ndarray]]] = [[] for _ in problem.time]
        made: dict[int, np.ndarray] = {}
        for kind, edge in zip(problem.edge_kinds, problem.edges, strict=True):
            table = made.setdefault(kind, edge.scalarised(1.0, 0.0))
            self._tables[edge.source].append((edge.target, table))
            self._tables[edge.target].append((edge.source, table.T))
        self.proposed: Mapping[int, int] = {}

    @property
    def assignment(self) -> list[int]:
        return self._walk.assignment

    @property
    def cost(self) -> float:
        return self._walk.cost

    def propose(self, node: int, label: int) -> float:
        self.proposed = self._with_followers(node, label)
        return self._walk.propose_all(self.proposed)

    def accept(self) -> None:
        self._walk.accept()

    def _with_followers(self, node: int, label: int) -> dict[int, int]:
        current = self.assignment.copy()
        current[node] = label
        changes, pending = {node: label}, [node]
        while pending and len(changes) < MOST_FOLLOWERS:
            around = pending.pop(0)
            for other, table in self._tables[around]:
                is_apart = math.isinf(table[current[around], current[other]])
                if other in changes or not (is_apart or self._is_stored[other]):
                    continue
                best = self._cheapest(other, current)
                if best != current[other]:
                    pending.append(other)
                changes[other] = current[other] = best
        return {v: k for v, k in changes.items() if v == node or k != self.assignment[v]}

    def _cheapest(self, node: int, assignment: Sequence[int]) -> int:
        costs = self._problem.time[node].copy()
        for other, table in self._tables[node]:
            costs += table[:, assignment[other]]
        if np.isinf(costs).all():
            forbidden = np.isinf(self._problem.time[node]).astype(int)
            for other, table in self._tables[node]:
                forbidden += np.isinf(table[:, assignment[other]])
            return int(forbidden.argmin())
        return int(costs.argmin())


def simulated_walks(model: CostModel) -> Callable[[Sequence[int]], OperatorWalk]:
    """The function with which `walk_chains` starts walks, so that the simulator scores the chains."""
    pieces = PlanPieces(PlanSimulator(Predictor(model)))
    is_stored = [group.kind in STORED_KINDS for group in model.graph.grouping.groups]
    return lambda assignment: OperatorWalk(DeltaPlanWalk(pieces, assignment), model.problem, is_stored)
