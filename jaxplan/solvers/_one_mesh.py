"""Mesh-TensorFlow's two restrictions, as constraints on the same search.

Source: TensorOpt, section 4.2 (flexible tensor splitting), after Shazeer et al., "Mesh-TensorFlow", 2018: all
operators use one device mesh, and a named dimension that is split over a dimension of the mesh is so in every
tensor that has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxplan.errors import InfeasibleError, ProblemError
from jaxplan.solvers._point import Point, non_dominated
from jaxplan.solvers._problem import Problem
from jaxplan.solvers._restrict import Labels, restrict
from jaxplan.solvers._solution import Solution, solution

Axes = tuple[str, ...]
Meaning = Mapping[str, Axes]
Meanings = Sequence[Sequence["Meaning | None"]]

MOST_MESHES = 256
"""Meshes that are solved one by one, a tenth of a second to a few each."""
_MOST_LISTED = 4096

_UNMATCHED_MSG = (
    "meanings does not match the problem: expected one mapping for each configuration of each node, "
    "from dimensions to the axes that split them"
)
_MISSING_MSG = (
    "solver 'one_mesh' needs the meaning of configurations; expected meanings=, for each node and configuration the "
    "axes that split each of its named dimensions. jaxplan.plan gives them, on plain arrays you do"
)


def one_mesh(problem: Problem, meanings: Meanings) -> Problem:
    """Return a problem in which every assignment obeys both restrictions, for any solver.

    Nodes that cost nothing are added, and edges of infinite time. The configurations of a named dimension's node are
    the axes that split it: operators that split it otherwise are forbidden beside them. Those of an axis's node are
    the dimensions of the mesh that it can be part of: named dimensions that are split by others are forbidden beside
    them. The first V configurations of an assignment are those of the problem's own nodes, its first E choices those
    of the problem's own edges.

    Args:
      problem: the problem to restrict.
      meanings: for each node and configuration, the axes that split each of its named dimensions; () where a
        dimension stays whole. A dimension that a node does not have is not in the mapping. None in place of a mapping
        forbids the configuration.

    Raises:
      ProblemError: `meanings` does not match the problem, or no strategy obeys the restrictions on one node.
    """
    check_meanings(problem, meanings)
    dimensions = _options(meanings)
    axes = _mesh_dimensions(dimensions)
    keys = [*(("dimension", name) for name in dimensions), *(("axis", name) for name in axes)]
    place = {key: problem.num_nodes + index for index, key in enumerate(keys)}
    edges: list[Any] = [*problem.edges]
    for node, rows in enumerate(meanings):
        for name in sorted({name for row in rows for name in row or ()}):
            allowed = [[row is not None and row.get(name, ()) == o for o in dimensions[name]] for row in rows]
            edges.append((node, place["dimension", name], _forbidding(allowed)))
    for name, options in dimensions.items():
        for axis in sorted({axis for option in options for axis in option} & axes.keys()):
            allowed = [[axis not in option or option == whole for whole in axes[axis]] for option in options]
            edges.append((place["dimension", name], place["axis", axis], _forbidding(allowed)))
    nothing = [np.zeros(len(found)) for found in (*dimensions.values(), *axes.values())]
    return Problem(
        time=[*map(_allowed_times, problem.time, meanings), *nothing],
        memory=[*problem.memory, *(array.astype(np.int64) for array in nothing)],
        edges=edges,
        names=[*problem.names, *map(" ".join, keys)],
    )


def problems_by_mesh(problem: Problem, meanings: Meanings | None) -> Iterator[tuple[Problem, Sequence[Labels]]]:
    """Yield the problem on each mesh, and which configurations its nodes have there.

    Together they have the assignments of `one_mesh`, where there are at most `MOST_MESHES`; of more, those on which
    most configurations are possible. On one mesh a dimension has few options, so that each is narrow enough for
    elimination where all together are not.

    Raises:
      ProblemError: the meanings of configurations are missing.
    """
    if meanings is None:
        raise ProblemError(_MISSING_MSG)
    check_meanings(problem, meanings)
    used = {axes for row in itertools.chain.from_iterable(meanings) for axes in (row or {}).values() if axes}
    possible = [_possible(mesh, meanings) for mesh in itertools.islice(meshes(used), _MOST_LISTED)]
    possible = sorted(filter(all, possible), key=lambda labels: -sum(map(len, labels)))[:MOST_MESHES]
    for labels in possible:
        kept = [[rows[k] for k in some] for rows, some in zip(meanings, labels)]
        try:
            yield one_mesh(restrict(problem, labels), kept), labels
        except InfeasibleError:
            continue


def _possible(mesh: Sequence[Axes], meanings: Meanings) -> list[Labels]:
    """Configurations of each node that a mesh allows."""
    allowed = {(), *mesh}
    return [
        tuple(k for k, row in enumerate(rows) if row is not None and allowed.issuperset(row.values()))
        for rows in meanings
    ]


def check_meanings(problem: Problem, meanings: Meanings) -> None:
    """Refuse meanings of another problem."""
    if [len(rows) for rows in meanings] != list(problem.num_configurations):
        raise ProblemError(_UNMATCHED_MSG)


def meshes(groups: Collection[Axes]) -> Iterator[tuple[Axes, ...]]:
    """Yield every set of groups of axes that have none in common and that no other group can join.

    Args:
      groups: tuples of axes, each of which can be a dimension of a mesh.
    """
    by_axis = {axis: sorted(g for g in groups if axis in g) for axis in sorted(set().union(*groups))}

    def grow(chosen: tuple[Axes, ...], left: tuple[str, ...]) -> Iterator[tuple[Axes, ...]]:
        if not left:
            taken = {axis for group in chosen for axis in group}
            if all(taken & {*group} for group in groups):
                yield chosen
            return
        axis, *rest = left
        for group in by_axis[axis]:
            if set(group) <= {*left}:
                yield from grow((*chosen, group), tuple(a for a in rest if a not in group))
        yield from grow(chosen, tuple(rest))

    yield from grow((), tuple(by_axis))


def merged(
    found: Iterable[tuple[Sequence[Solution], Sequence[Labels]]], problem: Problem, bound: float
) -> tuple[Solution, ...]:
    """Return the undominated solutions over all meshes, as solutions of the problem, ascending in memory.

    Args:
      found: solutions of each of `problems_by_mesh`, with its configurations.
      problem: the one without restrictions.
      bound: seconds that no assignment of it beats; gaps then hold the cost of the restrictions.
    """
    points = [
        Point(
            assignment=tuple(rows[label] for rows, label in zip(labels, point.assignment)),
            choices=point.choices[: len(problem.edges)],
            time=point.time,
            memory=point.memory,
        )
        for points, labels in found
        for point in points
    ]
    return tuple(solution(point, bound, "one_mesh") for point in non_dominated(points))


def _options(meanings: Meanings) -> dict[str, list[Axes]]:
    """Named dimension -> the axes that split it in some configuration."""
    found: dict[str, set[Axes]] = {}
    for row in itertools.chain.from_iterable(meanings):
        for name, axes in (row or {}).items():
            found.setdefault(name, set()).add(tuple(axes))
    return {name: sorted(found[name]) for name in sorted(found)}


def _mesh_dimensions(dimensions: Mapping[str, Sequence[Axes]]) -> dict[str, list[Axes]]:
    """Axis -> the dimensions of the mesh that it can be part of; without axes that have no choice."""
    wholes = {option for options in dimensions.values() for option in options}
    found = {
        axis: sorted(whole for whole in wholes if axis in whole) for axis in sorted(set().union(*wholes))
    }
    return {axis: options for axis, options in found.items() if len(options) > 1}


def _allowed_times(time: np.ndarray, rows: Sequence[Meaning | None]) -> np.ndarray:
    forbidden = [row is None for row in rows]
    return np.where(forbidden, np.inf, time) if any(forbidden) else time


def _forbidding(allowed: Sequence[Sequence[bool]]) -> np.ndarray:
    return np.where(allowed, 0.0, np.inf)
