"""Roofline time of a group's equations on one device, per configuration (Williams et al. 2009)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxplan.cost._buffers import Buffers
from jaxplan.cost._measured import product_seconds
from jaxplan.ir import REGION_IN, REGION_OUT, WHOLE, Configuration, Group, GroupSpace, StepGraph
from jaxplan.mesh import Topology

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


def flops_of(graph: StepGraph, equation: int) -> float:
    """Floating-point operations of a contraction or convolution, two per multiply-add; 0 for everything else.

    A convolution multiplies where there is input: neither the padding nor the holes of a dilated input count, as in
    XLA's ``HloCostAnalysis``.
    """
    eqn, rule, tensors = graph.program.equations[equation], graph.rules[equation], graph.program.tensors
    if rule.family == "contraction":
        return 2.0 * math.prod(f.size for f in rule.factors)
    if rule.family == "convolution":
        shapes = [tensors[t].shape for t in (*eqn.operands[:2], eqn.results[0])]
        return 2.0 * _convolution_products(eqn.params, *shapes)
    return 0.0


def _convolution_products(
    params: Mapping[str, Any], inputs: tuple[int, ...], kernel: tuple[int, ...], outputs: tuple[int, ...]
) -> int:
    in_spec, kernel_spec, out_spec = params["dimension_numbers"]
    count = outputs[out_spec[0]] * kernel[kernel_spec[0]] * kernel[kernel_spec[1]]
    windows = zip(
        in_spec[2:], kernel_spec[2:], out_spec[2:], params["window_strides"], params["padding"],
        params["lhs_dilation"], params["rhs_dilation"], strict=True,
    )  # fmt: skip
    for i, k, o, stride, (before, _), input_dilation, kernel_dilation in windows:
        positions = np.arange(outputs[o])[:, None] * stride + np.arange(kernel[k]) * kernel_dilation - before
        exists = (
            (positions >= 0) & (positions < inputs[i] * input_dilation) & (positions % input_dilation == 0)
        )
        count *= int(np.count_nonzero(exists))
    return count


def local_flops(graph: StepGraph, group: Group, space: GroupSpace, splits: np.ndarray) -> np.ndarray:
    """Floating-point operations of a group on one device, shape (K,)."""
    total = np.zeros(len(splits))
    for e in group.equations:
        flops = flops_of(graph, e)
        if flops:
            total += flops * trips_of(graph, e) / _equation_splits(space, splits, e)
    return total


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
