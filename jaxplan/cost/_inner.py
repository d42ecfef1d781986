"""Collectives that stand inside of an operator: those of a user's `jax.shard_map`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jaxplan.cost._compute import trips_of
from jaxplan.cost._user_body import body_cost
from jaxplan.ir import MESH, Configuration, StepGraph
from jaxplan.mesh import Topology, collective_seconds


class InnerCollective(NamedTuple):
    """``count`` collectives of one equation: kind, atomic axes, bytes per device of the larger side of one."""

    equation: int
    kind: str
    axes: tuple[int, ...]
    num_bytes: int
    count: int

    def seconds(self, topology: Topology) -> float:
        return self.count * float(collective_seconds(topology, self.kind, self.num_bytes, self.axes))


def inner_collectives(
    graph: StepGraph, topology: Topology, group: int, config: Configuration
) -> Iterator[InnerCollective]:
    """What the equations of a group communicate by themselves under a configuration, in program order."""
    for e in graph.grouping.groups[group].equations:
        yield from _of_body(graph, topology, e)


def may_communicate(graph: StepGraph, group: int) -> bool:
    """Whether an equation of a group communicates by itself under some configuration."""
    equations = graph.program.equations
    return any(body_cost(equations[e]).collectives for e in graph.grouping.groups[group].equations)


def _of_body(graph: StepGraph, topology: Topology, equation: int) -> Iterator[InnerCollective]:
    eqn = graph.program.equations[equation]
    body = body_cost(eqn)
    if not body.collectives:
        return
    groups = eqn.params[MESH].atomic_axes(tuple(axis.size for axis in topology.axes))
    assert groups is not None, "checked by check_user_meshes"
    for c in body.collectives:
        axes = tuple(a for name in c.names for a in groups[name])
        if axes:
            yield InnerCollective(equation, c.kind, axes, c.num_bytes, c.trips * trips_of(graph, equation))
