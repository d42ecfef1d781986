"""Shardings of arguments that a search keeps: those of another plan, found again by path and shape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxplan.core._paths import keys
from jaxplan.ir import UNGROUPED, ClassLimit, Program, StepGraph
from jaxplan.mesh import Topology
from jaxplan.plans._plan import Plan
from jaxplan.search._pins import Limits, configurations_within

_SOURCE = "the layout kept of"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSharding:
    """The sharding of one argument leaf.

    Attributes:
      keys: its path, the name of the argument first.
      shape: only an argument of this shape is meant.
      dims: atomic axes of each dimension, major to minor.
      is_data: whether it is neither state nor a parameter, which the next call is given as they are.
      kind: ``like`` of another step, and meant for the leaf of state or parameters with the same end of its path;
        ``argument`` and ``result`` of the step itself, at this very path.
    """

    keys: tuple[str, ...]
    shape: tuple[int, ...]
    dims: tuple[tuple[int, ...], ...]
    is_data: bool = False
    kind: Literal["like", "argument", "result"] = "like"


def shardings_of(plan: Plan) -> tuple[FixedSharding, ...]:
    """Those of all argument leaves of a plan."""
    program = plan.require_program().program
    return tuple(
        FixedSharding(keys=of, shape=program.tensors[t].shape, dims=sharding.dims, is_data=role == "data")
        for of, t, sharding, role in zip(
            _keys(program), program.inputs, plan.input_shardings, plan.in_roles, strict=True
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The part of given shardings that a step can have.

    Attributes:
      limits: conditions for every group, those of pins among them.
      free: a line for each dimension that cannot be split as it was: the path, and why.
    """

    limits: Limits
    free: tuple[str, ...] = ()


def kept_limits(fixed: Sequence[FixedSharding], graph: StepGraph, topology: Topology, pinned: Limits) -> Kept:
    """Conditions for every group under which state and parameters have the given shardings, where pins allow it.

    A leaf takes the sharding of the one with the same end of its path, the longest common end first: `params/w` of an
    evaluation that of `state/params/w` of a training step. The shapes must be equal; other leaves stay free.
    """
    limits, free = [list(of) for of in pinned], list[str]()
    program = graph.program
    like = [of for of in fixed if of.kind == "like"]
    exact = {(of.kind, of.keys): of for of in fixed if of.kind != "like"}
    arguments = [("argument", *of) for of in zip(_keys(program), program.inputs, strict=True)]
    results = [("result", keys(path), t) for path, t in zip(program.out_paths, program.outputs, strict=True)]
    for kind, path, t in [*arguments, *results]:
        shape = program.tensors[t].shape
        found = exact.get((kind, path)) or (_nearest(path, shape, like) if kind == "argument" else None)
        if found is None or (found.is_data and t not in graph.stored):
            continue
        for dimension, axes in enumerate(found.dims):
            asked = _Dimension(path="/".join(path), tensor=t, number=dimension, axes=axes)
            reason = _keep(asked, limits, graph, topology)
            if reason is not None:
                parts = math.prod(topology.axes[a].size for a in axes)
                wanted = f"split into {parts} parts" if parts > 1 else "whole"
                free.append(f"{asked.path} ({'x'.join(map(str, shape))}) is {wanted} along dimension {dimension} "
                            f"in the layout to keep, and cannot be here: {reason}")
    return Kept(limits=tuple(map(tuple, limits)), free=tuple(free))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dimension:
    """A dimension of an argument leaf, and the axes to split it by."""

    path: str
    tensor: int
    number: int
    axes: tuple[int, ...]


def _keep(asked: _Dimension, limits: list[list[ClassLimit]], graph: StepGraph, topology: Topology) -> str | None:
    """Add the condition for one dimension, or return why it cannot be met."""
    group = graph.grouping.tensor_group[asked.tensor]
    if group == UNGROUPED:
        return "no operator of the step is split along it" if asked.axes else None
    space = graph.spaces[group]
    classes = space.tensor_dims[asked.tensor][asked.number] if asked.tensor in space.tensor_dims else ()
    if not classes:
        return "the operators that read it never split it" if asked.axes else None
    (c,) = classes
    parts = math.prod(topology.axes[a].size for a in asked.axes)
    if not space.classes[c].divisible_by(parts):
        most = space.classes[c].most_parts
        if most is not None and parts > most:
            return f"in more than {most} parts, windows of a convolution reach beyond the neighbour"
        return f"the operators that read it split sizes {', '.join(map(str, space.classes[c].sizes))} alike"
    if any(of.classes == {c} and of.axes == asked.axes for of in limits[group]):
        return None
    limit = ClassLimit(
        classes=frozenset({c}), axes=asked.axes, source=f"{_SOURCE} {asked.path}, dimension {asked.number}"
    )
    if not configurations_within(graph, topology, group, (*limits[group], limit)):
        others = [of for of in limits[group] if not configurations_within(graph, topology, group, (of, limit))]
        sources = dict.fromkeys(of.source for of in others or limits[group])
        return f"not together with {'; '.join(sources)}"
    limits[group].append(limit)
    return None


def _keys(program: Program) -> list[tuple[str, ...]]:
    """Per argument leaf its keys, a position replaced by the name of the argument."""
    names = program.argument_names
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
