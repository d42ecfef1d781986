"""Costs of the units of a step on each size of sub-mesh: units of one kind are planned once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxplan.ir.stages import Cut, Part, parts_of, unit_kinds
from jaxplan.mesh import Topology, part_of
from jaxplan.partition.stages import port_bytes
from jaxplan.search.stages._priced_stage import StagePoint, StagePricer

LEVELS = 4
"""Choices between the leanest and the fastest plans of the units of a stage."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitCosts:
    """Of each unit, on one size of sub-mesh; arrays are (levels, units).

    Attributes:
      seconds: both passes of one micro-batch; infinite where no plan fits.
      resident_bytes: state and sums on a device; ``kept_bytes``: of one micro-batch between its passes;
        ``passing_bytes``: beside these at the peak of the unit.
    """

    seconds: np.ndarray
    resident_bytes: np.ndarray
    kept_bytes: np.ndarray
    passing_bytes: np.ndarray

    def spans(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The same of units ``u`` to ``v - 1`` together, (levels, u, v); of the last, the largest counts."""
        number = self.seconds.shape[1]
        tables = [_sums(of) for of in (self.seconds, self.resident_bytes, self.kept_bytes)]
        most = np.zeros((len(self.seconds), number + 1, number + 1))
        for u in range(number):
            most[:, u, u + 1 :] = np.maximum.accumulate(self.passing_bytes[:, u:], axis=1)
        return tables[0], tables[1], tables[2], most


def _sums(of: np.ndarray) -> np.ndarray:
    """(levels, units) to (levels, u, v): sums of units u to v - 1, infinite where v <= u."""
    levels, number = of.shape
    found = np.full((levels, number + 1, number + 1), np.inf)
    for u in range(number):
        found[:, u, u + 1 :] = np.cumsum(of[:, u:], axis=1)
    return found


def unit_costs(
    units: Cut, topology: Topology, sizes: Sequence[int], pricer: StagePricer
) -> dict[int, UnitCosts]:
    """Size of a sub-mesh -> the costs of all units on it."""
    kinds = unit_kinds(units)
    first = {kind: kinds.index(kind) for kind in dict.fromkeys(kinds)}
    parts = {part.stage: part for part in parts_of(units, set(first.values()))}
    found = {}
    for size in sizes:
        machine = part_of(topology, size)
        points = {kind: pricer.points(parts[unit], machine) for kind, unit in first.items()}
        found[size] = _costs([(parts[first[kind]], points[kind]) for kind in kinds])
    return found


def _costs(priced: Sequence[tuple[Part, Sequence[StagePoint]]]) -> UnitCosts:
    columns = [[_numbers(part, points, level) for level in range(LEVELS)] for part, points in priced]
    table = np.array(columns).transpose(2, 1, 0)
    return UnitCosts(
        seconds=table[0], resident_bytes=table[1], kept_bytes=table[2], passing_bytes=table[3]
    )


def _numbers(part: Part, points: Sequence[StagePoint], level: int) -> tuple[float, float, float, float]:
    if not points:
        return math.inf, math.inf, math.inf, math.inf
    point = points[round(level / (LEVELS - 1) * (len(points) - 1))]
    resident = sum(port_bytes(point.plan, part, port) for port in part.inputs if port.kind in ("input", "sum"))
    passing = max(0, point.plan.prediction.memory_bytes - resident - point.kept_bytes)
    return point.slice_seconds, resident, point.kept_bytes, passing
