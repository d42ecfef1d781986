"""The core of a problem: all nodes eliminated that meet at most two others, the rest left to message passing.

Eliminating a node of one or two neighbours leaves a table over these alone, so the core is again a problem of nodes
and pairs: OptCNN's node elimination (Jia et al., ICML 2018, 5.2), where a node may have two edges of any direction. Of
train steps a fifth of the nodes is left, equal layers are eliminated once, and messages reach across it in few sweeps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxplan.errors import InfeasibleError
from jaxplan.solvers._dual import minimise_by_messages
from jaxplan.solvers._elimination import NOTHING_FEASIBLE_MSG, Optimum, fill, read_back, value_of_roots
from jaxplan.solvers._order import elimination_order
from jaxplan.solvers._problem import Problem, Weights
from jaxplan.solvers._schedule import NOTHING, Schedule, build_schedule

# A node stays in the core where its elimination loops over more entries: a hundredth of a second on one core.
_MOST_ENTRIES = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The nodes of a problem that eliminations of at most two neighbours leave.

    Attributes:
      nodes: their numbers, ascending.
      schedule: the elimination of all others.
      pairs: pairs of them that a table joins.
      num_entries: of these tables.
    """

    nodes: tuple[int, ...]
    schedule: Schedule
    pairs: frozenset[tuple[int, ...]]
    num_entries: int


def core_of(problem: Problem) -> Core:
    """Find the core; it has no node where the graph is series-parallel."""
    order = elimination_order(problem, "min-degree", max_degree=2, max_entries=_MOST_ENTRIES)
    schedule = build_schedule(problem, order)
    sizes = problem.num_configurations
    pairs = {tuple(sorted(scope)) for _, scope in schedule.rest if len(scope) == 2 and NOTHING not in scope}
    return Core(
        nodes=tuple(sorted(set(range(problem.num_nodes)) - set(order))),
        schedule=schedule,
        pairs=frozenset(pairs),
        num_entries=sum(sizes[u] * sizes[v] for u, v in pairs),
    )


def minimise_core(problem: Problem, core: Core, weights: Weights = (1.0, 0.0)) -> Optimum:
    """Eliminate the nodes outside of the core, and pass messages in it; see `minimise_by_messages`.

    Raises:
      InfeasibleError: every assignment has infinite time.
      ProblemError: no assignment of finite time was found.
    """
    tables = fill(problem, core.schedule, weights)
    constant = value_of_roots(core.schedule, tables)
    assignment = [0] * problem.num_nodes
    value = bound = 0.0
    if core.nodes:
        optimum = minimise_by_messages(_weighted(core, tables))
        value, bound = optimum.value, optimum.bound
        for node, label in zip(core.nodes, optimum.assignment):
            assignment[node] = label
    read_back(core.schedule, tables, assignment)
    return Optimum(value=value + constant, assignment=tuple(assignment), bound=bound + constant)


def _weighted(core: Core, tables: list[np.ndarray]) -> Problem:
    """The core as a problem with the weighted cost as its time."""
    place = {node: index for index, node in enumerate(core.nodes)}
    own: list[np.ndarray | float] = [0.0] * len(core.nodes)
    edges = []
    for table, scope in core.schedule.rest:
        ends = [place[node] for node in scope if node != NOTHING]
        if len(ends) == 2:
            edges.append((*ends, tables[table]))
        else:
            own[ends[0]] = own[ends[0]] + tables[table].reshape(-1)
    if any(np.isposinf(costs).all() for costs in (*own, *(edge[2] for edge in edges))):
        raise InfeasibleError(NOTHING_FEASIBLE_MSG)
    return Problem(time=own, edges=edges)
