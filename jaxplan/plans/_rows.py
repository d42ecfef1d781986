"""A plan as frozen rows, which all views share: text, JSON, HTML."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.core._paths import readable_path
from jaxplan.ir import FactorClass, StepGraph, parse_aval
from jaxplan.mesh import Sharding, Topology, collective_seconds
from jaxplan.plans._plan_data import PlanData

_OF_AN_ARRAY = re.compile(r"\.\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafRow:
    """An argument of the step.

    Attributes:
      path: as people write it, such as ``state/params/block_0/up/kernel``.
      role: ``parameter``, ``state`` (optimizer slots, statistics, caches) or ``data``.
      aval: dtype and shape, such as ``float32[64,256]``.
      dims: per dimension its name in the step (empty where it has none), and over how many devices it is split.
      spec: the PartitionSpec over the atomic axes of the plan, as text.
      num_bytes, local_bytes: of the whole array, and of the piece on one device.
    """

    path: str
    role: str
    aval: str
    dims: tuple[tuple[str, int], ...]
    spec: str
    num_bytes: int
    local_bytes: int

    @property
    def split(self) -> str:
        """Such as ``hidden/4 x vocabulary/2``, ``whole`` where nothing is split; a dimension without a common name is
        an axis of this array."""
        parts = [f"{own_name(name, d)}/{ways}" for d, (name, ways) in enumerate(self.dims) if ways > 1]
        return " x ".join(parts) or "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedLeaves:
    """Leaves with paths that differ in the numbers of layers alone, alike in shape and sharding."""

    path: str
    count: int
    first: LeafRow


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """Collectives of one kind over the same devices; bytes and seconds of all of them in one step of one device."""

    kind: str
    axes: tuple[str, ...]
    num_devices: int
    count: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """Groups of operators that are split alike."""

    kind: str
    split: str
    count: int


def short_source(line: str) -> str:
    """A source line without the folders of its file: ``train.py:52 (step)``."""
    return line.rpartition("/")[2]


def own_name(name: str, axis: int) -> str:
    """The name of a dimension beside an array that has it.

    It is ``axis 1`` where there is no common name; elsewhere such a dimension has that of another array (``down.0``).

    Example:
      >>> own_name("heads", 1), own_name("params/down.0", 1), own_name("", 1)
      ('heads', 'axis 1', 'axis 1')
    """
    return f"axis {axis}" if not name or _OF_AN_ARRAY.search(name) else name


def fold_numbers(path: str) -> str:
    """A path with the numbers of layers left open: ``params/block_3/up`` -> ``params/block_*/up``."""
    return "/".join(re.sub(r"(?<=_)\d+$|^\d+$", "*", key) if i else key for i, key in enumerate(path.split("/")))


def leaf_rows(plan: PlanData) -> tuple[LeafRow, ...]:
    """Every argument, in order."""
    names = plan.argument_names or (plan.graph.program.argument_names if plan.graph is not None else ())
    return tuple(
        _leaf_row(readable_path(path, names), aval, layout, plan.topology, role, dims)
        for path, aval, layout, role, dims in zip(
            plan.in_paths, plan.in_avals, plan.input_shardings, plan.in_roles, plan.in_dims, strict=True
        )
    )


def _leaf_row(
    path: str, aval: str, layout: Sharding, topology: Topology, role: str, dims: tuple[str, ...]
) -> LeafRow:
    shape, itemsize = _shape_and_itemsize(aval)
    return LeafRow(
        path=path,
        role=role,
        aval=aval,
        dims=tuple(zip(dims, layout.num_splits(topology.axes), strict=True)),
        spec=_spec(layout, topology),
        num_bytes=math.prod(shape) * itemsize,
        local_bytes=math.prod(layout.local_shape(shape, topology.axes)) * itemsize,
    )


def _shape_and_itemsize(aval: str) -> tuple[tuple[int, ...], int]:
    """Of text such as ``float32[16,32]``; bytes of an element by the digits of its dtype, 1 where there are none."""
    dtype, shape = parse_aval(aval)
    bits = re.search(r"\d+", dtype)
    return shape, max(1, int(bits[0]) // 8) if bits else 1


def _spec(layout: Sharding, topology: Topology) -> str:
    entries = []
    for dim in layout.dims:
        names = [topology.axes[a].name for a in dim]
        entries.append("None" if not names else repr(names[0]) if len(names) == 1 else repr(tuple(names)))
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"


def fold_leaves(rows: Sequence[LeafRow]) -> tuple[FoldedLeaves, ...]:
    """Leaves of repeated layers together, in order of first appearance."""
    found: dict[tuple[object, ...], list[LeafRow]] = defaultdict(list)
    for row in rows:
        ways = tuple(n for _, n in row.dims)
        found[fold_numbers(row.path), row.aval, ways, row.spec].append(row)
    return tuple(
        FoldedLeaves(path=fold_numbers(of[0].path) if len(of) > 1 else of[0].path, count=len(of), first=of[0])
        for of in found.values()
    )


def collective_rows(plan: PlanData) -> tuple[CollectiveRow, ...]:
    """The predicted collectives, the longest first."""
    topology = plan.topology
    totals: dict[tuple[str, tuple[int, ...]], list[float]] = defaultdict(lambda: [0, 0, 0.0])
    pooled: set[tuple[str, tuple[int, ...]]] = set()
    for c in plan.prediction.collectives:
        entry = totals[c.kind, c.axes]
        entry[0] += c.count
        entry[1] += c.count * c.num_bytes
        entry[2] += c.count * collective_seconds(topology, c.kind, c.num_bytes, c.axes, c.latency_share)
        if not c.latency_share:
            pooled.add((c.kind, c.axes))
    rows = [
        CollectiveRow(
            kind=kind,
            axes=tuple(topology.axes[a].name for a in axes),
            num_devices=math.prod(topology.axes[a].size for a in axes),
            count=int(count),
            num_bytes=int(size),
            seconds=seconds + (collective_seconds(topology, kind, 0, axes) if (kind, axes) in pooled else 0.0),
        )
        for (kind, axes), (count, size, seconds) in totals.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.seconds, row.kind, row.axes)))


def operator_rows(plan: PlanData) -> tuple[OperatorRow, ...]:
    """Groups of operators by kind and split, the most frequent first; none without the program."""
    graph = plan.graph
    if graph is None:
        return ()
    rows: dict[tuple[str, str], int] = defaultdict(int)
    for group, config in zip(graph.grouping.groups, plan.configurations, strict=True):
        rows[group.kind, group_split(graph, plan.topology, group.index, config)] += 1
    ordered = sorted(rows.items(), key=lambda item: (-item[1], item[0]))
    return tuple(OperatorRow(kind=kind, split=split, count=count) for (kind, split), count in ordered)


def group_split(graph: StepGraph, topology: Topology, group: int, config: Sequence[tuple[int, ...]]) -> str:
    """Such as ``batch/4 x heads/2``; ``whole`` where nothing is split."""
    splits = [
        f"{class_name(graph, cls)}/{math.prod(topology.axes[a].size for a in axes)}"
        for cls, axes in zip(graph.spaces[group].classes, config, strict=True)
        if axes
    ]
    return " x ".join(splits) or "whole"


def class_name(graph: StepGraph, cls: FactorClass) -> str:
    """The named dimension of a factor class."""
    if not cls.sizes:
        return "partial sums"
    return graph.named.dimensions[cls.named_dimension].name if cls.named_dimension >= 0 else "?"
