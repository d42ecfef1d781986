"""A plan in words and tables, for people to judge it by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jaxplan.core._units import format_bytes, format_seconds
from jaxplan.cost import held_at_peak
from jaxplan.partition import compiler_options
from jaxplan.plans._certificate import certificate
from jaxplan.plans._explain_lowering import lowering_rows
from jaxplan.plans._explain_state import state_rows
from jaxplan.plans._pinned import pin_lines
from jaxplan.plans._plan_data import PlanData
from jaxplan.plans._rows import LeafRow, collective_rows, fold_leaves, leaf_rows, operator_rows

_MOST_ROWS = 24
_MOST_HELD = 6


def explain(plan: PlanData) -> str:
    """Topology, cost, memory by part, collectives, and how dimensions and parameters are split; repeated layers are
    folded into one line."""
    lines = [
        f"{plan.name} on {plan.topology.name}: {plan.summary}",
        f"time    {format_seconds(plan.time_seconds)} = compute {format_seconds(plan.compute_seconds)}"
        f" + communication {format_seconds(plan.communication_seconds)}{_hidden(plan)}{_link(plan)}",
        f"bound   {certificate(plan)}",
        f"memory  {_memory(plan)}",
    ]
    parts = sorted(plan.memory_parts.items(), key=lambda part: -part[1])
    lines += [f"  {part:<26} {format_bytes(size)}" for part, size in parts]
    if plan.offload is not None:
        of = f"{plan.offload}, {len(plan.offload.arguments)} leaves"
        lines += [f"host    {format_bytes(plan.host_bytes)} per device: {of}"]
    if plan.graph is not None:
        lines += ["  largest buffers at the peak, and the compiler rule of each (docs/compiler_rules.md)", *_held(plan)]
        if not plan.overlapped:
            simulated = plan.simulate()
            lines.insert(
                2,
                f"        {format_seconds(simulated.time_seconds)} simulated with overlap: "
                f"{format_seconds(simulated.hidden_seconds)} of communication beside compute",
            )
    if plan.pins:
        lines += ["pins", *pin_lines(plan.pins)]
    lines += ["collectives per step", *(_collectives(plan) or ["  none"])]
    lines += ["arguments", *_leaves(plan)]
    if plan.not_kept:
        lines += ["not laid out as before", *(f"  {line}" for line in plan.not_kept)]
    if plan.graph is not None:
        lines += ["state (laid out alike as argument and as result)", *state_rows(plan.graph.program)]
        lines += ["operators by split", *_operators(plan)]
    options = compiler_options(plan, plan.topology.chip.aot_platform)
    if options:
        flags = " ".join(f"--{name}={value}" for name, value in options.items())
        lines += ["compiler options, used by jit() and audit(); for other programs", f"  XLA_FLAGS='{flags}'"]
    if plan.decided is not None:
        lines += ["lowering", *lowering_rows(plan.lowering)]
    return "\n".join(lines)


def explain_data(plan: PlanData) -> dict[str, Any]:
    """The same as plain data, no row left out."""
    return {
        "plan": plan.name,
        "topology": plan.topology.name,
        "summary": plan.summary,
        "time_seconds": plan.time_seconds,
        "compute_seconds": plan.compute_seconds,
        "communication_seconds": plan.communication_seconds,
        "hidden_seconds": plan.hidden_seconds,
        "host_seconds": plan.host_seconds,
        "host_bytes": plan.host_bytes,
        "memory_bytes": plan.memory_bytes,
        "memory_interval_bytes": plan.memory_interval_bytes,
        "memory_parts": dict(plan.memory_parts),
        "proven": certificate(plan),
        "compiler_options": compiler_options(plan, plan.topology.chip.aot_platform),
        "pins": [_fields(pin) for pin in plan.pins],
        "collectives": [_fields(row) for row in collective_rows(plan)],
        "not_kept": list(plan.not_kept),
        "arguments": [_fields(row) | {"split": row.split} for row in leaf_rows(plan)],
        "operators": [_fields(row) for row in operator_rows(plan)],
    }


def _fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def _hidden(plan: PlanData) -> str:
    return f" - hidden {format_seconds(plan.hidden_seconds)}" if plan.hidden_seconds else ""


def _link(plan: PlanData) -> str:
    return f" + link to the host {format_seconds(plan.host_seconds)}" if plan.host_seconds else ""


def _memory(plan: PlanData) -> str:
    if plan.verified is None:
        between = plan.memory_interval_bytes
        text = f"{format_bytes(plan.memory_bytes)} per device"
        if between is None:
            return text
        return f"{text} predicted; such plans compile to {' to '.join(map(format_bytes, between))} in 9 of 10 cases"
    predicted = format_bytes(plan.prediction.memory_bytes)
    return f"{format_bytes(plan.memory_bytes)} per device as compiled; {predicted} predicted"


def _held(plan: PlanData) -> list[str]:
    """The largest tensors that the step computes; equal ones in one row."""
    graph, rows = plan.require_program(), dict[str, list[int]]()
    for t, num_bytes, rule in held_at_peak(graph, plan.topology, plan.configurations, plan.repeated):
        tensor, eqn = graph.program.tensors[t], graph.program.equations[graph.values.producer[t]]
        shape = ",".join(map(str, tensor.shape))
        text = f"{format_bytes(num_bytes)} {tensor.dtype.name}[{shape}] of {eqn.name} ({eqn.phase}): {rule}"
        rows.setdefault(text, []).append(t)
    return [f"  {len(tensors):>5} x {text}" for text, tensors in list(rows.items())[:_MOST_HELD]]


def _collectives(plan: PlanData) -> list[str]:
    return [
        f"  {row.count:>5} x {row.kind:<18} over {row.num_devices} ({' '.join(row.axes)}): "
        f"{format_bytes(row.num_bytes)}, {format_seconds(row.seconds)}"
        for row in collective_rows(plan)
    ]


def _leaves(plan: PlanData) -> list[str]:
    """Arguments of repeated layers in one line, the largest first; optimizer slots that are laid out like their
    parameter are counted alone."""
    rows = leaf_rows(plan)
    like = _slots_like_parameters(rows)
    folded = fold_leaves([row for row in rows if row.path not in like])
    folded = sorted(folded, key=lambda of: -of.count * of.first.local_bytes)
    shown = folded[:_MOST_ROWS]
    width = max((len(of.path) for of in shown), default=0)
    lines = [
        f"  {f'{of.count} x' if of.count > 1 else '':>5} {of.path:<{width}}  {of.first.aval:<20} {of.first.split}"
        for of in shown
    ]
    lines += _rest(folded[_MOST_ROWS:], sum(of.count for of in folded[_MOST_ROWS:]), "leaves")
    return lines + ([f"  {len(like):>5} leaves of optimizer state, laid out like their parameters"] if like else [])


def _slots_like_parameters(rows: Sequence[LeafRow]) -> frozenset[str]:
    """Paths of state that end as a parameter of the same shape and layout does: ``mu/up`` beside ``params/up``."""
    known = {(*tail, row.aval, row.spec) for row in rows if row.role == "parameter" for tail in _tails(row, 2)}
    slots = [row for row in rows if row.role == "state"]
    return frozenset(
        row.path for row in slots if any((*tail, row.aval, row.spec) in known for tail in _tails(row, len(row.path)))
    )


def _tails(row: LeafRow, most: int) -> list[tuple[str, ...]]:
    """The keys of a path without the first one, the first two, and so on."""
    keys = tuple(row.path.split("/"))
    return [keys[first:] for first in range(1, min(most + 1, len(keys)))]


def _operators(plan: PlanData) -> list[str]:
    rows = operator_rows(plan)
    lines = [f"  {row.count:>4} x {row.kind}: {row.split}" for row in rows[:_MOST_ROWS]]
    return lines + _rest(rows[_MOST_ROWS:], sum(row.count for row in rows[_MOST_ROWS:]), "groups")


def _rest(rows: Iterable[object], count: int, what: str) -> list[str]:
    return [f"  and {count} more {what}"] if list(rows) else []
