"""Exact variable elimination over (min, +), with equal steps of equal layers computed once.

Source: PaSE, recurrence (4): its tables over the dependent sets are the tables of this elimination.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxplan.errors import InfeasibleError
from jaxplan.solvers._edge import weighted
from jaxplan.solvers._kernel import aligned, minimise_first_axis
from jaxplan.solvers._problem import Problem, Weights
from jaxplan.solvers._schedule import Schedule

NOTHING_FEASIBLE_MSG = (
    "every assignment takes infinite time: no combination of configurations avoids the forbidden (infinite) "
    "entries. Check edges with infinities in their matrices."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """An assignment of small weighted cost, the least if `bound` says so.

    Attributes:
      value: its cost, in units of the weights.
      assignment: (V,) configuration of each node; edges take their choice of least weighted cost.
      bound: no assignment costs less; equal to `value` after an elimination.
    """

    value: float
    assignment: tuple[int, ...]
    bound: float


def run_schedule(problem: Problem, schedule: Schedule, weights: Weights = (1.0, 0.0)) -> Optimum:
    """Minimise `weights[0] * time + weights[1] * memory`, exactly.

    Ties go to the lower configuration, from the node eliminated last to the one eliminated first.

    Raises:
      InfeasibleError: every assignment has infinite time.
    """
    tables = fill(problem, schedule, weights)
    value = value_of_roots(schedule, tables)
    assignment = tuple(read_back(schedule, tables, [0] * problem.num_nodes))
    return Optimum(value=value, assignment=assignment, bound=value)


def value_of_roots(schedule: Schedule, tables: list[np.ndarray]) -> float:
    """Return the sum of the tables over no node that the steps leave behind.

    Raises:
      InfeasibleError: it is infinite.
    """
    roots = [schedule.num_bases + step.operation for step in schedule.steps if not step.scope]
    value = sum(float(tables[root]) for root in roots)
    if not np.isfinite(value):
        raise InfeasibleError(NOTHING_FEASIBLE_MSG)
    return value


def fill(problem: Problem, schedule: Schedule, weights: Weights) -> list[np.ndarray]:
    """Return all tables, the given ones weighted."""
    tables = [weighted(problem.time[node], problem.memory[node], *weights) for node in schedule.node_bases]
    tables += [problem.edges[edge].scalarised(*weights) for edge in schedule.edge_bases]
    for operation in schedule.operations:
        terms = [aligned(tables[table], axes, len(operation.sizes)) for table, axes in operation.inputs]
        tables.append(minimise_first_axis(terms, operation.sizes))
    return tables


def read_back(schedule: Schedule, tables: list[np.ndarray], assignment: list[int]) -> list[int]:
    """Complete the assignment behind the minimum: each node's best configuration given those removed after it.

    Equal steps in equal surroundings are looked up, so equal layers cost one search.

    Args:
      schedule, tables: an elimination that was run.
      assignment: (V,) configurations of the nodes that it leaves out; the others are written.
    """
    known: dict[tuple[int, ...], int] = {}
    for step in reversed(schedule.steps):
        given = tuple(assignment[node] for node in step.scope)
        key = (step.operation, *given)
        if key not in known:
            operation = schedule.operations[step.operation]
            local = (slice(None), *given, 0)  # the last one for axes that stand for no node
            rows = [tables[table][tuple(local[axis] for axis in axes)] for table, axes in operation.inputs]
            known[key] = int(np.argmin(sum(rows)))
        assignment[step.node] = known[key]
    return assignment
