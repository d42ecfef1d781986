"""Collectives that stand inside of an operator: halos of split windows, maxima over split dimensions, and those of a
user's `jax.shard_map`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from jaxplan.cost._attention import attention_collectives
from jaxplan.cost._collective import InnerCollective as InnerCollective
from jaxplan.cost._reads import produced_sharding, required_sharding
from jaxplan.cost._splits import trips_of
from jaxplan.cost._transfers import Transfer
from jaxplan.cost._user_body import body_cost
from jaxplan.ir import MESH, WHOLE, Configuration, Halo, StepGraph
from jaxplan.ir.attention import ATTENTIONS
from jaxplan.mesh import Sharding, Topology
from jaxplan.xla._buffers import Buffers
from jaxplan.xla._target import Target
from jaxplan.xla.rules.gpu.pooling import waits_for_gradient


def inner_collectives(
    graph: StepGraph,
    topology: Topology,
    group: int,
    config: Configuration,
    buffers: Buffers,
    sent: set[tuple] | None = None,
    repeated: Mapping[tuple[int, Sharding], Sequence[int]] | None = None,
    among: Sequence[int] | None = None,
) -> Iterator[InnerCollective]:
    """The collectives inside the equations of a group under a configuration, in program order.

    Equal edges of one value (a convolution's image, for its result and for its weight gradient) are sent once: the
    compiler was seen to merge them, except those of equations that wait for the gradient of a pooling. ``sent`` holds
    the edges of other groups. ``repeated`` are re-gathered copies, tensor and sharding -> the first reader of each: the
    edges of each copy are sent. ``among`` is `communicating`, where a caller has it.
    """
    sent, repeated = set() if sent is None else sent, repeated or {}
    for e in graph.grouping.groups[group].equations if among is None else among:
        yield from _of_body(graph, topology, e)
        yield from _of_extremes(graph, topology, group, e, config)
        yield from attention_collectives(graph, topology, group, e, config, buffers)
        for edge, collective in _of_windows(graph, topology, group, e, config, repeated):
            if edge not in sent:
                sent.add(edge)
                yield collective


def inner_of_plan(
    graph: StepGraph,
    topology: Topology,
    groups: Sequence[int],
    chosen: Sequence[Configuration],
    transfers: Sequence[Transfer],
    buffers: Buffers,
    known: dict[tuple[int, Configuration], tuple[InnerCollective, ...]] | None = None,
) -> Iterator[InnerCollective]:
    """The collectives inside the operators of a plan, in the order of ``groups``.

    ``known`` holds between calls those of groups without windows, which no other group and no transfer changes.
    """
    sent: set[tuple] = set()
    repeated = {(t.tensor, t.target): [span.first for span in t.spans] for t in transfers if t.repeated}
    known = {} if known is None else known
    for v in groups:
        found = known.get((v, chosen[v]))
        if found is None:
            found = tuple(inner_collectives(graph, topology, v, chosen[v], buffers, sent, repeated))
            if not any(graph.rules[e].windows for e in graph.grouping.groups[v].equations):
                known[v, chosen[v]] = found
        yield from found


def communicating(graph: StepGraph, group: int) -> Sequence[int]:
    """The equations of a group that communicate by themselves under some configuration."""

    def find() -> list[list[int]]:
        return [[e for e in of.equations if _communicates(graph, e)] for of in graph.grouping.groups]

    return graph.derive("communicating", None, find)[group]


def _communicates(graph: StepGraph, equation: int) -> bool:
    eqn, rule = graph.program.equations[equation], graph.rules[equation]
    return bool(
        rule.windows or body_cost(eqn).collectives or _extremes(graph, equation) or eqn.name in ATTENTIONS
    )


def may_communicate(graph: StepGraph, group: int) -> bool:
    """Whether an equation of a group communicates by itself under some configuration."""
    return bool(communicating(graph, group))


class Extended(NamedTuple):
    """An operand extended by the edges of neighbours' blocks: its equation, and local shapes with and without edges."""

    equation: int
    tensor: int
    shape: tuple[int, ...]
    own: tuple[int, ...]


def extended_operands(
    graph: StepGraph, topology: Topology, group: int, config: Configuration, family: str
) -> Iterator[Extended]:
    """Operands of poolings (``family`` is "window") or convolutions of a group, extended by the neighbours' edges.

    Programs were seen to write them once, for the operator and for its gradient; those of convolutions on TPU are put
    together inside of them.
    """
    for e in graph.grouping.groups[group].equations:
        if graph.rules[e].family != family:
            continue
        shapes: dict[int, tuple[list[int], tuple[int, ...]]] = {}
        for edge in _edges(graph, topology, group, e, config):
            own = tuple(edge.sharding.local_shape(graph.program.tensors[edge.tensor].shape, topology.axes))
            shape, _ = shapes.setdefault(edge.tensor, (list(own), own))
            rows = own[edge.dim] + edge.halo.before + edge.halo.after
            shape[edge.dim] = max(shape[edge.dim], rows)
        yield from (
            Extended(e, t, tuple(shape), own) for t, (shape, own) in shapes.items() if tuple(shape) != own
        )


def read_beside(
    graph: StepGraph, topology: Topology, group: int, config: Configuration
) -> Iterator[tuple[int, int]]:
    """(equation, tensor) of operands of a group's convolutions with edges that go to neighbours."""
    for e in graph.grouping.groups[group].equations:
        if graph.rules[e].family == "convolution":
            for edge in _edges(graph, topology, group, e, config):
                if edge.halo.before + edge.halo.after > 0:
                    yield e, edge.tensor


class _Edge(NamedTuple):
    """An operand that is extended along one dimension, split into blocks of ``block`` rows over ``axes``."""

    tensor: int
    dim: int
    sharding: Sharding
    halo: Halo
    block: int
    axes: tuple[int, ...]


def _edges(
    graph: StepGraph, topology: Topology, group: int, equation: int, config: Configuration
) -> Iterator[_Edge]:
    """The operands of an equation that are extended because its windows are split."""
    eqn, rule, space = graph.program.equations[equation], graph.rules[equation], graph.spaces[group]
    for split in rule.windows:
        c = space.factor_class[equation][split.factor]
        if c == WHOLE or not config[c]:
            continue
        parts = math.prod(topology.axes[a].size for a in config[c])
        window = split.window
        halos = window.scatter_halos(parts) if split.scatters else (window.halo(parts),) * len(split.operands)
        assert halos is not None
        places = (1, 0) if split.scatters else split.operands
        for operand, halo in zip(places, halos, strict=True):
            t = eqn.operands[operand]
            size = window.out_size if split.scatters and operand == 0 else window.in_size
            sharding = required_sharding(space, config, t, len(graph.program.tensors[t].shape))
            assert halo is not None
            dim = next(d for d, held in enumerate(rule.operands[operand]) if split.factor in held)
            yield _Edge(t, dim, sharding, halo, size // parts, config[c])


def _of_windows(
    graph: StepGraph,
    topology: Topology,
    group: int,
    equation: int,
    config: Configuration,
    repeated: Mapping[tuple[int, Sharding], Sequence[int]],
) -> Iterator[tuple[tuple, InnerCollective]]:
    """The edges of neighbours' blocks, one permute for each side of each operand that is extended.

    With each the key that tells its edge from others.
    """
    for t, dim, sharding, halo, block, axes in _edges(graph, topology, group, equation, config):
        local = graph.program.tensors[t].num_bytes // math.prod(sharding.num_splits(topology.axes))
        copy = sum(first <= equation for first in repeated.get((t, sharding), ()))
        for side, rows in enumerate((halo.before, halo.after)):
            if rows:
                num_bytes, trips = local * rows // block, trips_of(graph, equation)
                waits = waits_for_gradient(graph.program.equations[equation], t, Target.of(topology.chip))
                alone = equation if waits else -1
                edge = (graph.values.number[t], dim, side, rows, axes, num_bytes, alone, copy)
                yield edge, InnerCollective(equation, "collective-permute", axes, num_bytes, trips)


def _extremes(graph: StepGraph, equation: int) -> list[tuple[int, str]]:
    """Factors over which an equation takes a maximum, a minimum or a product, and which: only sums can be deferred."""
    factors = graph.rules[equation].factors
    return [(f, factor.reducer) for f, factor in enumerate(factors) if factor.reducer not in (None, "sum")]


def _of_extremes(
    graph: StepGraph, topology: Topology, group: int, equation: int, config: Configuration
) -> Iterator[InnerCollective]:
    """Where a maximum is over a split dimension: of softmax over a vocabulary in parts, say. Products are gathered."""
    space, tensors = graph.spaces[group], graph.program.tensors
    for f, reducer in _extremes(graph, equation):
        c = space.factor_class[equation][f]
        axes = config[c] if c != WHOLE else ()
        for t in graph.program.equations[equation].results if axes else ():
            made = produced_sharding(space, config, t, len(tensors[t].shape))
            num_bytes = tensors[t].num_bytes // math.prod(made.num_splits(topology.axes))
            parts = math.prod(topology.axes[a].size for a in axes)
            kind, size = ("all-gather", num_bytes * parts) if reducer == "prod" else ("all-reduce", num_bytes)
            yield InnerCollective(equation, kind, axes, size, trips_of(graph, equation))


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
