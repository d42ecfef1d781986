"""A plan in words and tables, for people to judge it by."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from jaxplan.core._units import format_bytes, format_seconds
from jaxplan.cost import held_at_peak
from jaxplan.ir import FactorClass, StepGraph
from jaxplan.plans._certificate import certificate
from jaxplan.plans._explain_lowering import lowering_rows
from jaxplan.plans._explain_state import state_rows

if TYPE_CHECKING:
    from jaxplan.plans._plan import Plan

_MOST_ROWS = 24
_MOST_HELD = 6


def explain(plan: Plan) -> str:
    """Topology, cost, memory by part, collectives, and how dimensions and parameters are split."""
    lines = [
        f"{plan.name} on {plan.topology.name}: {plan.summary}",
        f"time    {format_seconds(plan.time_seconds)} = compute {format_seconds(plan.compute_seconds)}"
        f" + communication {format_seconds(plan.communication_seconds)}{_hidden(plan)}",
        f"bound   {certificate(plan)}",
        f"memory  {_memory(plan)}",
    ]
    lines += [f"  {part:<26} {format_bytes(size)}" for part, size in plan.memory_parts.items()]
    if plan.graph is not None:
        lines += ["  largest buffers at the peak, and the compiler rule of each (docs/compiler_rules.md)", *_held(plan)]
        simulated = plan.simulate()
        lines.insert(
            2,
            f"        {format_seconds(simulated.time_seconds)} simulated with overlap: "
            f"{format_seconds(simulated.hidden_seconds)} of communication beside compute",
        )
    lines += ["collectives per step", *_collectives(plan)]
    lines += ["inputs", *_inputs(plan)]
    if plan.graph is not None:
        lines += ["state (laid out alike as argument and as result)", *state_rows(plan.graph.program)]
        lines += ["operators by split", *_groups(plan)]
    if plan.decided is not None:
        lines += ["lowering", *lowering_rows(plan.lowering)]
    return "\n".join(lines)


def _hidden(plan: Plan) -> str:
    return f" - hidden {format_seconds(plan.hidden_seconds)}" if plan.hidden_seconds else ""


def _memory(plan: Plan) -> str:
    if plan.verified is None:
        return f"{format_bytes(plan.memory_bytes)} per device"
    predicted = format_bytes(plan.prediction.memory_bytes)
    return f"{format_bytes(plan.memory_bytes)} per device as compiled; {predicted} predicted"


def _held(plan: Plan) -> list[str]:
    """The largest tensors that the step computes; equal ones in one row."""
    graph, rows = plan.require_program(), dict[str, list[int]]()
    for t, num_bytes, rule in held_at_peak(graph, plan.topology, plan.configurations, plan.repeated):
        tensor, eqn = graph.program.tensors[t], graph.program.equations[graph.values.producer[t]]
        shape = ",".join(map(str, tensor.shape))
        text = f"{format_bytes(num_bytes)} {tensor.dtype.name}[{shape}] of {eqn.name} ({eqn.phase}): {rule}"
        rows.setdefault(text, []).append(t)
    return [f"  {len(tensors):>5} x {text}" for text, tensors in list(rows.items())[:_MOST_HELD]]


def _collectives(plan: Plan) -> list[str]:
    totals: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(lambda: [0, 0])
    for c in plan.prediction.collectives:
        entry = totals[c.kind, c.axes]
        entry[0] += c.count
        entry[1] += c.count * c.num_bytes
    rows = []
    for (kind, axes), (count, total) in sorted(totals.items(), key=lambda item: -item[1][1]):
        names = " ".join(plan.topology.axes[a].name for a in axes)
        size = math.prod(plan.topology.axes[a].size for a in axes)
        rows.append(f"  {count:>5} x {kind:<18} over {size} ({names}): {format_bytes(total)}")
    return rows or ["  none"]


def _inputs(plan: Plan) -> list[str]:
    by_sharding: dict[str, list[str]] = defaultdict(list)
    for path, sharding in zip(plan.in_paths, plan.in_layouts, strict=True):
        by_sharding[sharding.describe(plan.topology.axes)].append(path)
    rows = [
        f"  {sharding:<22} {len(paths):>4} leaves, such as {paths[0]}"
        for sharding, paths in sorted(by_sharding.items(), key=lambda item: -len(item[1]))
    ]
    return rows[:_MOST_ROWS]


def _groups(plan: Plan) -> list[str]:
    graph = plan.require_program()
    rows: dict[str, int] = defaultdict(int)
    for group, space, config in zip(graph.grouping.groups, graph.spaces, plan.configurations, strict=True):
        splits = [
            f"{_class_name(graph, cls)}={' '.join(plan.topology.axes[a].name for a in axes)}"
            for cls, axes in zip(space.classes, config, strict=True)
            if axes
        ]
        rows[f"{group.kind}: {', '.join(splits) or 'replicated'}"] += 1
    ordered = sorted(rows.items(), key=lambda item: (-item[1], item[0]))[:_MOST_ROWS]
    return [f"  {count:>4} x {text}" for text, count in ordered]


def _class_name(graph: StepGraph, cls: FactorClass) -> str:
    if not cls.sizes:
        return "partial sums"
    name = graph.named.dimensions[cls.named_dimension].name if cls.named_dimension >= 0 else "?"
    return f"{name}({min(cls.sizes)})"
