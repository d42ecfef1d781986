"""The order of compiled GPU programs beside that of the latency-hiding scheduler, simulated on the same instructions.

    python -m benchmarks.accuracy.population --first 0 --count 12 --cache .aot   # compiles programs
    python -m benchmarks.accuracy.schedules .aot

On Hopper and Blackwell GPUs XLA orders each computation with collectives by latencies, not by memory: it does that
wherever it has a table of the machine's collectives (`SolLatencyEstimator::IsSupportedForModule`,
https://github.com/openxla/xla/blob/main/xla/service/gpu/model/sol_latency_estimator.cc). A line for each program: the
share of pairs of kernels in the other order, and the peak of its temporaries in the simulated order over that in its
own.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.accuracy._latency_hiding import Node, latency_hiding_order
from jaxplan.audit._hlo_instruction import ArrayType, Instruction
from jaxplan.audit._hlo_liveness import peak_temporaries
from jaxplan.audit._hlo_text import Module, parse_module

_VIEWS = frozenset({"bitcast", "constant", "get-tuple-element", "parameter", "partition-id", "replica-id", "tuple"})
_KERNEL = re.compile(r"\bkind=k(Loop|Input)\b")
_BYTES_PER_MICROSECOND = 2.7e6
"""Traffic of a fusion with the memory of an H100, which has 3.35 TB/s."""
_FLOPS_PER_MICROSECOND = {"f32": 3e8, "f64": 3e7}
_FAST_FLOPS_PER_MICROSECOND = 6e8
"""Of dots on 16-bit elements."""
_NETWORK_BYTES_PER_MICROSECOND = 3e5
_GATHER, _ALL_REDUCE, _LARGER_ALL_REDUCE, _LARGER = 15.0, 40.0, 50.0, 2**20
"""Microseconds of a small collective, of a small all-reduce, and what one of a MiB takes beside its bytes: chosen by
the orders of 50 programs compiled for 8 H100 (this command prints how well they do)."""
_FUSION, _OTHER = 1.0, 0.01
_CALLS = {"while": 50.0, "conditional": 50.0, "fusion": 10.0, "custom-call": 10.0}
"""Microseconds of instructions that the compiler has no model of."""


def nodes_of(computation: Mapping[str, Instruction]) -> list[Node]:
    """The instructions of a computation, in their order."""
    place = {name: i for i, name in enumerate(computation)}
    return [_node(computation, instruction, place) for instruction in computation.values()]


def _node(computation: Mapping[str, Instruction], instruction: Instruction, place: Mapping[str, int]) -> Node:
    operands = tuple(place[name] for name in instruction.operands)
    if instruction.opcode in _VIEWS:
        return Node(operands=operands, kind="view")
    if instruction.opcode.endswith("-start"):
        return Node(operands=operands, kind="start", cost=_FUSION, latency=_latency(instruction))
    if instruction.opcode.endswith("-done"):
        return Node(operands=operands, kind="done", cost=_FUSION)
    arrays = [t for name in instruction.operands for t in computation[name].types]
    return Node(operands=operands, cost=_cost(instruction, arrays))


def _latency(instruction: Instruction) -> float:
    size = max(array.num_bytes for array in instruction.types)
    if instruction.opcode == "all-reduce-start":
        return _ALL_REDUCE + _LARGER_ALL_REDUCE * min(1, size / _LARGER) + 2 * size / _NETWORK_BYTES_PER_MICROSECOND
    return _GATHER + size / _NETWORK_BYTES_PER_MICROSECOND


def _cost(instruction: Instruction, arrays: Sequence[ArrayType]) -> float:
    seconds = sum(array.num_bytes for array in (*instruction.types, *arrays)) / _BYTES_PER_MICROSECOND
    if instruction.opcode == "fusion" and _KERNEL.search(instruction.attributes):
        return _FUSION + seconds
    if instruction.opcode == "custom-call" and "cublas" in instruction.attributes:
        one, other, result = arrays[0], arrays[1], instruction.types[0]
        flops = 2 * math.sqrt(math.prod(array.num_elements for array in (one, other, result)))
        return _FUSION + flops / _FLOPS_PER_MICROSECOND.get(one.dtype, _FAST_FLOPS_PER_MICROSECOND)
    return _CALLS.get(instruction.opcode, _OTHER)


def discordance(nodes: Sequence[Node], order: Sequence[int]) -> float:
    """Share of pairs of kernels, collectives included, that do not run in the order of their indices."""
    kernels = [x for x in order if nodes[x].kind != "view"]
    pairs = list(itertools.combinations(kernels, 2))
    return sum(x > y for x, y in pairs) / max(len(pairs), 1)


def simulated(module: Module) -> tuple[float, float]:
    """(share of pairs in the other order, peak in the simulated order over the peak in its own) of a program."""
    entry = module.computations[module.entry]
    nodes, names = nodes_of(entry), list(entry)
    order = latency_hiding_order(nodes)
    reordered = {**module.computations, module.entry: {names[x]: entry[names[x]] for x in order}}
    other = dataclasses.replace(module, computations=reordered)
    peaks = [peak_temporaries(m).num_bytes for m in (module, other)]
    return discordance(nodes, order), peaks[1] / max(peaks[0], 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy.schedules", description=__doc__.splitlines()[0])
    parser.add_argument("cache", type=Path, help="folder of compiled programs (--cache of the other commands)")
    options = parser.parse_args(arguments)
    found: list[tuple[float, float]] = []
    for path in sorted(options.cache.glob("*/hlo.txt")):
        module = parse_module(path.read_text())
        if any(i.opcode.endswith("-start") for i in module.computations[module.entry].values()):
            found.append(simulated(module))
            print(f"{path.parent.name[:12]} {found[-1][0]:6.1%} of pairs, peak {found[-1][1]:.3f}", flush=True)
    if found:
        pairs, peaks = np.array(found).T
        errors = abs(peaks - 1)
        print(
            f"{len(found)} programs with collectives: {np.median(pairs):.1%} of pairs in the median, peak "
            f"{errors.mean():.1%} off in the mean, {np.quantile(errors, 0.95):.1%} at the 95th percentile"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
