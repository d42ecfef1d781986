"""The text of an audit: one row per quantity, then notes that do not fit the cells."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from jaxplan.audit._audit_data import AuditData, CollectiveRow
from jaxplan.audit._hlo_liveness import Holding
from jaxplan.cost import RESIDENTS

_GIB = 2**30
_MIB = 2**20
_MOST_HELD = 8


def audit_table(audit: AuditData, width: int = 140) -> str:
    """Memory, contractions and collectives, predicted beside compiled, as plain text of `width` columns."""
    table = Table(title="predicted against compiled, per device and step", title_justify="left")
    for column in ("what", "over"):
        table.add_column(column)
    for column in ("predicted", "compiled", "ratio"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    table.add_row(*_memory_cells(audit))
    for cells in _part_cells(audit):
        table.add_row(*cells)
    if audit.predicted_host_bytes or audit.compiled_host_bytes:
        table.add_row(*_host_cells(audit))
    table.add_row(*_flops_cells(audit))
    for row in audit.rows:
        table.add_row(*_collective_cells(row))
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, legacy_windows=False).print(table)
    return "\n".join([text.getvalue().rstrip(), *_notes(audit)])


def _ratio(compiled: float, predicted: float) -> str:
    return f"{compiled / predicted:.3f}" if predicted else "-"


def _memory_cells(audit: AuditData) -> tuple[str, ...]:
    predicted, compiled = audit.predicted_memory_bytes, audit.compiled_memory_bytes
    verdict = "rematerialised" if audit.rematerialised else "agrees" if audit.memory_ok else "more"
    cells = (f"{predicted / _GIB:.3f} GiB", f"{compiled / _GIB:.3f} GiB")
    return ("memory", "", *cells, _ratio(compiled, predicted), verdict)


def _part_cells(audit: AuditData) -> list[tuple[str, ...]]:
    """Arguments against arguments, and all else against outputs and temporaries."""
    if not audit.predicted_parts or not audit.compiled_parts:
        return []
    predicted = sum(size for part, size in audit.predicted_parts if part in RESIDENTS)
    compiled = audit.compiled_parts[0][1]
    rows = (
        ("  arguments", predicted, compiled),
        ("  all else", audit.predicted_memory_bytes - predicted, audit.compiled_memory_bytes - compiled),
    )
    return [(what, "", f"{p / _GIB:.3f} GiB", f"{c / _GIB:.3f} GiB", _ratio(c, p), "") for what, p, c in rows]


def _host_cells(audit: AuditData) -> tuple[str, ...]:
    predicted, compiled = audit.predicted_host_bytes, audit.compiled_host_bytes
    cells = (f"{predicted / _GIB:.3f} GiB", f"{compiled / _GIB:.3f} GiB")
    return ("host memory", "", *cells, _ratio(compiled, predicted), "agrees" if audit.host_ok else "differs")


def _flops_cells(audit: AuditData) -> tuple[str, ...]:
    predicted, compiled = audit.predicted_flops, audit.compiled_flops
    verdict = "agrees" if audit.flops_ok else "more"
    cells = (f"{predicted / 1e9:.3f} GFLOP", f"{compiled / 1e9:.3f} GFLOP")
    return ("contractions", "", *cells, _ratio(compiled, predicted), verdict)


def _collective_cells(row: CollectiveRow) -> tuple[str, ...]:
    over = f"{row.group_size} ({' '.join(row.axes) or 'no axes'})"
    cells = (
        f"{row.predicted_count} x {row.predicted_bytes / _MIB:.2f} MiB",
        f"{row.compiled_count} x {row.compiled_bytes / _MIB:.2f} MiB",
    )
    return (row.kind, over, *cells, _ratio(row.compiled_bytes, row.predicted_bytes), row.verdict.value)


def _holding_line(held: Holding) -> str:
    place = f"{held.op_name or '(no name)'} ({held.source})" if held.source else held.op_name or "(no name)"
    return f"{held.num_bytes / _MIB:9.1f} MiB  {held.count} x {held.array}  {place}"


def _notes(audit: AuditData) -> list[str]:
    """Notes that do not fit the cells: sources of disagreement, and quantities that were not counted."""
    notes = ["collectives: how many x their total; the compiler may combine several into one"]
    for what, parts in (("predicted", audit.predicted_parts), ("compiled", audit.compiled_parts)):
        if parts:
            notes.append(
                f"memory, {what}: {', '.join(f'{part} {size / _MIB:.1f}' for part, size in parts)} MiB"
            )
    if audit.held:
        notes.append("compiled temporaries when they are largest:")
        notes += [f"  {_holding_line(held)}" for held in audit.held[:_MOST_HELD]]
    for row in audit.rows:
        if not row.ok and row.examples:
            notes.append(f"{row.verdict.value}: {row.kind} over {row.group_size}, largest from:")
            notes += [f"  {example}" for example in row.examples]
    if audit.rematerialised:
        notes.append(
            "the compiler recomputed values to fit its memory: the compiled memory is what was left after"
        )
    if audit.uncounted_calls:
        notes.append(f"library calls whose work is not counted: {', '.join(audit.uncounted_calls)}")
    if audit.unknown_loops:
        notes.append(f"loops of unknown length, counted once: {', '.join(audit.unknown_loops)}")
    return notes
