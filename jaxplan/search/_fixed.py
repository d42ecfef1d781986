"""Shardings of arguments that a search keeps: those of another plan, found again by path and shape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxplan.core._paths import argument_names, keys
from jaxplan.ir import UNGROUPED, ClassLimit, Program, StepGraph
from jaxplan.mesh import Topology
from jaxplan.plans._plan import Plan
from jaxplan.search._pins import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSharding:
    """The sharding of one argument leaf.

    Attributes:
      keys: its path, the name of the argument first.
      shape: only an argument of this shape is meant.
      dims: atomic axes of each dimension, major to minor.
    """

    keys: tuple[str, ...]
    shape: tuple[int, ...]
    dims: tuple[tuple[int, ...], ...]


def shardings_of(plan: Plan) -> tuple[FixedSharding, ...]:
    """Those of all argument leaves of a plan."""
    program = plan.require_program().program
    return tuple(
        FixedSharding(keys=of, shape=program.tensors[t].shape, dims=sharding.dims)
        for of, t, sharding in zip(_keys(program), program.inputs, plan.in_layouts, strict=True)
    )


def kept_limits(fixed: Sequence[FixedSharding], graph: StepGraph, topology: Topology) -> Limits:
    """Conditions for every group under which state and parameters have the given shardings.

    A leaf takes the sharding of the one whose path ends like its own, the longest common end first: `params/w` of an
    evaluation that of `state/params/w` of a training step. The shapes must be equal; other leaves stay free.
    """
    limits: list[list[ClassLimit]] = [[] for _ in graph.spaces]
    program = graph.program
    for path, t in zip(_keys(program), program.inputs, strict=True):
        group, shape = graph.grouping.tensor_group[t], program.tensors[t].shape
        found = _nearest(path, shape, fixed) if t in graph.stored and group != UNGROUPED else None
        if found is None:
            continue
        dims = graph.spaces[group].tensor_dims.get(t, ((),) * len(shape))
        for classes, axes in zip(dims, found.dims, strict=True):
            limits[group] += _limits_of_dimension(graph, group, classes, axes, topology, "/".join(path))
    return tuple(map(tuple, limits))


def joined(some: Limits, others: Limits) -> Limits:
    """All conditions of both; of a group that has some of the first kind, those alone."""
    return tuple(a or b for a, b in zip(some, others, strict=True))


def _keys(program: Program) -> list[tuple[str, ...]]:
    """Per argument leaf its keys, a position replaced by the name of the argument."""
    names = argument_names(program.source.step if program.source else None)
    found = []
    for path in program.in_paths:
        first, *rest = keys(path)
        is_number = path[1:2].isdigit() and int(first) < len(names)
        found.append((names[int(first)] if is_number else first, *rest))
    return found


def _nearest(
    path: tuple[str, ...], shape: tuple[int, ...], fixed: Iterable[FixedSharding]
) -> FixedSharding | None:
    """The one with the longest common end; all keys below the argument of the shorter path are in it."""
    best, longest = None, 0
    for of in fixed:
        if of.shape != shape:
            continue
        common = _common_end(path, of.keys)
        if common > longest and common >= max(1, min(len(path), len(of.keys)) - 1):
            best, longest = of, common
    return best


def _common_end(a: Sequence[str], b: Sequence[str]) -> int:
    count = 0
    for x, y in zip(reversed(a), reversed(b)):
        if x != y:
            break
        count += 1
    return count


def _limits_of_dimension(
    graph: StepGraph, group: int, classes: Sequence[int], axes: tuple[int, ...], topology: Topology, source: str
) -> list[ClassLimit]:
    """Conditions on the classes of one dimension, which share its axes major to minor."""
    found, rest = [], list(axes)
    for c in classes:
        taken: list[int] = []
        cls = graph.spaces[group].classes[c]
        while rest and cls.divisible_by(math.prod(topology.axes[a].size for a in (*taken, rest[0]))):
            taken.append(rest.pop(0))
        found.append(ClassLimit(classes=frozenset({c}), axes=tuple(taken), source=f"sharding kept of {source}"))
    return found if not rest else []
