"""Dimensions that the devices do not divide, and the savings of padding them.

A split is made only where it is even, so a batch of 30 on 8 devices is planned with at most 2 parts. That is said, with
figures of the plan at hand and not of a plan that was never made: the arithmetic and the memory of one device in
the operators and tensors with the dimension, as planned and if a padded dimension were split evenly.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from jaxplan.core._units import format_bytes, format_seconds
from jaxplan.cost import CostModel, flops_of
from jaxplan.ir import WHOLE, Configuration, StepGraph

LEAST_SHARE = 0.1
"""A dimension is mentioned when operators with it do so much of the arithmetic, or tensors with it take so much."""
MOST_PADDING = 0.25
"""Padding by more than this fraction is not proposed; the batch may be doubled."""
LEAST_GAIN = 0.02
"""Padding gains when it spares this fraction of a device's arithmetic or memory."""
MOST_NOTES = 3

_NOTE_MSG = (
    "dimension {name} (size {size}, {where}) is split over at most {parts} of {devices} devices, because more do not "
    "divide it; padded to {padded} it could be split over {wanted}: {gain}"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UnevenDimension:
    """A named dimension with a size that keeps a plan from splitting it over more devices.

    Attributes:
      name, size: of the dimension; the size is the one that does not divide.
      where: an input that holds it, ``[1]['x'] axis 0``, or the line of the first operator that does.
      parts: into how many parts it can be split.
      padded, wanted: the size to pad it to, and into how many parts it can then be split.
      flops, padded_flops: operations of one device in contractions that carry it, planned and padded.
      kept_bytes, padded_kept_bytes: state, batch and saved activations of one device that carry it.
      is_batch: whether examples are independent along it (`jaxplan.ir.Batch`).
      gains: whether padding spares a noticeable part of the whole step's arithmetic or memory.
    """

    name: str
    size: int
    where: str
    parts: int
    padded: int
    wanted: int
    flops: float
    padded_flops: float
    kept_bytes: float
    padded_kept_bytes: float
    is_batch: bool
    gains: bool

    def describe(self, num_devices: int, communication_seconds: float) -> str:
        """One line for people; the seconds are those that the plan communicates in a step."""
        return _NOTE_MSG.format(
            name=repr(self.name),
            size=self.size,
            where=self.where,
            parts=self.parts if self.parts > 1 else "one",
            devices=num_devices,
            padded=self.padded,
            wanted=self.wanted,
            gain=self._gain(communication_seconds),
        )

    def _gain(self, communication_seconds: float) -> str:
        flops = f"computes {_flop(self.padded_flops)} instead of {_flop(self.flops)}"
        kept = f"keeps {format_bytes(round(self.padded_kept_bytes))} instead of {format_bytes(round(self.kept_bytes))}"
        spared = [
            text
            for text, before, after in (
                (flops, self.flops, self.padded_flops),
                (kept, self.kept_bytes, self.padded_kept_bytes),
            )
            if after < (1 - LEAST_GAIN) * before
        ]
        if not (self.gains and spared):
            return (
                "that spares no arithmetic and no memory, because the fastest plan splits what carries it otherwise; "
                f"it communicates for {format_seconds(communication_seconds)} a step"
            )
        return f"at best a device {' and '.join(spared)} in what carries it (fastest plan)"


def uneven_dimensions(model: CostModel, chosen: Sequence[Configuration]) -> tuple[UnevenDimension, ...]:
    """Dimensions that padding would split over more devices, those that carry most of the step first.

    Args:
      model: the priced step.
      chosen: per group the configuration of the plan that figures are given for.
    """
    found = []
    sizes = _indivisible(model.graph, model.topology.num_devices)
    if not sizes:
        return ()
    loads = list(_loads(model, chosen))
    total, by_dimension = _Totals.of(loads), defaultdict(list)
    for load in loads:
        for k in load.dimensions:
            by_dimension[k].append(load)
    for k, (size, parts) in sorted(sizes.items()):
        is_batch = model.graph.named.dimensions[k].name == "batch"
        wanted = _wanted_parts(size, parts, model.topology.num_devices, 1.0 if is_batch else MOST_PADDING)
        carrying = by_dimension[k]
        share = _Totals.of(carrying).share_of(total)
        if wanted is None or share < LEAST_SHARE:
            continue
        found.append((-share, k, _measure(model.graph, k, size, parts, wanted, carrying, total)))
    found.sort(key=lambda item: item[:2])
    return tuple(uneven for _, _, uneven in found[:MOST_NOTES])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """One contraction, or one tensor that is kept: global size, and into how many parts it is split.

    Attributes:
      dimensions: indices of the named dimensions that it can be split by.
    """

    dimensions: frozenset[int]
    splits: int
    flops: float = 0.0
    num_bytes: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """Of one device, as planned, and of all devices together."""

    flops: float
    num_bytes: float
    global_flops: float
    global_bytes: float

    @classmethod
    def of(cls, loads: Sequence[_Load]) -> _Totals:
        return cls(
            flops=sum(load.flops / load.splits for load in loads),
            num_bytes=sum(load.num_bytes / load.splits for load in loads),
            global_flops=sum(load.flops for load in loads),
            global_bytes=sum(load.num_bytes for load in loads),
        )

    def share_of(self, other: _Totals) -> float:
        pairs = ((self.global_flops, other.global_flops), (self.global_bytes, other.global_bytes))
        return max(part / whole if whole else 0.0 for part, whole in pairs)


def _loads(model: CostModel, chosen: Sequence[Configuration]) -> Iterator[_Load]:
    graph = model.graph
    saved: dict[int, list[int]] = {}
    for t in model.buffers.saved:
        saved.setdefault(graph.grouping.tensor_group[t], []).append(t)
    for v, (group, space, config) in enumerate(zip(graph.grouping.groups, graph.spaces, chosen, strict=True)):
        parts = [math.prod(model.topology.axes[a].size for a in axes) for axes in config]

        def load(classes: set[int], space=space, parts=parts, **size: float) -> _Load:
            return _Load(
                dimensions=frozenset(space.classes[c].named_dimension for c in classes),
                splits=math.prod(parts[c] for c in classes),
                **size,
            )

        for e in group.equations:
            flops = flops_of(graph, e)
            if flops:
                yield load({c for c in space.factor_class[e] if c != WHOLE}, flops=flops)
        for t in (*group.inputs, *saved.get(v, ())):
            classes = {c for dim in space.tensor_dims.get(t, ()) for c in dim}
            yield load(classes, num_bytes=float(model.buffers.num_bytes[t]))


def _indivisible(graph: StepGraph, num_devices: int) -> dict[int, tuple[int, int]]:
    """Named dimension -> (the smallest size that all devices do not divide, the most parts that it has anywhere)."""
    found: dict[int, tuple[int, int]] = {}
    for space in graph.spaces:
        for cls in space.classes:
            if not cls.sizes or cls.named_dimension < 0 or cls.divisible_by(num_devices):
                continue
            if cls.most_parts is not None:  # of images: the windows limit them
                continue
            size = min(size for size in cls.sizes if size % num_devices)
            parts = math.gcd(num_devices, *cls.sizes)
            known = found.get(cls.named_dimension, (size, parts))
            found[cls.named_dimension] = (min(size, known[0]), max(parts, known[1]))
    return found


def _wanted_parts(size: int, parts: int, num_devices: int, most_padding: float) -> int | None:
    """Parts that padding makes possible and that leave a device the least; None when none leaves it less than now."""
    possible = [
        (_padded(size, wanted) // wanted, wanted)
        for wanted in range(parts + 1, num_devices + 1)
        if num_devices % wanted == 0 and _padded(size, wanted) <= (1 + most_padding) * size
    ]
    least, wanted = min(possible, default=(size, parts))
    return wanted if least < size // parts else None


def _padded(size: int, parts: int) -> int:
    return -(-size // parts) * parts


def _measure(
    graph: StepGraph, k: int, size: int, parts: int, wanted: int, carrying: Sequence[_Load], total: _Totals
) -> UnevenDimension:
    padded, now = _padded(size, wanted), _Totals.of(carrying)
    # Dimensions split finely already, by other axes, stay as they are: padding cannot make it worse.
    shrink = padded / size / wanted
    flops = sum(load.flops * min(1 / load.splits, shrink) for load in carrying)
    kept = sum(load.num_bytes * min(1 / load.splits, shrink) for load in carrying)
    gains = (
        now.flops - flops > LEAST_GAIN * total.flops or now.num_bytes - kept > LEAST_GAIN * total.num_bytes
    )
    name = graph.named.dimensions[k].name
    return UnevenDimension(
        name=name,
        size=size,
        where=_where(graph, k, size),
        parts=parts,
        padded=padded,
        wanted=wanted,
        flops=now.flops,
        padded_flops=flops,
        kept_bytes=now.num_bytes,
        padded_kept_bytes=kept,
        is_batch=name == "batch",
        gains=gains,
    )


def _where(graph: StepGraph, k: int, size: int) -> str:
    """An input that holds the dimension at that size, a batch before a parameter."""
    program = graph.program
    holders = [
        (t in graph.state, position, axis)
        for position, t in enumerate(program.inputs)
        for axis, extent in enumerate(program.tensors[t].shape)
        if extent == size and graph.named.of.get((t, axis)) == k
    ]
    if not holders:
        return "inside the step"
    _, position, axis = min(holders)
    return f"axis {axis} of {program.readable_in_paths[position]}"


def _flop(flops: float) -> str:
    for unit, scale in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if flops >= scale:
            return f"{flops / scale:.3g} {unit}"
    return f"{flops / 1e3:.3g} kFLOP"
