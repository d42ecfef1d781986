"""One line on what a plan splits."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from jaxplan.cost import Transfer, parameter_gathers
from jaxplan.ir import Configuration, StepGraph
from jaxplan.mesh import Topology


def summarise(
    graph: StepGraph,
    topology: Topology,
    configurations: Sequence[Configuration],
    transfers: Sequence[Transfer],
) -> str:
    """Such as ``batch /8; state 1/7.9; gathers: 12 kept, 60 repeated``."""
    parts = [_splits(graph, topology, configurations), _state(graph, topology, configurations)]
    gathers = parameter_gathers(graph, transfers)
    repeated = sum(1 for t in gathers if t.repeated)
    if gathers:
        parts.append(f"gathers: {len(gathers) - repeated} kept, {repeated} repeated")
    if graph.remat is not None:
        parts.append(str(graph.remat))
    return "; ".join(filter(None, parts))


def _splits(graph: StepGraph, topology: Topology, configurations: Sequence[Configuration]) -> str:
    """The splits that most contractions share, by named dimension."""
    weight: dict[str, int] = defaultdict(int)
    for group, space, config in zip(graph.grouping.groups, graph.spaces, configurations, strict=True):
        if group.kind != "contraction":
            continue
        names = []
        for cls, axes in zip(space.classes, config, strict=True):
            if axes:
                name = graph.named.dimensions[cls.named_dimension].name if cls.named_dimension >= 0 else "?"
                names.append(f"{name} /{math.prod(topology.axes[a].size for a in axes)}")
        weight[" ".join(names) or "whole"] += 1
    ranked = sorted(weight.items(), key=lambda item: (-item[1], item[0]))
    if not ranked:
        return ""
    text = ranked[0][0]
    return text + (f" (+{len(ranked) - 1} other ways)" if len(ranked) > 1 else "")


def _state(graph: StepGraph, topology: Topology, configurations: Sequence[Configuration]) -> str:
    """How much of parameters and optimizer state one device holds."""
    total = local = 0.0
    for group, space, config in zip(graph.grouping.groups, graph.spaces, configurations, strict=True):
        for t in group.inputs:
            if t not in graph.stored:
                continue
            size = graph.program.tensors[t].num_bytes
            classes = [c for dim in space.tensor_dims.get(t, ()) for c in dim]
            total += size
            local += size / math.prod(topology.axes[a].size for c in classes for a in config[c])
    return f"state 1/{total / local:.3g}" if local else ""
