"""The steps of a variable elimination, planned on shapes and identities alone, equal steps folded."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from jaxplan.errors import ProblemError
from jaxplan.solvers._order import OrderName, elimination_order
from jaxplan.solvers._problem import Problem

# 2**27 float64 are 1 GiB: the tables of one elimination stay inside a laptop's memory.
MAX_TABLE_ENTRIES = 2**27

_TOO_WIDE_MSG = (
    "variable elimination needs {entries:.3g} table entries, more than the limit of {limit:.3g}: node {name} "
    "is still joined to {width} others when it is removed. The graph is too wide for exact elimination with "
    "so many configurations; give nodes fewer configurations, or join fewer nodes to one."
)

CHEAP_ADDITIONS = 300_000
"""A schedule of no more is taken as it is: all runs together take less time than planning another order does."""

ORDERS: tuple[OrderName, ...] = ("min-weight", "min-result", "min-degree")

Factor = tuple[int, tuple[int, ...]]  # a table and the nodes of its axes, `NOTHING` for one without a choice
NOTHING = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Minimises the sum of some tables over one variable.

    Variables are local: 0 is the one that is minimised, 1, 2 ... are the axes of the result.

    Attributes:
      inputs: (table, its axes as local variables) of each term; -1 for an axis of one entry that no variable has.
      sizes: configurations of each local variable.
    """

    inputs: tuple[Factor, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Removes `node`; `scope` holds the nodes of the axes of the table that `operation` leaves behind."""

    node: int
    operation: int
    scope: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The operations of an elimination, in order. Tables are numbered: bases of nodes, bases of edges, results.

    Attributes:
      node_bases: one node for each different pair of (time, memory) arrays of nodes.
      edge_bases: one edge for each different pair of edges.
      operations: the different operations.
      steps: V steps, in order of elimination; fewer where an order leaves nodes out.
      rest: the tables that no step removes, over nodes that are left out; none where all are eliminated.
    """

    node_bases: tuple[int, ...]
    edge_bases: tuple[int, ...]
    operations: tuple[Operation, ...]
    steps: tuple[Step, ...]
    rest: tuple[Factor, ...] = ()

    @property
    def num_bases(self) -> int:
        return len(self.node_bases) + len(self.edge_bases)

    @property
    def num_additions(self) -> int:
        """Entries looped over by one run; its time is proportional to them."""
        return sum(math.prod(operation.sizes) for operation in self.operations)


def build_schedule(
    problem: Problem,
    order: OrderName | Sequence[int] = "min-weight",
    *,
    fold: bool = True,
    max_entries: int = MAX_TABLE_ENTRIES,
) -> Schedule:
    """Plan the elimination of every node, or of those that the order names.

    Args:
      problem: the problem to solve.
      order: the rule that picks the next node, or the nodes in order.
      fold: compute steps on the same input tables, with axes in the same places, once.
      max_entries: bound on the entries of all tables together.

    Raises:
      ProblemError: the tables would exceed `max_entries`.
    """
    node_bases, edge_bases, factors, factors_of = _bases(problem, fold)
    is_used = [False] * len(factors)
    num_bases = len(node_bases) + len(edge_bases)
    known: dict[Hashable, int] = {}
    operations: list[Operation] = []
    steps: list[Step] = []
    num_entries = 0
    for node in elimination_order(problem, order) if isinstance(order, str) else order:
        mine = [f for f in factors_of[node] if not is_used[f]]
        terms = sorted([factors[f] for f in mine])
        operation, scope = _operation(problem, node, terms)
        index = known.setdefault(operation if fold else node, len(operations))
        if index == len(operations):
            operations.append(operation)
            num_entries += math.prod(operation.sizes[1:])
            if num_entries > max_entries:
                name, width = problem.names[node], len(scope)
                text = _TOO_WIDE_MSG.format(entries=num_entries, limit=max_entries, name=name, width=width)
                raise ProblemError(text)
        steps.append(Step(node=node, operation=index, scope=scope))
        for f in mine:
            is_used[f] = True
        for name in scope:
            factors_of[name].append(len(factors))
        factors.append((num_bases + index, scope))
        is_used.append(False)
    return Schedule(
        node_bases=node_bases,
        edge_bases=edge_bases,
        operations=tuple(operations),
        steps=tuple(steps),
        rest=tuple(factor for factor, used in zip(factors, is_used) if factor[1] and not used),
    )


def best_schedule(problem: Problem, max_entries: int = MAX_TABLE_ENTRIES) -> Schedule:
    """Return the schedule of the order that takes the fewest additions, or of the first order that takes few; ties to
    the first.

    Raises:
      ProblemError: the tables would exceed `max_entries` in every order.
    """
    schedules, failures = [], []
    for order in ORDERS:
        try:
            schedules.append(build_schedule(problem, order, max_entries=max_entries))
            if schedules[-1].num_additions <= CHEAP_ADDITIONS:
                break
        except ProblemError as error:
            failures.append(error)
    if not schedules:
        raise failures[0]
    return min(schedules, key=lambda schedule: schedule.num_additions)


def _bases(
    problem: Problem, fold: bool
) -> tuple[tuple[int, ...], tuple[int, ...], list[Factor], list[list[int]]]:
    """Number the given tables, equal ones once, and list all factors and those of each node."""
    node_tables: dict[Hashable, int] = {}
    edge_tables: dict[Hashable, int] = {}
    node_bases: list[int] = []
    edge_bases: list[int] = []
    factors: list[Factor] = []
    factors_of: list[list[int]] = []
    sizes = problem.num_configurations
    for node in range(problem.num_nodes):
        key = problem.node_kinds[node] if fold else node
        table = node_tables.setdefault(key, len(node_bases))
        if table == len(node_bases):
            node_bases.append(node)
        factors_of.append([len(factors)])
        factors.append((table, (node,)))
    for index, edge in enumerate(problem.edges):
        table = edge_tables.setdefault(problem.edge_kinds[index] if fold else index, len(edge_bases))
        if table == len(edge_bases):
            edge_bases.append(index)
        ends = tuple(node if sizes[node] > 1 else NOTHING for node in (edge.source, edge.target))
        for node in {*ends} - {NOTHING} or {edge.source}:
            factors_of[node].append(len(factors))
        factors.append((len(node_bases) + table, ends))
    return tuple(node_bases), tuple(edge_bases), factors, factors_of


def _operation(problem: Problem, node: int, terms: list[Factor]) -> tuple[Operation, tuple[int, ...]]:
    """Return one node's elimination in local variables, numbered by first appearance, and their nodes."""
    local = {node: 0, NOTHING: -1}
    for _, names in terms:
        for name in names:
            local.setdefault(name, len(local) - 1)
    inputs = tuple((table, tuple(local[name] for name in names)) for table, names in terms)
    scope = tuple(name for name in local if name not in (node, NOTHING))
    sizes = tuple(problem.num_configurations[name] for name in (node, *scope))
    return Operation(inputs=inputs, sizes=sizes), scope
