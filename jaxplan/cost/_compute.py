"""Roofline time of a group's equations on one device, per configuration (Williams et al. 2009)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from jaxplan.cost._buffers import Buffers
from jaxplan.cost._measured import product_seconds
from jaxplan.cost._padded_products import padded_work
from jaxplan.cost._user_body import BodyCost, body_cost
from jaxplan.cost._work import Border, flops_of_equation, work_beside_halos, written_border
from jaxplan.ir import REGION_IN, REGION_OUT, WHOLE, Configuration, Group, GroupSpace, StepGraph
from jaxplan.mesh import ChipSpec, Topology

MATMUL_EFFICIENCY = 0.65
"""Share of the dense peak that large matrix products reach; assumed until calibrated on the device."""
MEMORY_EFFICIENCY = 0.85
"""Share of the memory bandwidth that streaming kernels reach; assumed until calibrated on the device."""


def split_counts(configs: tuple[Configuration, ...], topology: Topology) -> np.ndarray:
    """Number of parts of each class under each configuration, shape (K, C)."""
    sizes = [axis.size for axis in topology.axes]
    counts = [[math.prod(sizes[a] for a in axes) for axes in config] for config in configs]
    return np.asarray(counts, dtype=np.float64).reshape(len(configs), -1)


def tensor_splits(space: GroupSpace, splits: np.ndarray, t: int) -> np.ndarray:
    """Into how many parts a tensor of the group is split, shape (K,)."""
    classes = [c for dim in space.tensor_dims.get(t, ()) for c in dim]
    return splits[:, classes].prod(axis=1) if classes else np.ones(len(splits))


def flops_of(graph: StepGraph, equation: int, border: Border | None = None) -> float:
    """Operations of a contraction or convolution (`flops_of_equation`); 0 for everything else."""
    eqn = graph.program.equations[equation]
    return flops_of_equation(eqn, graph.rules[equation], graph.program.tensors, border)


def local_flops(
    graph: StepGraph, group: Group, space: GroupSpace, splits: np.ndarray, chip: ChipSpec
) -> np.ndarray:
    """Floating-point operations of a group on one device, shape (K,)."""
    total = np.zeros(len(splits))
    for e in group.equations:
        border = written_border(graph, e) if chip.is_gpu else None
        flops = flops_of(graph, e, border)
        if flops:
            share = _beside_halos(graph, space, splits, e, border) / _equation_splits(space, splits, e)
            share *= padded_work(graph, space, splits, e, chip)
            total += flops * trips_of(graph, e) * share
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


def trips_of(graph: StepGraph, equation: int) -> int:
    """How often an equation runs in one step."""
    eqn = graph.program.equations[equation]
    return graph.program.tensors[eqn.results[0]].trips if eqn.results else 1


def compute_seconds(
    graph: StepGraph,
    group: Group,
    space: GroupSpace,
    splits: np.ndarray,
    buffers: Buffers,
    topology: Topology,
) -> np.ndarray:
    """Seconds of a group's equations on one device, shape (K,): the sum of `equation_seconds`."""
    seconds = np.zeros(len(splits))
    launches = 0
    for _, term, launched in _terms(graph, group, space, splits, buffers, topology):
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
    seconds: dict[int, np.ndarray] = {}
    for e, term, launched in _terms(graph, group, space, splits, buffers, topology):
        seconds[e] = seconds.get(e, 0.0) + term + topology.chip.launch_seconds * launched
    return seconds


def _terms(
    graph: StepGraph,
    group: Group,
    space: GroupSpace,
    splits: np.ndarray,
    buffers: Buffers,
    topology: Topology,
) -> Iterator[tuple[int, np.ndarray, int]]:
    """(equation, seconds (K,), kernels whose launches come on top of them), one for each product and each pass.

    A contraction takes the larger of its arithmetic and its traffic. Everything else is fused: it pays for the
    materialised tensors that it writes once and reads once per phase. Where the topology has a profile, products and
    memory take what was measured.
    """
    chip, profile = topology.chip, topology.profile
    bandwidth = chip.memory_bytes_per_second * MEMORY_EFFICIENCY
    touched: dict[tuple[str, int], int] = {}
    for e in group.equations:
        eqn = graph.program.equations[e]
        flops = flops_of(graph, e)
        if body_cost(eqn).boundary_bytes:
            yield e, trips_of(graph, e) * _body_seconds(body_cost(eqn), topology) * np.ones(len(splits)), 0
            continue
        if flops and profile is not None:
            yield e, trips_of(graph, e) * product_seconds(graph, space, splits, e, profile), 0
            continue
        if flops:
            tensors = (*eqn.operands[:2], *eqn.results)
            traffic = sum(_local_bytes(buffers, space, splits, t) for t in tensors)
            rate = matmul_rate(graph, e, topology)
            arithmetic = flops / _equation_splits(space, splits, e) / rate
            yield (
                e,
                trips_of(graph, e) * (np.maximum(arithmetic, traffic / bandwidth) + chip.launch_seconds),
                0,
            )
            continue
        for pass_over in _passes(graph, e, buffers):
            touched.setdefault(pass_over, e)
    for kind, t in sorted(touched):
        num_bytes, trips = _local_bytes(buffers, space, splits, t), graph.program.tensors[t].trips
        seconds = num_bytes / bandwidth if profile is None else profile.memory_seconds(num_bytes)
        yield touched[kind, t], trips * seconds, trips if kind == "write" else 0


def _body_seconds(body: BodyCost, topology: Topology) -> float:
    """Roofline of a user's `jax.shard_map` on one device: each product, one pass over what goes in and out."""
    chip = topology.chip
    bandwidth = chip.memory_bytes_per_second * MEMORY_EFFICIENCY
    seconds = body.boundary_bytes / bandwidth + chip.launch_seconds
    for product in body.products:
        arithmetic = product.flops / (chip.matmul_flops_per_second(product.dtype) * MATMUL_EFFICIENCY)
        seconds += product.trips * (max(arithmetic, product.num_bytes / bandwidth) + chip.launch_seconds)
    return seconds


def _passes(graph: StepGraph, equation: int, buffers: Buffers) -> list[tuple[str, int]]:
    """What an equation that is fused reads (in its phase) and writes."""
    eqn = graph.program.equations[equation]
    if eqn.name == REGION_IN:  # slices are read; constants and carries stay where they are
        return [(eqn.phase, t) for t in eqn.operands if eqn.params["role"] == "x"]
    if eqn.name == REGION_OUT:
        return [("write", t) for t in eqn.results if eqn.params["role"] == "y"]
    reads = [(eqn.phase, t) for t in eqn.operands if buffers.materialised[t]]
    return [*reads, *(("write", t) for t in eqn.results if buffers.materialised[t])]


def matmul_rate(graph: StepGraph, equation: int, topology: Topology) -> float:
    """Achievable FLOP/s of a contraction in the dtype of its operands."""
    operand = graph.program.equations[equation].operands[0]
    return (
        topology.chip.matmul_flops_per_second(graph.program.tensors[operand].dtype.name) * MATMUL_EFFICIENCY
    )


def _equation_splits(space: GroupSpace, splits: np.ndarray, equation: int) -> np.ndarray:
    classes = sorted({c for c in space.factor_class[equation] if c != WHOLE})
    return splits[:, classes].prod(axis=1) if classes else np.ones(len(splits))


def _local_bytes(buffers: Buffers, space: GroupSpace, splits: np.ndarray, t: int) -> np.ndarray:
    return buffers.num_bytes[t] / tensor_splits(space, splits, t)
