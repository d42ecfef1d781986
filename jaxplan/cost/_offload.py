"""The price of arguments that live on the host: bytes there, and seconds on the link to the device.

Such an argument is copied to the device for its update, and its successor from there to the host while the next updates
run: the two directions of the link run at once (`jaxplan.mesh._chips.ChipSpec.host_bytes_per_second`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from jaxplan.cost._compute import equation_seconds
from jaxplan.cost._hosted_parameters import sent_to_device
from jaxplan.cost._model import CostModel
from jaxplan.cost._residents import PARAMETERS, resident_labels
from jaxplan.cost._splits import split_counts
from jaxplan.cost._tiles import local_bytes
from jaxplan.ir import (
    UNGROUPED,
    UPDATES_AT_ONCE,
    Offload,
    StepGraph,
    hostable_parameters,
    hosted_sources,
    hosted_updates,
    offloadable,
)
from jaxplan.mesh import Topology
from jaxplan.solvers import Problem


def offloadable_inputs(graph: StepGraph) -> dict[int, int]:
    """Position of each argument that could live on the host -> that of its successor: state of the optimizer."""
    found = offloadable(graph.program, graph.rules, graph.values.consumers, _parameters(graph))
    return {i: o for i, o in found.items() if _is_grouped(graph, i)}


def offloadable_parameters(graph: StepGraph) -> dict[int, int | None]:
    """Position of each parameter that could live on the host -> that of its successor, None without one."""
    found = hostable_parameters(graph.program, graph.rules, graph.values.consumers, _parameters(graph))
    return {i: o for i, o in found.items() if _is_grouped(graph, i)}


def offloadable_arguments(graph: StepGraph) -> dict[int, int | None]:
    """The same for both."""
    return {**offloadable_inputs(graph), **offloadable_parameters(graph)}


def _parameters(graph: StepGraph) -> frozenset[int]:
    return frozenset(t for t, label in resident_labels(graph).items() if label == PARAMETERS)


def _is_grouped(graph: StepGraph, position: int) -> bool:
    """Whether an argument has a sharding of the plan."""
    return graph.grouping.tensor_group[graph.program.inputs[position]] != UNGROUPED


def host_seconds(topology: Topology, num_bytes: float) -> float:
    """Seconds of a step on the link to the host for arguments of so many bytes, read and written once."""
    return num_bytes / topology.chip.host_bytes_per_second


def waiting_seconds(topology: Topology, num_bytes: float, forward_seconds: float) -> float:
    """Seconds of a step on the link for values of the forward pass that wait on the host.

    Their copies to the host run beside the forward pass; the backward pass waits for those to the device: programs
    compiled for H100 start such a copy where its result is read.
    """
    one_way = num_bytes / topology.chip.host_bytes_per_second
    return one_way + max(0.0, one_way - forward_seconds)


def forward_seconds(model: CostModel, assignment: Sequence[int]) -> float:
    """Seconds of compute of the forward pass."""
    graph, topology, total = model.graph, model.topology, 0.0
    for group, k in zip(graph.grouping.groups, assignment, strict=True):
        splits = split_counts((model.configurations[group.index][k],), topology)
        shares = equation_seconds(graph, group, graph.spaces[group.index], splits, model.buffers, topology)
        total += sum(float(share[0]) for e, share in shares.items() if e < model.buffers.turning_point)
    return total


def sent_by(graph: StepGraph) -> dict[int, int]:
    """Values that wait on the host -> the equation that makes the next one that could: by then the copy is done."""
    producer = graph.values.producer
    made = sorted({producer[w.tensor] for of in graph.waiting for w in of})
    following = dict(itertools.pairwise(made))
    return {w.tensor: following.get(producer[w.tensor], w.barrier) for w in graph.waiting_on_host}


def offloaded_model(model: CostModel, offload: Offload) -> CostModel:
    """The cost model of the same step with arguments on the host: less memory, more time, the same choices."""
    graph, topology = dataclasses.replace(model.graph, offload=offload), model.topology
    inputs = graph.program.inputs
    host, updated = (
        _local_bytes(model, dict.fromkeys([inputs[i] for i in positions], 1), {})
        for positions in (offload.arguments, offload.inputs)
    )
    sources = hosted_sources(graph.program, graph.parameters_on_host)
    read = _local_bytes(model, sent_to_device(graph), sources)
    link = [a + b for a, b in zip(updated, read, strict=True)]
    return dataclasses.replace(
        model,
        graph=graph,
        problem=_moved(model.problem, host, link, topology),
        host_bytes=tuple(host),
        link_bytes=tuple(link),
    )


def _local_bytes(model: CostModel, counts: Mapping[int, int], held: Mapping[int, int]) -> list[np.ndarray]:
    """Per group (K,) bytes of tensors on one device, each counted so often; of the tensor that ``held`` names in the
    dtype of that."""
    graph, tensors = model.graph, model.graph.program.tensors
    by_group: dict[int, list[int]] = defaultdict(list)
    for t in counts:
        by_group[graph.grouping.tensor_group[t]].append(t)
    found = []
    for v, configs in enumerate(model.configurations):
        num_bytes = np.zeros(len(configs), dtype=np.int64)
        for t in by_group[v]:
            splits = split_counts(configs, model.topology)
            local = np.ceil(local_bytes(graph, model.buffers, graph.spaces[v], splits, t)).astype(np.int64)
            num_bytes += counts[t] * local * tensors[held.get(t, t)].dtype.itemsize // tensors[t].dtype.itemsize
        found.append(num_bytes)
    return found


def _moved(problem: Problem, host: list[np.ndarray], link: list[np.ndarray], topology: Topology) -> Problem:
    """The problem with the bytes of each group on the host and on the link; groups without any keep their arrays."""
    time, memory = list(problem.time), list(problem.memory)
    for v, (away, carried) in enumerate(zip(host, link, strict=True)):
        if away.any() or carried.any():
            time[v] = time[v] + host_seconds(topology, 1.0) * carried
            memory[v] = np.maximum(memory[v] - away, 0)
    return Problem(time=time, memory=memory, edges=problem.edges, names=problem.names)


class Staged(NamedTuple):
    """The arrays of the host that updates read, while they are on the device.

    Attributes:
      successors: the array that replaces each -> the equations from and until which it is on the device.
      beside: (successor, first and last equation) of buffers as large: the copy of the array that it replaces, and the
        gradient that waits for that copy where it would otherwise be no buffer (a sum that a library adds), until the
        update after the next.
    """

    successors: dict[int, tuple[int, int]]
    beside: list[tuple[int, int, int]]


def staged_on_device(graph: StepGraph, birth: Sequence[int], sums: Set[int]) -> Staged:
    """When arrays of the host are on the device.

    An update runs once its gradient is there, beside the copies to the host of the one before it, and those to the
    device of the next (`jaxplan.partition._hosted_updates`); results take the buffers of the arrays that they replace.
    So the arrays of three updates are on the device. Arrays of updates that cannot run one by one are copied when the
    step begins.

    Args:
      birth: of each tensor, the equation from which on it is a buffer.
      sums: equations of sums that the library call of a dot adds.
    """
    staged = Staged({}, [])
    if graph.offload is None:
        return staged
    updates = hosted_updates(graph.program, graph.values, graph.offload)
    ends = [max(birth[t] for t in u.outputs) for u in updates]
    made = graph.values.producer  # a buffer that a loop fills is there from its first trip on
    there = [max(birth[u.waits_for[1]], made[u.waits_for[1]]) if u.waits_for else 0 for u in updates]
    runs = [at if u.waits_for else end for u, at, end in zip(updates, there, ends, strict=True)]
    runs = list(itertools.accumulate(runs, max))
    last = len(graph.program.equations)
    for turn, (update, run) in enumerate(zip(updates, runs, strict=True)):
        first = min(runs[turn - UPDATES_AT_ONCE] + 1, run) if turn >= UPDATES_AT_ONCE else run
        death = runs[turn + 1] if turn + 1 < len(runs) else last
        for t in update.outputs:
            staged.successors[t] = run, max(death, run)
            staged.beside.append((t, first if update.equations else 0, max(run - 1, first)))
        if not sums.isdisjoint(update.equations):
            staged.beside.append((update.outputs[0], run, (*runs, *[last] * UPDATES_AT_ONCE)[turn + UPDATES_AT_ONCE]))
    return staged
