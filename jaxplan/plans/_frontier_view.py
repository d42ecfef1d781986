"""How a frontier is shown as text."""

from __future__ import annotations

import io
import shutil
import textwrap
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxplan.core._units import format_bytes, format_gib, format_milliseconds, format_seconds
from jaxplan.errors import ArgumentError
from jaxplan.plans._certificate import proven_points
from jaxplan.plans._frontier_data import FrontierData, spread
from jaxplan.plans._outline import CELLS
from jaxplan.plans._plan_data import PlanData

_MIN_WIDTH, _MAX_WIDTH = 80, 120  # characters
_COMPACT_WIDTH = 100
_FULL_LINE = 75  # a line of this length has no room for another part
_KEPT = "\0"  # stands for a space at which no line is broken
_MARK_WIDTH = 17


def draw_table(frontier: FrontierData[PlanData], *, max_rows: int, width: int | None, verbose: bool) -> str:
    """Return the points, then the references, as text of at most `width` characters a line."""
    for name, value in (("max_rows", max_rows), ("width", 1 if width is None else width)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{name}={value!r} is not understood; expected a whole number of at least 1")
    shown = spread(frontier, max_rows)
    draw = _verbose_table if verbose else _compact_table
    references = [] if verbose else _compact_references(frontier, min(_columns(width), _COMPACT_WIDTH))
    footer = [*references, *_footer(frontier, len(shown))]
    return print_table(draw(frontier, shown), footer, width, fold=verbose)


def _compact_table(frontier: FrontierData[PlanData], shown: Sequence[int]) -> Table:
    """One line a point."""
    table = _empty_table("#", "time ms", "GiB")
    table.add_column("", overflow="fold")
    table.add_column("split", overflow="fold")
    cells = [_cells(frontier.points[index]) for index in shown]
    used = [c for c, column in enumerate(zip(*cells, strict=True)) if c == 0 or set(column) != {"-"}]
    for c in used[1:]:
        table.add_column(CELLS[c], no_wrap=True)
    for index, row in zip(shown, cells, strict=True):
        plan = frontier.points[index]
        mark = " ".join([*frontier.marks(plan), *_verified_mark(plan)])
        table.add_row(str(index), *_time_and_memory(plan), mark, *[Text(row[c]) for c in used])
    return table


def _cells(plan: PlanData) -> tuple[str, ...]:
    """The columns of `Outline.cells`, the number of micro-batches beside the split, the memory beside the arrays."""
    split, state, parameters, *others = plan.outline.cells()
    split = f"{len(plan.stages)} stages of {split}" if plan.stages else split
    split = ", ".join(map(str, filter(None, (split, plan.sequences, plan.microbatches))))
    if plan.offload and plan.offload.cell:
        state = f"{state} {plan.offload.cell}".removeprefix("- ")
    if plan.offload and plan.offload.parameters:
        parameters = f"{parameters} host".removeprefix("- ")
    return (split, state, parameters, *others)


def _verbose_table(frontier: FrontierData[PlanData], shown: Sequence[int]) -> Table:
    """Parts of the time, proofs, each plan in a sentence, and the references; ``comm.`` less ``hidden`` adds up."""
    table = _empty_table("#", "time ms", "GiB", "compute", "comm.", "hidden", "gap")
    table.add_column("", max_width=_MARK_WIDTH, overflow="fold")
    table.add_column("plan", overflow="fold")
    for index in shown:
        plan = frontier.points[index]
        table.add_row(str(index), *_row(plan, " ".join([*frontier.marks(plan), *_verified_mark(plan)])))
    if frontier.references:
        table.add_section()
    for name, plan in frontier.references.items():
        table.add_row("ref", *_row(plan, _reference_mark(frontier, name, plan)))
    return table


def _empty_table(*right: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for header in right:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _time_and_memory(plan: PlanData) -> tuple[str, str]:
    return format_milliseconds(plan.time_seconds), format_gib(plan.memory_bytes)


def print_table(table: Table, footer: Sequence[str], width: int | None, *, fold: bool = True) -> str:
    """Return a table and the lines below it as text of at most `width` characters a line.

    Lines below that are longer are folded, or else cut.
    """
    console = Console(
        file=io.StringIO(), width=_columns(width), color_system=None, force_terminal=False, legacy_windows=False
    )
    console.print(table)
    for line in footer:
        console.print(Text(line), no_wrap=not fold, overflow="fold" if fold else "ellipsis")
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().strip("\n").splitlines())


def _columns(width: int | None) -> int:
    return width or min(max(shutil.get_terminal_size().columns, _MIN_WIDTH), _MAX_WIDTH)


def _row(plan: PlanData, mark: str) -> tuple[str | Text, ...]:
    gap = "-" if plan.gap is None else "0" if plan.gap == 0 else f"{plan.gap:.{1 if plan.gap < 1 else 0}%}"
    seconds = (plan.compute_seconds, plan.communication_seconds, plan.hidden_seconds)
    return (*_time_and_memory(plan), *map(format_milliseconds, seconds), gap, Text(mark), Text(plan.summary))


def _verified_mark(plan: PlanData) -> list[str]:
    return [] if plan.verified is None else ["verified"]


def _reference_mark(frontier: FrontierData[PlanData], name: str, plan: PlanData) -> str:
    limit = frontier.memory_limit_bytes
    over = ["(over limit)"] if limit is not None and plan.memory_bytes > limit else []
    return " ".join([name, *over, *_verified_mark(plan)])


def _footer(frontier: FrontierData[PlanData], num_shown: int) -> list[str]:
    lines: list[str] = []
    lines.append(f"{len(frontier)} plan{'s' if len(frontier) > 1 else ''} that nothing beats in both time and memory")
    if num_shown < len(frontier):
        lines[-1] += f", {num_shown} of them shown"
    if frontier.memory_limit_bytes is not None:
        lines[-1] += f"; limit {format_bytes(frontier.memory_limit_bytes)} per device"
    if frontier.search_seconds is not None:
        searched = f"searched for {format_seconds(frontier.search_seconds)}"
        lines = [*lines, searched] if len(lines[-1]) > _FULL_LINE else [*lines[:-1], f"{lines[-1]}; {searched}"]
    if (interval := _interval(frontier.points)) is not None:
        lines.append(interval)
    if (proven := proven_points(frontier.points)) is not None:
        lines.append(proven)
    return lines + [f"note: {note}" for note in frontier.notes]


def _interval(points: Sequence[PlanData]) -> str | None:
    """How far compiled memory lies from that of the points, as far as they are predicted."""
    predicted = [plan.memory_interval for plan in points if plan.verified is None]
    known = [found for found in predicted if found is not None]
    if not known:
        return None
    low, high = min(of.low for of in known) - 1, max(of.high for of in known) - 1
    least, most = (f"{abs(bound):.0%} {'more' if bound > 0 else 'less'}" for bound in (low, high))
    return f"compiled, 9 of 10 such plans take {least} to {most} memory than predicted"


def _compact_references(frontier: FrontierData[PlanData], columns: int) -> list[str]:
    """Time and memory of each reference, a few on a line."""
    limit = frontier.memory_limit_bytes
    words = []
    for name, plan in frontier.references.items():
        over = "!" if limit is not None and plan.memory_bytes > limit else ""
        words.append(f"{name} {' '.join(_time_and_memory(plan))}{over}")
    if not words:
        return []
    start = "references (ms GiB"
    start += ", ! over the limit): " if any(word.endswith("!") for word in words) else "): "
    lines = textwrap.wrap(
        start + ", ".join(word.replace(" ", _KEPT) for word in words), columns, subsequent_indent="  "
    )
    return [line.replace(_KEPT, " ") for line in lines]
