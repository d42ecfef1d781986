"""Roofline time of a group's equations on one device, per configuration (Williams et al. 2009)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jaxplan.core._compat import itemsize
from jaxplan.cost._measured import dot_extents, dot_seconds
from jaxplan.cost._passes import ROWS, WRITE, Pass, passes_of
from jaxplan.cost._roofline import (
    arithmetic_seconds,
    attention_seconds,
    memory_bytes_per_second,
    product_rate,
)
from jaxplan.cost._row_kernels import row_factors, rows_in_blocks
from jaxplan.cost._splits import equation_splits, tensor_splits, trips_of
from jaxplan.cost._user_body import BodyCost, body_cost
from jaxplan.cost._work import (
    Border,
    CompiledWork,
    flops_of_equation,
    work_beside_halos,
)
from jaxplan.ir import REGION_OUT, WHOLE, Group, GroupSpace, StepGraph
from jaxplan.ir.attention import ATTENTIONS
from jaxplan.mesh import Topology
from jaxplan.xla._buffers import Buffers
from jaxplan.xla._plan_effects import Repeat
from jaxplan.xla.rules.gpu.padding import padded_work

_WHOLE_WORD = 4
"""Bytes of the numbers that a GPU adds to in memory with one instruction."""
_ALIGNED_BYTES = 16
"""Kernels of convolutions read channels in pieces of so many bytes."""


Term = tuple[int, np.ndarray, int]
"""Equation, seconds (K,), and kernels whose launches come on top of them."""


def flops_of(graph: StepGraph, equation: int, border: Border | None = None) -> float:
    """Operations of a contraction or convolution (`flops_of_equation`); 0 for everything else."""
    eqn = graph.program.equations[equation]
    return flops_of_equation(
        eqn, graph.rules[equation], graph.counts[equation], graph.program.tensors, border
    )


def local_flops(
    graph: StepGraph, group: Group, space: GroupSpace, splits: np.ndarray, work: CompiledWork
) -> np.ndarray:
    """Floating-point operations of a group on one device, shape (K,)."""
    total = np.zeros(len(splits))
    for e in group.equations:
        border = work.borders.get(e)
        flops = flops_of(graph, e, border)
        if flops:
            share = _beside_halos(graph, space, splits, e, border) / equation_splits(space, splits, e)
            if e in work.padded:
                share *= padded_work(graph, space, splits, e)
            share *= work.times.get(e, 1)
            total += flops * trips_of(graph, e) * share
        if graph.program.equations[e].name in ATTENTIONS and (count := graph.counts[e]) is not None:
            dots = sum(number for _, number in count.matrix)
            total += dots * trips_of(graph, e) / equation_splits(space, splits, e)
        total += body_cost(graph.program.equations[e]).flops * trips_of(graph, e)
    return total


def _beside_halos(
    graph: StepGraph, space: GroupSpace, splits: np.ndarray, equation: int, border: Border | None
) -> np.ndarray:
    """Work of a device over an equal share of it, shape (K,): more where windows are split (`work_beside_halos`)."""
    result = np.ones(len(splits))
    eqn, rule, tensors = graph.program.equations[equation], graph.rules[equation], graph.program.tensors
    for window in rule.windows:
        c = space.factor_class[equation][window.factor]
        if c == WHOLE:
            continue
        for parts in np.unique(splits[:, c]).tolist():
            more = work_beside_halos(eqn, rule, tensors, window, int(parts), border)
            result[splits[:, c] == parts] *= more
    return result


def compute_seconds(
    graph: StepGraph,
    group: Group,
    space: GroupSpace,
    splits: np.ndarray,
    buffers: Buffers,
    topology: Topology,
) -> np.ndarray:
    """Seconds of a group's equations on one device, shape (K,): the sum of `equation_seconds`."""
    return summed(compute_terms(graph, group, space, splits, buffers, topology), splits, topology)


def summed(terms: Iterable[Term], splits: np.ndarray, topology: Topology) -> np.ndarray:
    """Seconds of all terms of a group, shape (K,)."""
    seconds = np.zeros(len(splits))
    launches = 0
    for _, term, launched in terms:
        seconds += term
        launches += launched
    return seconds + topology.chip.launch_seconds * launches


def equation_seconds(
    graph: StepGraph,
    group: Group,
    space: GroupSpace,
    splits: np.ndarray,
    buffers: Buffers,
    topology: Topology,
) -> dict[int, np.ndarray]:
    """Equation -> its share of `compute_seconds`, shape (K,): a pass over memory counts where it comes first."""
    return by_equation(compute_terms(graph, group, space, splits, buffers, topology), topology)


