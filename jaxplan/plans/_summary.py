"""The outline of a plan, from its configurations and transfers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from jaxplan.cost import Transfer, flops_of, parameter_gathers, trips_of
from jaxplan.ir import Configuration, Group, Remat, StepGraph
from jaxplan.mesh import Topology
from jaxplan.plans._outline import MAIN, Outline, Split

KINDS = ("data", "expert", "tensor", "sequence", "spatial")
"""Names of splits, by the dimension: batch, experts, features, a sequence, rows and columns of images."""
_KIND_OF = {"batch": "data", "experts": "expert", "sequence": "sequence", "rows": "spatial", "columns": "spatial"}


def outline_of(
    graph: StepGraph, topology: Topology, configurations: Sequence[Configuration], transfers: Sequence[Transfer]
) -> Outline:
    """Describe a plan; shares are of floating-point operations of the whole step."""
    gathers = parameter_gathers(graph, transfers)
    repeated = sum(1 for t in gathers if t.repeated)
    parameters = graph.batch.parameters
    recomputed, partly = _blocks(graph.remat)
    return Outline(
        splits=_splits(graph, topology, configurations),
        state_ways=_ways(graph, topology, configurations, graph.state - parameters),
        parameter_ways=_ways(graph, topology, configurations, parameters),
        gathered_once=len(gathers) - repeated,
        gathered_twice=repeated,
        recomputed=recomputed,
        partly=partly,
    )


def input_roles(graph: StepGraph) -> tuple[str, ...]:
    """The kind of each argument: ``parameter``, ``state`` or ``data``."""
    return tuple(
        "parameter" if t in graph.batch.parameters else "state" if t in graph.state else "data"
        for t in graph.program.inputs
    )


def input_dims(graph: StepGraph) -> tuple[tuple[str, ...], ...]:
    """Names of the dimensions of each argument, empty for those without a name (of size 1)."""
    return tuple(
        tuple(graph.named.name_at(t, d) for d in range(len(graph.program.tensors[t].shape)))
        for t in graph.program.inputs
    )


def split_kind(graph: StepGraph, dimension: int) -> str:
    """Name of the split of a named dimension."""
    return _KIND_OF.get(graph.named.dimensions[dimension].name, "tensor") if dimension >= 0 else "tensor"


def _splits(graph: StepGraph, topology: Topology, configurations: Sequence[Configuration]) -> tuple[Split, ...]:
    operations: dict[str, float] = defaultdict(float)
    for group, config in zip(graph.grouping.groups, configurations, strict=True):
        if group.kind == "contraction":
            operations[_split(graph, topology, group, config)] += _operations(graph, group)
    total = sum(operations.values())
    ranked = sorted(operations.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Split(text=text, share=n / total) for text, n in ranked if n) if total else ()


def _split(graph: StepGraph, topology: Topology, group: Group, config: Configuration) -> str:
    """Such as ``data 4 x tensor 2``."""
    axes: dict[str, set[int]] = defaultdict(set)
    for cls, own in zip(graph.spaces[group.index].classes, config, strict=True):
        if own:
            axes[split_kind(graph, cls.named_dimension)].update(own)
    sizes = {kind: math.prod(topology.axes[a].size for a in axes[kind]) for kind in KINDS if axes[kind]}
    return " x ".join(f"{kind} {size}" for kind, size in sizes.items()) or "replicated"


def _operations(graph: StepGraph, group: Group) -> float:
    return sum(flops_of(graph, e) * trips_of(graph, e) for e in group.equations)


def _ways(
    graph: StepGraph, topology: Topology, configurations: Sequence[Configuration], inputs: Iterable[int]
) -> float:
    """Over how many devices some inputs are sharded: most of their bytes, or else all of them on average."""
    sizes: dict[int, int] = defaultdict(int)
    for t in inputs:
        group = graph.grouping.tensor_group[t]
        if group >= 0:
            classes = [c for dim in graph.spaces[group].tensor_dims.get(t, ()) for c in dim]
            ways = math.prod(topology.axes[a].size for c in classes for a in configurations[group][c])
            sizes[ways] += graph.program.tensors[t].num_bytes
    total = sum(sizes.values())
    if not total:
        return 1.0
    most = max(sizes, key=lambda ways: sizes[ways])
    return float(most) if sizes[most] >= MAIN * total else total / sum(size / ways for ways, size in sizes.items())


def _blocks(remat: Remat | None) -> tuple[str, str]:
    """The blocks that are recomputed, and those of which the results of dots are kept."""
    if remat is None:
        return "", ""
    last = remat.num_all + remat.num_contractions
    return _range(1, remat.num_all, remat.of), _range(remat.num_all + 1, last, remat.of)


def _range(first: int, last: int, of: int) -> str:
    if last < first:
        return ""
    return f"block {first} of {of}" if last == first else f"blocks {first}-{last} of {of}"
