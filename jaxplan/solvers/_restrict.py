"""A problem cut down to some configurations of each node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.errors import InfeasibleError
from jaxplan.solvers._edge import Edge
from jaxplan.solvers._elimination import NOTHING_FEASIBLE_MSG
from jaxplan.solvers._problem import Problem

Labels = tuple[int, ...]


def restrict(problem: Problem, labels: Sequence[Labels]) -> Problem:
    """Return the problem with the configurations `labels[v]` of each node v alone, in that order.

    Equal cuts of shared arrays stay shared. Costs and choices are unchanged.

    Raises:
      InfeasibleError: everything that is left of a node or an edge takes infinite time.
    """
    known = Memo()

    def cut(array: np.ndarray, *kept: Labels) -> np.ndarray:
        key = (known.number(array), kept)
        if key not in known:
            known[key] = np.ascontiguousarray(array[np.ix_(*kept)])
            if array.dtype.kind == "f" and np.isposinf(known[key]).all():
                raise InfeasibleError(NOTHING_FEASIBLE_MSG)
        return known[key]

    edges = []
    for edge in problem.edges:
        kept = (labels[edge.source], labels[edge.target])
        memory = None if edge.memory is None else cut(edge.memory, *kept)
        edges.append(Edge(source=edge.source, target=edge.target, time=cut(edge.time, *kept), memory=memory))
    return Problem(
        time=[cut(array, kept) for array, kept in zip(problem.time, labels)],
        memory=[cut(array, kept) for array, kept in zip(problem.memory, labels)],
        edges=edges,
        names=problem.names,
    )


def labels_of(assignments: Sequence[Sequence[int]]) -> list[Labels]:
    """Return for each node the configurations that occur, ascending."""
    return [tuple(sorted(set(column))) for column in zip(*assignments)]


def original_labels(assignments: np.ndarray, labels: Sequence[Labels]) -> np.ndarray:
    """Return (N, V) assignments of the restricted problem in the configurations of the whole one."""
    columns = [np.array(kept)[column] for kept, column in zip(labels, assignments.T)]
    return np.stack(columns, axis=1) if columns else assignments