def by_equation(terms: Iterable[Term], topology: Topology) -> dict[int, np.ndarray]:
    """Equation -> seconds of its terms, shape (K,)."""
    seconds: dict[int, np.ndarray] = {}
    for e, term, launched in terms:
        seconds[e] = seconds.get(e, 0.0) + term + topology.chip.launch_seconds * launched
    return seconds


def compute_terms(
    graph: StepGraph,
    group: Group,
    space: GroupSpace,
    splits: np.ndarray,
    buffers: Buffers,
    topology: Topology,
) -> Iterator[Term]:
    """The terms of a group's compute, one for each dot and each pass.

    A contraction takes the larger of its arithmetic and its traffic. Everything else pays for the materialised tensors
    that it writes once and reads once per phase, and for arithmetic beyond that (`_beyond_passes`). With
    a profile in the topology, dots and memory take the measured seconds.
    """
    reads: dict[tuple[str, int], _Reads] = {}
    launches = buffers.target.launches_kernels
    for e in group.equations:
        eqn = graph.program.equations[e]
        trips = trips_of(graph, e)
        if body_cost(eqn).boundary_bytes:
            yield e, trips * _body_seconds(body_cost(eqn), topology) * np.ones(len(splits)), 0
            continue
        if flops_of(graph, e):
            yield e, trips * _dot_seconds(graph, e, space, splits, buffers, topology), 0
            continue
        if launches and (copied := _kernels_at_exits(graph, e)):
            yield e, np.zeros(len(splits)), copied
        passes = list(passes_of(graph, e, buffers, space, splits))
        for one in passes:
            reads.setdefault((one.kind, one.tensor), _Reads(e)).add(one)
        beyond = _beyond_passes(graph, e, passes, space, splits, topology)
        if beyond is not None:
            yield e, trips * beyond, 0
        waiting = _atomic_seconds(graph, e, space, splits, topology)
        if waiting is not None:
            yield e, trips * waiting, 0
    slower = graph.derive("row kernels", topology.chip, lambda: row_factors(graph, buffers, topology.chip.efficiency))
    for kind, t in sorted(reads):
        of, trips = reads[kind, t], graph.program.tensors[t].trips
        seconds = _memory_seconds(topology, of.num_bytes) * slower.get((kind, t), 1.0)
        if kind == WRITE and launches:
            seconds = seconds + np.minimum(seconds, topology.chip.launch_seconds)  # until memory streams
        yield of.equation, trips * seconds, trips if kind in (WRITE, ROWS) else 0


def _kernels_at_exits(graph: StepGraph, e: int) -> int:
    """Kernels of a step that write an array that leaves a trip: into a stack, or into the buffer of a carry."""
    eqn = graph.program.equations[e]
    if eqn.name != REGION_OUT or eqn.params["role"] not in ("y", "carry"):
        return 0
    leaving = [graph.program.tensors[t] for t in eqn.operands[:1] if graph.program.tensors[t].shape]
    return sum(tensor.trips for tensor in leaving)


class _Reads:
    """Bytes of one tensor that the kernels of one phase read, or that are written: no more than all of it."""

    def __init__(self, equation: int) -> None:
        self.equation = equation
        self.num_bytes: np.ndarray | float = 0.0

    def add(self, more: Pass) -> None:
        self.num_bytes = np.minimum(self.num_bytes + more.num_bytes, more.at_most)


def _dot_seconds(
    graph: StepGraph, e: int, space: GroupSpace, splits: np.ndarray, buffers: Buffers, topology: Topology
) -> np.ndarray:
    """Seconds of a contraction or convolution, shape (K,): the larger of its arithmetic and its traffic."""
    if topology.profile is not None:
        return dot_seconds(graph, space, splits, e, topology.profile)
    eqn, chip = graph.program.equations[e], topology.chip
    tensors = (*eqn.operands[:2], *eqn.results)
    traffic = sum(buffers.num_bytes[t] / tensor_splits(space, splits, t) for t in tensors)
    smallest = np.minimum.reduce(dot_extents(graph, space, splits, e)[1:])
    share = chip.efficiency.products_at(smallest) / chip.efficiency.products
    rate = product_rate(chip, graph.program.tensors[eqn.operands[0]].dtype.name) * share
    if _is_narrow(graph, e):
        rate = np.minimum(rate, chip.peak_flops_per_second("bfloat16") * chip.efficiency.narrow_convolutions)
    flops = flops_of(graph, e) * next((r.times for r in buffers.found.of(Repeat) if r.equation == e), 1)
    arithmetic = flops / equation_splits(space, splits, e) / rate
    return np.maximum(arithmetic, traffic / memory_bytes_per_second(chip)) + chip.launch_seconds


