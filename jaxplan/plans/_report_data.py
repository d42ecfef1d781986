"""One plan as plain data for the report: layouts, memory, time, transfers and rules, all numbers as text too."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxplan.core import _compat
from jaxplan.core._units import format_bytes, format_seconds
from jaxplan.cost import held_at_peak
from jaxplan.ir import UNGROUPED, StepGraph
from jaxplan.mesh import Sharding, Topology
from jaxplan.plans._diff import diff
from jaxplan.plans._frontier_data import FrontierData
from jaxplan.plans._plan_data import PlanData
from jaxplan.plans._priced import priced_plan
from jaxplan.plans._rows import collective_rows, fold_leaves, leaf_rows, own_name, short_source

_MOST_EDGES = 10
_LEAST_EDGE_SECONDS = 1e-9
"""Of scalars that are reduced together with other arrays, less is left: the time is that of the others."""
_MOST_HELD = 8
_MOST_CELLS = 256
_MOST_INSTANTS = 400


def plan_data(plan: PlanData, label: str, frontier: FrontierData[PlanData]) -> dict[str, Any]:
    """Everything that the report shows of one plan; without the program, the parts that a saved plan keeps."""
    cuts: dict[str, Any] = {}
    program = plan.graph is not None
    return {
        "label": label,
        "summary": plan.summary,
        "time": format_seconds(plan.time_seconds),
        "memory": format_bytes(plan.memory_bytes),
        "memory_parts": _bars(plan.memory_parts.items(), format_bytes),
        "curve": _curve(plan) if program else None,
        "times": _bars(_times(plan), format_seconds),
        "edges": _edges(plan) if program else [],
        "held": _held(plan) if program else [],
        "arguments": _arguments(plan, cuts),
        "activations": _activations(plan.graph, plan, cuts) if plan.graph is not None else [],
        "cuts": cuts,
        "difference": _difference(plan, frontier),
        "has_program": program,
    }


def _bars(rows: Iterable[tuple[str, float]], show: Any) -> list[dict[str, Any]]:
    """Rows with a name, a text, and the length of a bar: the share of the largest, in percent."""
    kept = [(name, value) for name, value in rows if value]
    largest = max((value for _, value in kept), default=1)
    return [{"name": name, "text": show(value), "percent": 100 * value / largest} for name, value in kept]


def _times(plan: PlanData) -> list[tuple[str, float]]:
    rows = [("compute", plan.compute_seconds)]
    rows += [
        (f"{row.count} x {row.kind} over {row.num_devices} ({' '.join(row.axes)})", row.seconds)
        for row in collective_rows(plan)
    ]
    return [*rows, ("of communication hidden beside compute", plan.hidden_seconds)]


def _curve(plan: PlanData) -> dict[str, Any]:
    """Times in ms over one simulated step, and the MiB of each kind of array; of a long step the highest of every few
    instants."""
    simulated = plan.simulate()
    curve = simulated.memory_curve
    stride = max(1, math.ceil(len(curve) / _MOST_INSTANTS))
    spans = (range(i, min(i + stride, len(curve))) for i in range(0, len(curve), stride))
    chosen = [max(span, key=lambda at: curve[at][1]) for span in spans]
    return {
        "times": [round(curve[i][0] * 1e3, 6) for i in chosen],
        "end": round(simulated.timeline.makespan * 1e3, 6),
        "parts": [
            {"name": name, "sizes": [round(sizes[i] / 2**20, 3) for i in chosen]}
            for name, sizes in simulated.curve_parts.items()
        ],
    }


def _edges(plan: PlanData) -> list[list[str]]:
    return [
        [
            format_seconds(edge.seconds),
            f"{edge.count} x {' + '.join(edge.kinds)}",
            edge.tensor,
            edge.reader,
            format_bytes(edge.num_bytes),
            edge.source,
        ]
        for edge in priced_plan(plan).edges[:_MOST_EDGES]
        if edge.seconds >= _LEAST_EDGE_SECONDS
    ]


def _held(plan: PlanData) -> list[list[str]]:
    """The largest buffers at the peak; equal ones in one row."""
    graph = plan.require_program()
    counts: dict[tuple[str, ...], int] = defaultdict(int)
    for held in held_at_peak(graph, plan.topology, plan.configurations, plan.repeated):
        tensor, eqn = (
            graph.program.tensors[held.tensor],
            graph.program.equations[graph.values.producer[held.tensor]],
        )
        where = short_source(_compat.eqn_source_line(eqn.origin))
        counts[
            format_bytes(held.num_bytes), _aval(tensor), f"{eqn.name} ({eqn.phase})", where, held.rule
        ] += 1
    return [[f"{n} x {row[0]}", *row[1:]] for row, n in list(counts.items())[:_MOST_HELD]]


def _aval(tensor: Any) -> str:
    return f"{tensor.dtype.name}[{','.join(map(str, tensor.shape))}]"


def _arguments(plan: PlanData, cuts: dict[str, Any]) -> list[dict[str, Any]]:
    rows = leaf_rows(plan)
    layouts = {row.path: layout for row, layout in zip(rows, plan.input_shardings, strict=True)}
    found = []
    for of in fold_leaves(rows):
        layout, names = layouts[of.first.path], [own_name(name, d) for d, (name, _) in enumerate(of.first.dims)]
        found.append(
            {
                "path": of.path,
                "count": of.count,
                "what": f"{of.first.role}, {of.first.aval}",
                "split": of.first.split,
                "spec": of.first.spec,
                "size": f"{format_bytes(of.first.num_bytes)}, a device holds {format_bytes(of.first.local_bytes)}",
                "cut": _cut_key(layout, names, plan.topology, cuts),
            }
        )
    return found


def _activations(graph: StepGraph, plan: PlanData, cuts: dict[str, Any]) -> list[dict[str, Any]]:
    """Results of the dots and convolutions of the forward pass, by source line."""
    counts: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for eqn in graph.program.equations:
        for t in eqn.results:
            group = graph.grouping.tensor_group[t]
            if (
                eqn.phase != "forward"
                or group == UNGROUPED
                or graph.grouping.groups[group].kind != "contraction"
            ):
                continue
            config = plan.configurations[group]
            dims = graph.spaces[group].tensor_dims.get(t)
            if dims is None:
                continue
            layout = Sharding(tuple(tuple(a for c in dim for a in config[c]) for dim in dims))
            names = [graph.named.name_at(t, d) for d in range(len(dims))]
            ways = layout.num_splits(plan.topology.axes)
            split = " x ".join(
                f"{name or f'axis {d}'}/{n}" for d, (name, n) in enumerate(zip(names, ways)) if n > 1
            )
            key = _cut_key(layout, names, plan.topology, cuts)
            where = short_source(_compat.eqn_source_line(eqn.origin)) or "no source line"
            counts[where, f"{eqn.name}, {_aval(graph.program.tensors[t])}", split or "whole", key] += 1
    return [
        {"path": where, "count": n, "what": what, "split": split, "spec": "", "size": "", "cut": key}
        for (where, what, split, key), n in counts.items()
    ]


def _cut_key(layout: Sharding, names: Sequence[str], topology: Topology, cuts: dict[str, Any]) -> str:
    """The key of a picture in ``cuts``, which is added where it is new; arrays cut alike share it."""
    key = repr((layout.dims, tuple(names)))
    if key not in cuts:
        cuts[key] = cut_of(layout, names, topology)
    return key


def cut_of(layout: Sharding, names: Sequence[str], topology: Topology) -> dict[str, Any]:
    """A grid of the blocks of an array, and the devices that hold each.

    Across goes the last dimension of the array, down the others together, as a matrix is written; where the last is
    whole and several others are split, the first of them goes down and the rest across. ``cells`` is empty where there
    are too many blocks to look at.

    Example:
      >>> cut_of(Sharding(((0,), ())), ["batch", "hidden"], Topology.parse("h100:4"))["cells"]
      [['0-1'], ['2-3']]
    """
    ways = layout.num_splits(topology.axes)
    split = [d for d, n in enumerate(ways) if n > 1]
    last = [d for d in split if d == len(ways) - 1]
    columns = last if last or len(split) < 2 else split[1:]
    rows = [d for d in split if d not in columns]
    shape = tuple(math.prod(ways[d] for d in dims) for dims in (rows, columns))
    titles = [" x ".join(f"{names[d] or f'axis {d}'}/{ways[d]}" for d in dims) for dims in (rows, columns)]
    if math.prod(shape) > _MOST_CELLS:
        return {"down": titles[0], "across": titles[1], "cells": []}
    sizes = tuple(axis.size for axis in topology.axes)
    held: dict[tuple[int, int], list[int]] = defaultdict(list)
    for device in range(topology.num_devices):
        at = np.unravel_index(device, sizes) if sizes else ()
        held[_block(layout, rows, at, sizes), _block(layout, columns, at, sizes)].append(device)
    cells = [[_ranges(held[r, c]) for c in range(shape[1])] for r in range(shape[0])]
    return {"down": titles[0], "across": titles[1], "cells": cells}


def _block(layout: Sharding, dims: Sequence[int], at: Sequence[Any], sizes: Sequence[int]) -> int:
    """The number of the block along some dimensions, the last one fastest."""
    number = 0
    for axis in (a for d in dims for a in layout.dims[d]):
        number = number * sizes[axis] + int(at[axis])
    return number


def _ranges(devices: Sequence[int]) -> str:
    """Such as ``0-3, 8-11``."""
    runs: list[list[int]] = []
    for device in devices:
        if runs and runs[-1][1] == device - 1:
            runs[-1][1] = device
        else:
            runs.append([device, device])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _difference(plan: PlanData, frontier: FrontierData[PlanData]) -> dict[str, str] | None:
    """To the plan from the nearest reference: the nearest in the ratios of time and of memory."""
    others = {
        name: other for name, other in frontier.references.items() if other.fingerprint == plan.fingerprint
    }
    if not others:
        return None

    def distance(name: str) -> float:
        time = math.log(others[name].time_seconds / plan.time_seconds)
        return math.hypot(time, math.log(max(others[name].memory_bytes, 1) / max(plan.memory_bytes, 1)))

    name = min(others, key=distance)
    if others[name].is_same_program(plan):
        return {"reference": name, "text": "this plan is that reference"}
    return {"reference": name, "text": str(diff(others[name], plan))}
