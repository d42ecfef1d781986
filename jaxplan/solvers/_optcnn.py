"""OptCNN: node and edge eliminations as far as they go, then every assignment of the remaining graph.

Source: Jia et al., "Exploring hidden dimensions in accelerating convolutional neural networks", ICML 2018,
section 5.2, Algorithm 1. A node with one edge in and one out becomes an edge; edges between the same two nodes
become one. Ends of chains, which OptCNN leaves to the enumeration, are removed the same way here.
"""

from __future__ import annotations

import math

from jaxplan.errors import ProblemError
from jaxplan.solvers._order import neighbours
from jaxplan.solvers._problem import Problem

MOST_ENUMERATED = 10_000_000
"""Assignments of the final graph that are looked at; a core does some 1e8 a second."""

_STUCK_MSG = (
    "OptCNN's eliminations end at {nodes} nodes, {names} among them, with {count:.3g} assignments; it looks at "
    "{limit:.0e} at most. The graph has too few chains for this algorithm; use solver='auto' or 'pase'."
)


def optcnn_order(problem: Problem) -> list[int]:
    """Return the V nodes in the order of OptCNN's eliminations, those of the final graph last.

    Raises:
      ProblemError: the final graph has more than `MOST_ENUMERATED` assignments.
    """
    adjacent = neighbours(problem)
    removed: list[int] = []
    gone: set[int] = set()
    pending = list(range(problem.num_nodes))
    while pending:
        node = pending.pop(0)
        if node in gone or len(adjacent[node]) > 2:
            continue
        gone.add(node)
        removed.append(node)
        around = sorted(adjacent[node])
        for other in around:
            adjacent[other] |= adjacent[node]
            adjacent[other] -= {node, other}
        pending += around
    left = [node for node in range(problem.num_nodes) if node not in gone]
    count = math.prod(problem.num_configurations[node] for node in left)
    if count > MOST_ENUMERATED:
        names = ", ".join(problem.names[node] for node in left[:3])
        text = _STUCK_MSG.format(nodes=len(left), names=names, count=float(count), limit=MOST_ENUMERATED)
        raise ProblemError(text)
    return removed + left