def _is_narrow(graph: StepGraph, e: int) -> bool:
    """Whether a convolution's image has fewer channels than fill `_ALIGNED_BYTES`."""
    eqn = graph.program.equations[e]
    if eqn.name != "conv_general_dilated":
        return False
    image, numbers = graph.program.tensors[eqn.operands[0]], eqn.params["dimension_numbers"]
    channels = image.shape[numbers.lhs_spec[1]] // eqn.params["feature_group_count"]
    return channels * itemsize(image.dtype) < _ALIGNED_BYTES


def _beyond_passes(
    graph: StepGraph, e: int, passes: list[Pass], space: GroupSpace, splits: np.ndarray, topology: Topology
) -> np.ndarray | None:
    """Seconds by which an equation takes longer than its passes over memory, shape (K,); None where it does not.

    It takes the longer of its arithmetic and of all its traffic. Where it is fused, the kernel streams its operands
    and results, or more than these, while it computes: only the excess counts.
    """
    count, chip = graph.counts[e], topology.chip
    if count is None or not (count.flops or count.moved or count.kernels > 1):
        return None
    eqn, tensors = graph.program.equations[e], graph.program.tensors
    is_attention = graph.rules[e].family == "attention"
    arithmetic = attention_seconds(count, chip) if is_attention else arithmetic_seconds(count, chip)
    is_fused = count.streams and count.rewrites is None
    ends = dict.fromkeys((*eqn.operands, *eqn.results))
    if is_fused and arithmetic <= _memory_seconds(topology, max(tensors[t].num_bytes for t in ends)):
        return None
    parts = equation_splits(space, splits, e)
    own = sum((one.num_bytes for one in passes), np.zeros(len(splits)))
    if is_fused:
        own = sum((tensors[t].num_bytes / tensor_splits(space, splits, t) for t in ends), np.zeros(len(splits)))
    slower = rows_in_blocks(eqn.phase, chip.efficiency) if eqn.name in ATTENTIONS else 1.0
    moved = np.maximum(own, slower * count.moved / parts)
    seconds = np.maximum(arithmetic / parts, _memory_seconds(topology, moved))
    beyond = seconds - _memory_seconds(topology, own) + (count.kernels - 1) * chip.launch_seconds
    return beyond if beyond.any() else None


def _atomic_seconds(
    graph: StepGraph, e: int, space: GroupSpace, splits: np.ndarray, topology: Topology
) -> np.ndarray | None:
    """Seconds that additions to one number wait for each other, shape (K,); None where no two need to be to one."""
    count = graph.counts[e]
    if count is None or not count.added_to:
        return None
    result = graph.program.equations[e].results[0]
    each = topology.chip.efficiency.atomic_seconds[itemsize(graph.program.tensors[result].dtype) < _WHOLE_WORD]
    if not each:
        return None
    in_turn = count.added_to * tensor_splits(space, splits, result) / equation_splits(space, splits, e)
    return each * np.maximum(0.0, in_turn - 1.0)


def _memory_seconds(topology: Topology, num_bytes: Any) -> Any:
    """Seconds of one pass over so many bytes, as measured where there is a profile."""
    if topology.profile is not None:
        return topology.profile.memory_seconds(num_bytes)
    return num_bytes / memory_bytes_per_second(topology.chip)


def _body_seconds(body: BodyCost, topology: Topology) -> float:
    """Roofline of a user's `jax.shard_map` on one device: each operator that is not fused, one pass over its operands
    and results."""
    chip = topology.chip
    bandwidth = memory_bytes_per_second(chip)
    seconds = body.boundary_bytes / bandwidth + chip.launch_seconds
    for work in body.works:
        arithmetic, memory = arithmetic_seconds(work.count, chip), work.num_bytes / bandwidth
        if work.count.streams:
            seconds += work.trips * max(0.0, arithmetic - memory)
        else:
            seconds += work.trips * (max(arithmetic, memory) + work.count.kernels * chip.launch_seconds)
    return seconds
