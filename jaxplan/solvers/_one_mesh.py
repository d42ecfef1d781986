"""Mesh-TensorFlow's two restrictions, as constraints on the same search.

Source: TensorOpt, section 4.2 (flexible tensor splitting), after Shazeer et al., "Mesh-TensorFlow", 2018: all
operators use one device mesh, and a named dimension that is split over a dimension of the mesh is so in every
tensor that has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxplan._errors import ProblemError
from jaxplan.solvers._problem import Problem

Axes = tuple[str, ...]
Meaning = Mapping[str, Axes]


def one_mesh(problem: Problem, meanings: Sequence[Sequence[Meaning]]) -> Problem:
    """Return the problem whose assignments obey both restrictions, for any solver.

    Each named dimension becomes a node that costs nothing: its configurations are the axes that split it, and
    edges of infinite time forbid operators to split it otherwise, and two dimensions to share a part of their
    axes. The first V configurations of an assignment are those of the problem's own nodes.

    Args:
      problem: what to restrict.
      meanings: for each node and configuration, the axes that split each of its named dimensions; () where a
        dimension stays whole. A dimension that a node does not have is not in the mapping.

    Raises:
      ProblemError: `meanings` does not match the problem, or no strategy obeys the restrictions on one node.
    """
    if [len(rows) for rows in meanings] != list(problem.num_configurations):
        raise ProblemError("meanings needs one mapping for each configuration of each node of the problem")
    names = sorted({name for rows in meanings for row in rows for name in row})
    options = {name: _options(name, meanings) for name in names}
    place = {name: problem.num_nodes + index for index, name in enumerate(names)}
    edges = [(edge.source, edge.target, edge.time, edge.memory) for edge in problem.edges]
    full = [edge if edge[3] is not None else edge[:3] for edge in edges]
    for node, rows in enumerate(meanings):
        for name in sorted({name for row in rows for name in row}):
            allowed = [[row.get(name, ()) == axes for axes in options[name]] for row in rows]
            full.append((node, place[name], _forbidding(allowed)))
    for index, one in enumerate(names):
        for two in names[index + 1 :]:
            allowed = [[_one_mesh_holds(a, b) for b in options[two]] for a in options[one]]
            if not np.all(allowed):
                full.append((place[one], place[two], _forbidding(allowed)))
    nothing = [np.zeros(len(options[name])) for name in names]
    return Problem(
        time=[*problem.time, *nothing],
        memory=[*problem.memory, *(array.astype(np.int64) for array in nothing)],
        edges=full,
        names=[*problem.names, *(f"dimension {name}" for name in names)],
    )


def _options(name: str, meanings: Sequence[Sequence[Meaning]]) -> list[Axes]:
    return sorted({row[name] for rows in meanings for row in rows if name in row})


def _one_mesh_holds(one: Axes, two: Axes) -> bool:
    """Return whether both are dimensions of one mesh: the same one, or with no axis in common."""
    return one == two or not set(one) & set(two)


def _forbidding(allowed: Sequence[Sequence[bool]]) -> np.ndarray:
    return np.where(allowed, 0.0, np.inf)
