"""Which units make a stage, and how many devices it gets: dynamic programming over (stages, units, devices).

With ``s`` stages left, the first of them holds min(s, m) micro-batches under 1F1B, so that the table that is built from
the last stage on knows the memory of each. For a bound ``b`` on the slowest stage it holds the least sum of the stages'
seconds; a pipeline takes ``sum + (m - 1) b``. Several bounds are tried, as in Alpa (https://arxiv.org/abs/2201.12023,
section 5).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxplan.search.stages._unit_costs import UnitCosts

SLACK = tuple(1.06**k for k in range(16))
"""The slowest stage takes so many times the seconds that stages would take if they were equal."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Units and devices of each stage.

    Attributes:
      seconds: estimated, of all passes.
      starts: number of the first unit of each stage.
      sizes: devices of each.
    """

    seconds: float
    starts: tuple[int, ...]
    sizes: tuple[int, ...]


def partitions(
    costs: Mapping[int, UnitCosts],
    num_devices: int,
    stage_counts: Sequence[int],
    num_micro_batches: int,
    limit_bytes: int | None,
) -> list[Partition]:
    """The best partitions into each number of stages, by ascending seconds; all devices are used."""
    share = math.gcd(num_devices, *costs)  # the tables count devices in such shares
    spans = {size // share: of.spans() for size, of in costs.items()}
    stage_seconds = [
        _fitting(spans, min(s, num_micro_batches), limit_bytes) for s in range(1, max(stage_counts) + 1)
    ]
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], Partition] = {}
    for bound in _bounds(costs, num_devices, stage_counts):
        tables = _tables(stage_seconds, num_devices // share, bound)
        for partition in _best(tables, num_devices // share, stage_counts, num_micro_batches):
            partition = dataclasses.replace(partition, sizes=tuple(size * share for size in partition.sizes))
            key = partition.starts, partition.sizes
            if key not in found or partition.seconds < found[key].seconds:
                found[key] = partition
    return sorted(found.values(), key=lambda of: (of.seconds, of.starts, of.sizes))


def _fitting(
    spans: Mapping[int, tuple[np.ndarray, ...]], in_flight: int, limit_bytes: int | None
) -> dict[int, np.ndarray]:
    """Per size of sub-mesh, seconds of units u to v - 1 by the fastest level that fits, (u, v)."""
    found = {}
    for size, (seconds, resident, kept, passing) in spans.items():
        memory = resident + in_flight * kept + passing
        fits = np.isfinite(seconds) if limit_bytes is None else memory <= limit_bytes
        found[size] = np.where(fits, seconds, np.inf).min(axis=0)
    return found


def _bounds(costs: Mapping[int, UnitCosts], num_devices: int, stage_counts: Sequence[int]) -> list[float]:
    """Bounds on the slowest stage that are worth a try."""
    found = set()
    for count in stage_counts:
        nearest = min(costs, key=lambda size: abs(size - num_devices / count))
        total = float(costs[nearest].seconds.min(axis=0).sum())
        found.update(total / count * slack for slack in SLACK)
    return sorted(of for of in found if np.isfinite(of))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """With s stages left: least seconds from unit u on with d devices, (u, d), and the choice behind it."""

    seconds: np.ndarray
    next_unit: np.ndarray
    size: np.ndarray


def _tables(stage_seconds: Sequence[Mapping[int, np.ndarray]], num_devices: int, bound: float) -> list[_Table]:
    number = next(iter(stage_seconds[0].values())).shape[0]
    nothing = np.full((number, num_devices + 1), np.inf)
    nothing[number - 1, 0] = 0.0
    empty = np.zeros((number, num_devices + 1), dtype=np.int64)
    tables = [_Table(seconds=nothing, next_unit=empty, size=empty)]
    for of_stage in stage_seconds:
        tables.append(_with_one_more(tables[-1], of_stage, num_devices, bound))
    return tables


def _with_one_more(rest: _Table, of_stage: Mapping[int, np.ndarray], num_devices: int, bound: float) -> _Table:
    best = np.full(rest.seconds.shape, np.inf)
    next_unit, chosen = np.zeros(best.shape, dtype=np.int64), np.zeros(best.shape, dtype=np.int64)
    for size in sorted(of_stage):
        own = np.where(of_stage[size] <= bound, of_stage[size], np.inf)
        after = rest.seconds[:, : num_devices + 1 - size]  # (v, d - size)
        total = own[:, :, None] + after[None, :, :]  # (u, v, d - size)
        least, at = total.min(axis=1), total.argmin(axis=1)
        is_better = least < best[:, size:]
        best[:, size:] = np.where(is_better, least, best[:, size:])
        next_unit[:, size:] = np.where(is_better, at, next_unit[:, size:])
        chosen[:, size:] = np.where(is_better, size, chosen[:, size:])
    return _Table(seconds=best, next_unit=next_unit, size=chosen)


def _best(
    tables: Sequence[_Table], num_devices: int, stage_counts: Sequence[int], num_micro_batches: int
) -> Iterator[Partition]:
    for count in stage_counts:
        seconds = float(tables[count].seconds[0, num_devices])
        if not np.isfinite(seconds):
            continue
        unit, devices, slowest = 0, num_devices, 0.0
        starts, sizes = [], []
        for s in range(count, 0, -1):
            size, after = int(tables[s].size[unit, devices]), int(tables[s].next_unit[unit, devices])
            rest = float(tables[s - 1].seconds[after, devices - size])
            slowest = max(slowest, float(tables[s].seconds[unit, devices]) - rest)
            starts.append(unit)
            sizes.append(size)
            unit, devices = after, devices - size
        yield Partition(
            seconds=seconds + (num_micro_batches - 1) * slowest, starts=tuple(starts), sizes=tuple(sizes)
        )
