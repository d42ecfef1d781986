"""Costs that depend on three nodes at once: a block's choice and the shardings at its two ends, for instance.

Each such factor becomes a node of its own with pairs of configurations of two of its nodes as configurations: all
solvers read the result, and the optimum is that of the factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.errors import ProblemError
from jaxplan.solvers._problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Triple:
    """Costs of three nodes.

    Attributes:
      nodes: three different nodes u, v, w.
      time: (K_u, K_v, K_w) seconds; infinite where the three do not go together.
      memory: bytes of the same shape, or None where it takes none.
    """

    nodes: tuple[int, int, int]
    time: np.ndarray
    memory: np.ndarray | None = None


def join_triples(problem: Problem, triples: Sequence[Triple]) -> Problem:
    """Return the problem with factors of three nodes added.

    Assignments of the result begin with those of the problem's own V nodes; the rest are pairs that follow from them.

    Raises:
      ProblemError: a factor does not fit the nodes that it names.
    """
    time, memory, names = list(problem.time), list(problem.memory), list(problem.names)
    edges: list[tuple[object, ...]] = [
        (edge.source, edge.target, edge.time)
        if edge.memory is None
        else (edge.source, edge.target, edge.time, edge.memory)
        for edge in problem.edges
    ]
    for index, triple in enumerate(triples):
        _check(problem, triple, index)
        order = sorted(range(3), key=lambda place: problem.num_configurations[triple.nodes[place]])
        one, two, largest = (triple.nodes[place] for place in order)
        sizes = tuple(problem.num_configurations[node] for node in (one, two))
        pairs = np.arange(sizes[0] * sizes[1])
        node = len(time)
        time.append(np.zeros(len(pairs)))
        memory.append(np.zeros(len(pairs), np.int64))
        names.append("triple " + ", ".join(problem.names[other] for other in triple.nodes))
        for other, labels in zip((one, two), np.divmod(pairs, sizes[1])):
            agrees = np.arange(problem.num_configurations[other])[:, None] == labels[None]
            edges.append((other, node, np.where(agrees, 0.0, np.inf)))
        tables = [
            np.ascontiguousarray(np.transpose(table, order).reshape(len(pairs), -1))
            for table in (triple.time, triple.memory)
            if table is not None
        ]
        edges.append((node, largest, *tables))
    return Problem(time=time, memory=memory, edges=edges, names=names)


def _check(problem: Problem, triple: Triple, index: int) -> None:
    if len(set(triple.nodes)) != 3 or not all(0 <= node < problem.num_nodes for node in triple.nodes):
        raise ProblemError(
            f"factor {index} joins nodes {triple.nodes}; expected three different ones below {problem.num_nodes}"
        )
    shape = tuple(problem.num_configurations[node] for node in triple.nodes)
    for table in (triple.time, triple.memory):
        if table is not None and np.shape(table) != shape:
            raise ProblemError(f"factor {index} has shape {np.shape(table)}, its nodes have {shape}")
