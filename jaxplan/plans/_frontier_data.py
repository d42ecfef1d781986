"""The points of a frontier as data, and how one is chosen; `jaxplan.plans._frontier` adds views and files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

from jaxplan.core._units import format_bytes, parse_memory
from jaxplan.errors import ArgumentError
from jaxplan.plans._choice import POINT_NAMES, point_number
from jaxplan.plans._infeasible import infeasible_error
from jaxplan.plans._plan_data import PlanData
from jaxplan.plans._undominated import Described

P = TypeVar("P", bound=Described, covariant=True)

# Log-log distances from the chord that differ by less are a tie: collinear points differ by rounding alone.
_KNEE_TOLERANCE = 1e-12


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrontierData(Generic[P]):
    """Pareto-optimal plans by ascending memory and descending time; `jaxplan.Frontier` describes the fields."""

    points: tuple[P, ...]
    references: Mapping[str, P] = dataclasses.field(default_factory=dict)
    memory_limit_bytes: int | None = None
    search_seconds: float | None = None
    notes: tuple[str, ...] = ()
    absent: Mapping[str, str] = dataclasses.field(default_factory=dict)
    replan: Callable[..., Any] | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.points:
            raise ArgumentError("a frontier needs at least one plan, and got none")
        for plan in self.points:
            if not (plan.memory_bytes >= 0 and 0 < plan.time_seconds < math.inf):
                raise ArgumentError(
                    f"a plan needs memory that is not negative and a positive, finite time, and {plan.name!r} has "
                    f"{plan.memory_bytes} bytes and {plan.time_seconds} s"
                )
        for lean, fast in zip(self.points[:-1], self.points[1:], strict=True):
            if not (lean.memory_bytes < fast.memory_bytes and lean.time_seconds > fast.time_seconds):
                raise ArgumentError(
                    "the plans of a frontier must ascend in memory and descend in time, and "
                    f"{lean.name!r} and {fast.name!r} do not; Frontier.from_plans sorts and drops"
                )

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[P]:
        return iter(self.points)

    @overload
    def __getitem__(self, index: int) -> P: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[P, ...]: ...
    def __getitem__(self, index: int | slice) -> P | tuple[P, ...]:
        return self.points[index]

    def __repr__(self) -> str:
        lean, fast = self.points[0], self.points[-1]
        ends = f"{format_bytes(lean.memory_bytes)} .. {format_bytes(fast.memory_bytes)}"
        return f"Frontier({len(self)} plans, {ends}, references: {', '.join(self.references) or 'none'})"

    def fastest(self) -> P:
        """Return the plan with the least time, the one that needs the most memory."""
        return self.points[-1]

    def leanest(self) -> P:
        """Return the plan with the least memory, the slowest one."""
        return self.points[0]

    def knee(self) -> P:
        """Return the plan farthest below the chord from leanest to fastest in log-log; ties to less memory.

        Distances to one line keep their order when an axis is scaled, so no normalisation is needed. The knee
        of a frontier that nowhere lies below its chord is its leanest point.
        """
        where = [(math.log(max(plan.memory_bytes, 1)), math.log(plan.time_seconds)) for plan in self.points]
        (x0, y0), (x1, y1) = where[0], where[-1]
        below = [(y1 - y0) * (x - x0) - (x1 - x0) * (y - y0) for x, y in where]
        farthest = max(below)
        return next(p for p, depth in zip(self.points, below) if depth >= farthest - _KNEE_TOLERANCE)

    def within(self, memory: int | str) -> P:
        """Return the fastest plan that needs at most `memory` per device (bytes, or such as "40GiB").

        Raises InfeasibleError, naming the smallest feasible memory and its parts.
        """
        limit_bytes = parse_memory(memory)
        fitting = [plan for plan in self.points if plan.memory_bytes <= limit_bytes]
        if not fitting:
            raise infeasible_error(self.points, limit_bytes)
        return fitting[-1]

    def choose(self, which: str | int) -> P:
        """Return a plan by name ("fastest", "knee", "leanest", or a reference's) or by its number in the table.

        A reference is taken as it is, whether it fits the memory limit or not.
        """
        if isinstance(which, str):
            if which in POINT_NAMES:
                return {"fastest": self.fastest, "knee": self.knee, "leanest": self.leanest}[which]()
            if which in self.references:
                return self.references[which]
        names = ", ".join(map(repr, [*POINT_NAMES, *self.references]))
        if isinstance(which, str) and which in self.absent:
            raise ArgumentError(
                f"the strategy {which!r} does not apply to this step: {self.absent[which]}.\n  expected: {names}"
            )
        number = point_number(which)
        if number is None or not 0 <= number < len(self):
            raise ArgumentError(
                f"choose={which!r} is no point of this frontier.\n"
                f"  expected: {names} or a number from 0 to {len(self) - 1}"
            )
        return self.points[number]

    def marks(self, plan: Described) -> tuple[str, ...]:
        """Return which of "leanest", "knee" and "fastest" a plan of this frontier is."""
        named = {"leanest": self.leanest(), "knee": self.knee(), "fastest": self.fastest()}
        return tuple(name for name, point in named.items() if _is_point(point, plan))

    def label(self, plan: Described) -> str:
        """Return how a plan is found in the table: ``#3 (knee)``, or ``fsdp (reference)``.

        Raises ArgumentError for a plan of another frontier.
        """
        for number, point in enumerate(self.points):
            if _is_point(point, plan):
                return f"#{number} ({', '.join(self.marks(plan)) or 'by number'})"
        for name, reference in self.references.items():
            if _is_point(reference, plan):
                limit = self.memory_limit_bytes
                over = ", over the limit" if limit is not None and plan.memory_bytes > limit else ""
                return f"{name} (reference{over})"
        raise ArgumentError(f"{plan!r} is no plan of this frontier; expected one of its points or references")


def _is_point(point: Described, plan: Described) -> bool:
    """Whether a plan is this point of a frontier, or the point as it was compiled afterwards."""
    if point is plan or not (isinstance(point, PlanData) and isinstance(plan, PlanData)):
        return point is plan
    return plan.verified is not None and point.is_same_program(plan)


def spread(frontier: FrontierData[Any], max_rows: int) -> list[int]:
    """Return at most `max_rows` indices, evenly spread, with leanest, knee and fastest always among them."""
    last = len(frontier) - 1
    marked = {0, frontier.points.index(frontier.knee()), last}
    num_even = max(max_rows - len(marked), 0)
    if last < max_rows:
        return list(range(last + 1))
    others = [index for index in range(last + 1) if index not in marked]
    even = {others[(2 * i + 1) * len(others) // (2 * num_even)] for i in range(num_even)}
    return sorted(marked | even)
