"""A frontier and a plan as small tables for notebooks; all text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from jaxplan.core._units import format_bytes, format_gib, format_milliseconds, format_seconds
from jaxplan.plans._frontier_data import FrontierData
from jaxplan.plans._outline import CELLS
from jaxplan.plans._plan_data import PlanData
from jaxplan.plans._rows import collective_rows, fold_leaves, leaf_rows

_MOST_ROWS = 24


def frontier_html(frontier: FrontierData[PlanData]) -> str:
    """One row a plan: number or name, time, memory, marks, and how it is split."""
    rows = [
        (f"#{number}", plan, ", ".join(frontier.marks(plan))) for number, plan in enumerate(frontier.points)
    ]
    limit = frontier.memory_limit_bytes
    for name, plan in frontier.references.items():
        rows.append((name, plan, "over the limit" if limit is not None and plan.memory_bytes > limit else ""))
    caption = f"{len(frontier)} plans that nothing beats in both time and memory; below them the references"
    return _table(
        ("plan", "time ms", "GiB", "", *CELLS),
        (
            (
                name,
                format_milliseconds(plan.time_seconds),
                format_gib(plan.memory_bytes),
                mark,
                *plan.outline.cells(),
            )
            for name, plan, mark in rows
        ),
        caption,
    )


def plan_html(plan: PlanData) -> str:
    """The figures of a plan, and its arguments, repeated layers folded and the largest first."""
    figures = [
        ("step", f"{format_seconds(plan.time_seconds)}: {format_seconds(plan.compute_seconds)} compute, "
         f"{format_seconds(plan.communication_seconds)} communication, "
         f"{format_seconds(plan.hidden_seconds)} of it beside compute"),
        ("memory", f"{format_bytes(plan.memory_bytes)} per device"),
        *((part, format_bytes(size)) for part, size in plan.memory_parts.items()),
        *((f"{row.count} x {row.kind} over {row.num_devices}", format_seconds(row.seconds))
          for row in collective_rows(plan)),
    ]  # fmt: skip
    folded = sorted(fold_leaves(leaf_rows(plan)), key=lambda of: -of.count * of.first.local_bytes)
    left = sum(of.count for of in folded[_MOST_ROWS:])
    arguments = _table(
        ("argument", "alike", "array", "split", "PartitionSpec"),
        (
            (of.path, str(of.count), of.first.aval, of.first.split, of.first.spec)
            for of in folded[:_MOST_ROWS]
        ),
        f"arguments, the largest first{f'; {left} more' if left else ''}",
    )
    title = f"{plan.name} on {plan.topology.name}: {plan.summary}"
    return f"{_table(('', ''), figures, title)}<details><summary>arguments</summary>{arguments}</details>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f"<table><caption>{html.escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )
