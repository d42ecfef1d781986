"""Predicted against compiled: the program that a plan predicted, beside the one that the compiler built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxplan.audit._aot import CompiledReport
from jaxplan.audit._audit_data import FLOPS_TOLERANCE as FLOPS_TOLERANCE
from jaxplan.audit._audit_data import MEMORY_TOLERANCE as MEMORY_TOLERANCE
from jaxplan.audit._audit_data import AuditData, CollectiveRow, Verdict
from jaxplan.audit._audit_table import audit_table
from jaxplan.audit._hlo import Collective
from jaxplan.errors import AuditError

if TYPE_CHECKING:
    from jaxplan.mesh import Topology

BYTES_TOLERANCE = 0.01  # totals of one kind and group within 1 % agree: padding and combined scalars
SMALL_BYTES = 64 * 2**10  # totals below are loss and norm scalars, listed but not judged
SMALL_SHARE = 0.002  # and so are those below this share of all that the program moves: rows at the edges of tiles

_MAX_EXAMPLES = 3

DeviceGroups = frozenset[frozenset[int]]


class PredictedCollective(NamedTuple):
    """`count` collectives over the atomic axes `axes` (indices), each of `num_bytes` per device.

    `num_bytes` is the larger side, as in `Collective`. A plain tuple of the same four items serves as well.
    """

    kind: str
    axes: tuple[int, ...]
    num_bytes: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedProgram:
    """A plan's prediction of one device's program: peak bytes and their parts, dots' FLOPs, collectives, host bytes."""

    memory_bytes: int
    flops: int
    collectives: tuple[PredictedCollective | tuple[str, tuple[int, ...], int, int], ...]
    topology: Topology
    memory_parts: Mapping[str, int] = field(default_factory=dict)
    host_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit(AuditData):
    """`AuditData` with a verdict to raise and a table to print."""

    def check(self) -> None:
        """Raise `AuditError`, with the table, unless `ok`."""
        if not self.ok:
            raise AuditError(f"the compiled program is not what the plan asked for:\n{self.table()}")

    def table(self, width: int = 140) -> str:
        """Predicted against compiled as text of `width` columns, then where disagreements come from."""
        return audit_table(self, width)


def compare(predicted: PredictedProgram, report: CompiledReport) -> Audit:
    """Set a prediction against a compiled program."""
    rows, unexpected = judge_collectives(predicted, report.collectives)
    return Audit(
        predicted_memory_bytes=predicted.memory_bytes,
        compiled_memory_bytes=report.memory_bytes,
        predicted_flops=predicted.flops,
        compiled_flops=report.flops,
        rows=rows,
        rematerialised=report.rematerialised,
        uncounted_calls=report.uncounted_calls,
        unknown_loops=report.unknown_loops,
        unexpected=unexpected,
        predicted_parts=tuple(predicted.memory_parts.items()),
        compiled_parts=report.memory.parts,
        predicted_host_bytes=predicted.host_bytes,
        compiled_host_bytes=report.memory.host_bytes,
        held=report.held,
    )


def judge_collectives(
    predicted: PredictedProgram, collectives: Sequence[Collective]
) -> tuple[tuple[CollectiveRow, ...], tuple[Collective, ...]]:
    """A row for each kind and group of collectives, and the compiled ones of which none was predicted.

    They are compared by total bytes per (kind, device groups), because combiners merge them; the
    groups of predicted ones are those that their atomic axes span over the row-major device order. A compiled
    permute belongs to the smallest predicted permute with groups that hold all its exchanges.
    """
    sizes = tuple(axis.size for axis in predicted.topology.axes)
    names = tuple(axis.name for axis in predicted.topology.axes)
    asked = _totals_by_groups(
        (kind, axis_groups(sizes, axes), b, n) for kind, axes, b, n in predicted.collectives
    )
    made: dict[tuple[str, DeviceGroups], list[Collective]] = {}
    for collective in collectives:
        groups = frozenset(frozenset(group) for group in collective.groups if len(group) > 1)
        made.setdefault((collective.kind, _home(collective.kind, groups, asked)), []).append(collective)
    keys = list(dict.fromkeys([*asked, *made]))
    moved = sum(c.total_bytes for c in collectives)
    small = max(SMALL_BYTES, int(SMALL_SHARE * moved))
    judged = [
        (_row(key, asked.get(key, (0, 0)), made.get(key, ()), sizes, names, small), key) for key in keys
    ]
    unexpected = [c for row, key in judged if row.verdict is Verdict.UNEXPECTED for c in made[key]]
    rows = sorted((row for row, _ in judged), key=lambda row: (row.ok, row.kind, row.group_size, row.axes))
    return tuple(rows), tuple(unexpected)


def axis_groups(sizes: Sequence[int], axes: Iterable[int]) -> DeviceGroups:
    """The sets of devices that differ only along `axes`, devices numbered row-major over all axes."""
    inside = sorted(set(axes))
    outside = [axis for axis in range(len(sizes)) if axis not in inside]
    width = int(np.prod([sizes[axis] for axis in inside]))
    devices = (
        np.arange(int(np.prod(sizes))).reshape(tuple(sizes)).transpose(outside + inside).reshape(-1, width)
    )
    return frozenset(frozenset(map(int, group)) for group in devices)


def spanning_axes(sizes: Sequence[int], groups: DeviceGroups) -> tuple[int, ...] | None:
    """The atomic axes with exactly the groups `groups`, or None if no set of axes has them."""
    axes = varying_axes(sizes, groups)
    return axes if axis_groups(sizes, axes) == groups else None


def varying_axes(sizes: Sequence[int], groups: Iterable[Iterable[int]]) -> tuple[int, ...]:
    """The atomic axes along which devices of some group differ."""
    coordinates = np.stack(np.unravel_index(np.arange(int(np.prod(sizes))), tuple(sizes)), axis=-1)
    varying: set[int] = set()
    for group in groups:
        members = coordinates[sorted(group)]
        varying |= {axis for axis in range(len(sizes)) if np.ptp(members[:, axis]) > 0}
    return tuple(sorted(varying))


def _totals_by_groups(
    collectives: Iterable[tuple[str, DeviceGroups, int, int]],
) -> dict[tuple[str, DeviceGroups], tuple[int, int]]:
    totals: dict[tuple[str, DeviceGroups], tuple[int, int]] = {}
    for kind, groups, num_bytes, count in collectives:
        before = totals.get((kind, groups), (0, 0))
        totals[kind, groups] = (before[0] + count, before[1] + num_bytes * count)
    return totals


def _home(
    kind: str, groups: DeviceGroups, asked: dict[tuple[str, DeviceGroups], tuple[int, int]]
) -> DeviceGroups:
    """The predicted groups that a compiled collective counts towards: its own, but for permutes."""
    if kind != "collective-permute" or (kind, groups) in asked:
        return groups
    holders = [
        candidate
        for other_kind, candidate in asked
        if other_kind == kind and all(any(group <= wide for wide in candidate) for group in groups)
    ]
    return min(holders, key=lambda candidate: max(map(len, candidate)), default=groups)


def _row(
    key: tuple[str, DeviceGroups],
    asked: tuple[int, int],
    made: Sequence[Collective],
    sizes: Sequence[int],
    names: Sequence[str],
    small: int,
) -> CollectiveRow:
    kind, groups = key
    axes = spanning_axes(sizes, groups)
    largest = sorted(made, key=lambda c: -c.total_bytes)
    compiled_bytes = sum(c.total_bytes for c in made)
    return CollectiveRow(
        kind=kind,
        axes=tuple(names[axis] for axis in axes or ()),
        group_size=max(map(len, groups)),
        predicted_count=asked[0],
        predicted_bytes=asked[1],
        compiled_count=sum(c.count for c in made),
        compiled_bytes=compiled_bytes,
        verdict=_verdict(asked[1], compiled_bytes, small),
        examples=tuple(dict.fromkeys(_place(c) for c in largest))[:_MAX_EXAMPLES],
    )


def _verdict(predicted_bytes: int, compiled_bytes: int, small: int) -> Verdict:
    if max(predicted_bytes, compiled_bytes) < small:
        return Verdict.SMALL
    if predicted_bytes == 0:
        return Verdict.UNEXPECTED
    if compiled_bytes == 0:
        return Verdict.MISSING
    if abs(compiled_bytes - predicted_bytes) <= max(BYTES_TOLERANCE * predicted_bytes, SMALL_BYTES):
        return Verdict.AGREES
    return Verdict.MORE if compiled_bytes > predicted_bytes else Verdict.FEWER


def _place(collective: Collective) -> str:
    name = collective.op_name or "(no name)"
    return f"{name} ({collective.source})" if collective.source else name
