"""Attention over a split sequence: transfers between devices while it computes, and the memory of its blocks.

A ring of n devices passes keys and values on n - 1 times, each time beside the block that it computes meanwhile; in the
backward pass their gradients, in float32, go round once, each time behind a block. Gathering moves as many bytes in one
collective for each, and holds all keys. An exchange of heads is an all-to-all of each operand and result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jaxplan.cost._collective import InnerCollective
from jaxplan.cost._compute import equation_seconds
from jaxplan.cost._model import CostModel
from jaxplan.cost._reads import required_sharding
from jaxplan.cost._splits import split_counts, trips_of
from jaxplan.ir import WHOLE, Configuration, Equation, StepGraph
from jaxplan.ir.attention import (
    ATTENTIONS,
    HEADS,
    RING,
    SUM_BYTES,
    VALUE_WIDTH,
    WIDTH,
    Attention,
    Exchange,
    Sequences,
    block_keys,
    exchange_of,
    exchanged_arrays,
    move_of,
    sequence_factor,
)
from jaxplan.mesh import Topology
from jaxplan.xla._buffers import Buffers


def sequence_parts(
    graph: StepGraph, topology: Topology, group: int, equation: int, config: Configuration
) -> tuple[tuple[int, ...], int]:
    """The axes that an attention has its sequence split over, and the number of parts."""
    eqn = graph.program.equations[equation]
    factor = sequence_factor(graph.rules[equation], eqn.params["attention"])
    c = WHOLE if factor is None else graph.spaces[group].factor_class[equation][factor]
    axes = () if c == WHOLE else tuple(config[c])
    return axes, math.prod(topology.axes[a].size for a in axes)


def sequences_of(graph: StepGraph, topology: Topology, chosen: Sequence[Configuration]) -> Sequences | None:
    """How a plan works through attention; None: as the step says."""
    if graph.program.sequences is None:
        return None
    group_of = graph.grouping.equation_group
    parts, exchanged = [1], [1]
    for eqn in graph.program.equations:
        if eqn.name in ATTENTIONS:
            group = group_of[eqn.index]
            parts.append(sequence_parts(graph, topology, group, eqn.index, chosen[group])[1])
            among = _exchange(graph, topology, group, eqn.index, chosen[group])
            exchanged.append(1 if among is None else among[1])
    return Sequences(form=graph.program.sequences, parts=max(parts), exchanged=max(exchanged))


def _exchange(
    graph: StepGraph, topology: Topology, group: int, equation: int, config: Configuration
) -> tuple[Exchange, int] | None:
    """The exchange of heads of an attention, and the number of devices that exchange; None where there is none."""
    eqn = graph.program.equations[equation]
    attention: Attention = eqn.params["attention"]
    axes, _ = sequence_parts(graph, topology, group, equation, config)
    if attention.form != HEADS or not axes:
        return None
    shapes = [_local(graph, topology, group, config, eqn, i) for i in range(len(eqn.operands))]
    exchange = exchange_of(attention, shapes, [topology.axes[a].size for a in axes])
    if exchange is None:
        return None
    return exchange, math.prod(topology.axes[a].size for a in axes[-exchange.num_axes :])


def attention_collectives(
    graph: StepGraph, topology: Topology, group: int, equation: int, config: Configuration, buffers: Buffers
) -> Iterator[InnerCollective]:
    """Those of one attention: of keys and of values, and in the backward pass of their gradients."""
    eqn = graph.program.equations[equation]
    if eqn.name not in ATTENTIONS:
        return
    attention: Attention = eqn.params["attention"]
    axes, num = sequence_parts(graph, topology, group, equation, config)
    if num == 1:
        return
    trips = trips_of(graph, equation)
    exchange = _exchange(graph, topology, group, equation, config)
    if exchange is not None:
        (label, num_axes), among = exchange
        shapes = [_local(graph, topology, group, config, eqn, i) for i in range(len(eqn.operands))]
        yield from _exchanges(graph, eqn, shapes, label, axes[-num_axes:], among, trips)
        axes, num = axes[:-num_axes], num // among
        if num == 1:
            return
    elements = [math.prod(_local(graph, topology, group, config, eqn, position)) for position in (1, 2)]
    for position, local in zip((1, 2), elements, strict=True):
        itemsize = graph.program.tensors[eqn.operands[position]].itemsize
        size, sums = local * itemsize, local * max(SUM_BYTES, itemsize)
        if attention.form == RING:
            beside = (
                _block_seconds(graph, topology, group, equation, config, buffers)
                / num
                * local
                / sum(elements)
            )
            yield InnerCollective(equation, "collective-permute", axes, size, trips * (num - 1), beside)
            if attention.is_backward:
                yield InnerCollective(equation, "collective-permute", axes, sums, trips * num)
        else:
            yield InnerCollective(equation, "all-gather", axes, size * num, trips)
            if attention.is_backward:
                yield InnerCollective(equation, "reduce-scatter", axes, sums * num, trips)


def _exchanges(
    graph: StepGraph,
    eqn: Equation,
    shapes: Sequence[tuple[int, ...]],
    label: int,
    axes: tuple[int, ...],
    num: int,
    trips: int,
) -> Iterator[InnerCollective]:
    """The collectives by which one attention exchanges heads."""
    attention: Attention = eqn.params["attention"]
    operands, results = exchanged_arrays(attention, shapes)
    tensors = [*(graph.program.tensors[t] for t in eqn.operands), *(graph.program.tensors[t] for t in eqn.results)]
    for (labels, shape), tensor in zip((*operands, *results), tensors, strict=True):
        move = move_of(attention, labels, shape, label)
        if move is not None and move.kind != "slice":
            itemsize = tensor.itemsize if {WIDTH, VALUE_WIDTH} & set(labels) else max(SUM_BYTES, tensor.itemsize)
            size = math.prod(shape) * itemsize * (num if move.kind == "all-gather" else 1)
            yield InnerCollective(eqn.index, move.kind, axes, size, trips)


def _block_seconds(
    graph: StepGraph, topology: Topology, group: int, equation: int, config: Configuration, buffers: Buffers
) -> float:
    """Seconds that a device computes in one attention, all its blocks together."""
    splits = split_counts((config,), topology)
    of = graph.grouping.groups[group], graph.spaces[group], splits, buffers, topology
    seconds = equation_seconds(graph, *of)
    return float(seconds[equation][0]) / trips_of(graph, equation)


class AttentionBlocks:
    """Scratch memory of the attentions of one model: a block of scores, the running sums, and the keys at hand."""

    def __init__(self, model: CostModel) -> None:
        graph = model.graph
        self._model, self._known = model, dict[tuple[int, Configuration], int]()
        self._attentions = [
            (eqn.index, graph.grouping.equation_group[eqn.index])
            for eqn in graph.program.equations
            if eqn.name in ATTENTIONS
        ]

    def of(self, chosen: Sequence[Configuration]) -> Iterator[tuple[int, int]]:
        """(equation, bytes) of each on one device."""
        for e, v in self._attentions:
            key = e, chosen[v]
            if key not in self._known:
                self._known[key] = self._num_bytes(e, v, chosen[v])
            yield e, self._known[key]

    def _num_bytes(self, equation: int, group: int, config: Configuration) -> int:
        graph, topology = self._model.graph, self._model.topology
        eqn = graph.program.equations[equation]
        attention: Attention = eqn.params["attention"]
        queries, keys, values = (_local(graph, topology, group, config, eqn, i) for i in range(3))
        _, num = sequence_parts(graph, topology, group, equation, config)
        itemsize = graph.program.tensors[eqn.operands[0]].itemsize
        num_rows = math.prod(queries) // queries[attention.operands[0].index(WIDTH)]
        scores = num_rows * block_keys(num_rows, keys[attention.operands[1].index(attention.key)])
        held = math.prod(keys) + math.prod(values)
        exchange = _exchange(self._model.graph, topology, group, equation, config)
        exchanged = 0 if exchange is None else 2 * math.prod(queries)  # in the backward pass the cotangent, else result
        gathered = num if exchange is None else num // exchange[1]
        at_hand = 0 if num == 1 else 2 if attention.form == RING else gathered
        of_sums = max(SUM_BYTES, itemsize)
        if attention.is_backward:
            blocks, sums = 2 * scores, math.prod(queries) + max(1, at_hand) * held
        else:
            blocks, sums = scores, 2 * math.prod(queries)
        return (at_hand * held + exchanged) * itemsize + blocks * (of_sums + itemsize) + sums * of_sums


def _local(
    graph: StepGraph, topology: Topology, group: int, config: Configuration, eqn: Equation, position: int
) -> tuple[int, ...]:
    """The shape of an operand on one device."""
    t = eqn.operands[position]
    shape = graph.program.tensors[t].shape
    return required_sharding(graph.spaces[group], config, t, len(shape)).local_shape(shape, topology.axes)
