"""The frontier: every plan that no other plan beats in both step time and memory per device."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, overload

from jaxplan.core._files import write_whole
from jaxplan.core._json import MalformedError, required, typed
from jaxplan.core._units import format_bytes, parse_memory
from jaxplan.errors import ArgumentError, InfeasibleError, PlanFileError, UnsupportedError
from jaxplan.plans._choice import POINT_NAMES, point_number
from jaxplan.plans._undominated import undominated

if TYPE_CHECKING:
    from jaxplan.plans._plan import Plan

SCHEMA = "jaxplan.frontier"
SCHEMA_VERSION = 1

# Log-log distances from the chord that differ by less are a tie: collinear points differ by rounding alone.
_KNEE_TOLERANCE = 1e-12

_INFEASIBLE_MSG = (
    "no plan fits {limit} per device ({limit_bytes} bytes).\n"
    "  expected:     a limit that some plan meets\n"
    "  but:          the leanest of {num_plans} plans needs {smallest} ({smallest_bytes} bytes): {parts}\n"
    "  likely cause: {cause}\n"
    "  fix:          a limit of at least that, more devices, {fix}"
)
_CAUSES = {
    "activations": (
        "what the forward pass saves for the backward pass",
        "a smaller batch, or rematerialisation (remat=True, or jax.checkpoint in the model)",
    ),
    "gradients and temporaries": (
        "gradients, results and temporaries that are there at one moment",
        "a smaller batch, or donation of the state that the step returns (donate_argnums)",
    ),
    "parameters": ("the parameters, although they are split", "or parameters of a narrower dtype"),
    "optimizer state": ("the optimizer's state, although it is split", "or an optimizer that keeps less"),
    "batch and other arguments": ("the batch, and arguments that are only read", "or a smaller batch"),
}
_SMALL_LIMIT = 1 << 20  # bytes; a limit below is likely a number of some other unit
_OTHER_CAUSE = ("copies and scratch space of the plan itself", "or a smaller batch")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frontier:
    """Pareto-optimal plans by ascending memory and descending time.

    Attributes:
      points: at least one plan; memory strictly ascends, time strictly descends.
      references: named strategies priced the same way, for comparison; they need not be on the frontier.
      absent: strategies that do not apply to the step, and why.
      memory_limit_bytes: the limit that filtered the points, bytes per device, or None.
      search_seconds: from ClosedJaxpr to frontier; None on a frontier that was read from a file.
      notes: facts that a reader of the plans should know, such as operators without a rule.
      replan: plans the step again, see `what_if`; None on a frontier that was read from a file.
    """

    points: tuple[Plan, ...]
    references: Mapping[str, Plan] = dataclasses.field(default_factory=dict)
    memory_limit_bytes: int | None = None
    search_seconds: float | None = None
    notes: tuple[str, ...] = ()
    absent: Mapping[str, str] = dataclasses.field(default_factory=dict)
    replan: Callable[..., Frontier] | None = dataclasses.field(default=None, compare=False, repr=False)

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

    @classmethod
    def from_plans(
        cls,
        plans: Iterable[Plan],
        *,
        references: Mapping[str, Plan] | None = None,
        absent: Mapping[str, str] | None = None,
        memory_limit_bytes: int | None = None,
        search_seconds: float | None = None,
        notes: Iterable[str] = (),
    ) -> Frontier:
        """Keep the plans that fit the limit and that no other plan beats; of equals, the first given.

        Raises InfeasibleError when no plan fits.
        """
        plans = tuple(plans)
        fitting = [p for p in plans if memory_limit_bytes is None or p.memory_bytes <= memory_limit_bytes]
        if plans and not fitting and memory_limit_bytes is not None:
            raise infeasible_error(plans, memory_limit_bytes)
        return cls(
            points=tuple(undominated(fitting)),
            references=dict(references or {}),
            absent=dict(absent or {}),
            memory_limit_bytes=memory_limit_bytes,
            search_seconds=search_seconds,
            notes=tuple(notes),
        )

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.points)

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Plan, ...]: ...
    def __getitem__(self, index: int | slice) -> Plan | tuple[Plan, ...]:
        return self.points[index]

    def __repr__(self) -> str:
        lean, fast = self.points[0], self.points[-1]
        ends = f"{format_bytes(lean.memory_bytes)} .. {format_bytes(fast.memory_bytes)}"
        return f"Frontier({len(self)} plans, {ends}, references: {', '.join(self.references) or 'none'})"

    def _repr_html_(self) -> str:
        from jaxplan.plans._notebook import frontier_html

        return frontier_html(self)

    def fastest(self) -> Plan:
        """Return the plan with the least time, the one that needs the most memory."""
        return self.points[-1]

    def leanest(self) -> Plan:
        """Return the plan with the least memory, the slowest one."""
        return self.points[0]

    def knee(self) -> Plan:
        """Return the plan farthest below the chord from leanest to fastest in log-log; ties to less memory.

        Distances to one line keep their order when an axis is scaled, so no normalisation is needed. The knee
        of a frontier that nowhere lies below its chord is its leanest point.
        """
        where = [(math.log(max(plan.memory_bytes, 1)), math.log(plan.time_seconds)) for plan in self.points]
        (x0, y0), (x1, y1) = where[0], where[-1]
        below = [(y1 - y0) * (x - x0) - (x1 - x0) * (y - y0) for x, y in where]
        farthest = max(below)
        return next(p for p, depth in zip(self.points, below) if depth >= farthest - _KNEE_TOLERANCE)

    def within(self, memory: int | str) -> Plan:
        """Return the fastest plan that needs at most `memory` per device (bytes, or such as "40GiB").

        Raises InfeasibleError, naming the smallest feasible memory and its parts.
        """
        limit_bytes = parse_memory(memory)
        fitting = [plan for plan in self.points if plan.memory_bytes <= limit_bytes]
        if not fitting:
            raise infeasible_error(self.points, limit_bytes)
        return fitting[-1]

    def choose(self, which: str | int) -> Plan:
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

    def what_if(
        self,
        *,
        bandwidth: float | Mapping[str, float] | None = None,
        memory: int | str | None = None,
        batch: int | None = None,
    ) -> Frontier:
        """The frontier of the same step on a machine with other links, with another limit, or for another batch.

        The step is not traced again unless the batch differs.

        Args:
          bandwidth: factor for all links, or for each level by name: ``{"node": 2}``, a network twice as fast.
          memory: limit per device, bytes or ``"80GiB"``.
          batch: number of examples; every argument that holds examples is scaled alike.

        Raises:
          UnsupportedError: the frontier was read from a file.
          ArgumentError: a factor, limit or batch that cannot be.
          InfeasibleError: no plan fits.
        """
        if self.replan is None:
            raise UnsupportedError(
                "what_if() needs the step, and this frontier was read from a file.\n"
                "  fix: plan the step again with jaxplan.plan(step, *args, topology=...)"
            )
        return self.replan(bandwidth=bandwidth, memory=memory, batch=batch)

    def marks(self, plan: Plan) -> tuple[str, ...]:
        """Return which of "leanest", "knee" and "fastest" a plan of this frontier is."""
        named = {"leanest": self.leanest(), "knee": self.knee(), "fastest": self.fastest()}
        return tuple(name for name, point in named.items() if _is_point(point, plan))

    def label(self, plan: Plan) -> str:
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

    def table(self, *, max_rows: int = 12, width: int | None = None, verbose: bool = False) -> str:
        """Return the frontier as a text table of at most `max_rows` points, the references below it.

        One line a point: time and memory of a step per device; how most of the arithmetic is split (``+2``: other
        operators are split in two other ways); the share of optimizer state and of parameters that a device holds,
        and whether a parameter is gathered per layer or once in a step; the blocks that are recomputed (``*``: but
        for dots). With `verbose`, compute and communication, proofs, and each plan in a sentence.
        """
        from jaxplan.plans._frontier_view import draw_table

        return draw_table(self, max_rows=max_rows, width=width, verbose=verbose)

    def plot(self, path: str | os.PathLike[str], *, choose: str | int = "fastest") -> None:
        """Draw time against memory to a file; its ending names the format (.svg, .pdf, .png).

        The plan that `choose` names is marked, as are leanest, knee and fastest, the references and the memory limit.

        Raises MissingExtraError when matplotlib is missing.
        """
        from jaxplan.plans._plot import draw_plot

        draw_plot(self, path, choose)

    def report(self, path: str | os.PathLike[str], *, choose: str | int = "fastest") -> None:
        """Write one HTML page that needs no network: the frontier to hover and click, and each plan in full.

        Of at most a dozen plans, the one that `choose` names first: layouts and how arrays are cut over the devices,
        memory by part and over the step, time by collective, the most expensive transfers with their source lines,
        compiler rules of the largest buffers, and differences from the nearest reference.

        Raises MissingExtraError when plotly or jinja2 is missing.
        """
        from jaxplan.plans._report import write_report

        write_report(self, path, choose)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; search time is left out, so that equal frontiers give equal files."""
        return {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            "memory_limit_bytes": self.memory_limit_bytes,
            "notes": list(self.notes),
            "points": [plan.to_json() for plan in self.points],
            "references": {name: plan.to_json() for name, plan in self.references.items()},
            "absent": dict(self.absent),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], read_plan: Callable[[Any], Plan]) -> Frontier:
        """Return the frontier that `to_json` gave, each plan through `read_plan`; raises PlanFileError."""
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise PlanFileError(f"not a frontier file: expected an object with schema={SCHEMA!r}")
        if data.get("version") != SCHEMA_VERSION:
            raise PlanFileError(
                f"the frontier file has schema version {data.get('version')!r}, and this jaxplan reads "
                f"{SCHEMA_VERSION}; plan again, or use the jaxplan that wrote it"
            )
        try:
            points = typed(tuple[dict[str, Any], ...], required(data, "points"), "points")
            references = typed(dict[str, dict[str, Any]], required(data, "references"), "references")
            return cls(
                points=tuple(map(read_plan, points)),
                references={name: read_plan(plan) for name, plan in references.items()},
                memory_limit_bytes=typed(int | None, required(data, "memory_limit_bytes"), "memory_limit_bytes"),
                notes=typed(tuple[str, ...], required(data, "notes"), "notes"),
                absent=typed(dict[str, str], data.get("absent", {}), "absent"),
            )
        except (MalformedError, ArgumentError) as error:
            raise PlanFileError(
                f"the frontier file has a missing or malformed field: {error}.\n"
                "  expected: the fields that Frontier.save writes\n"
                "  likely cause: the file was edited\n"
                "  fix: save the frontier again, or plan again with jaxplan.plan"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the frontier as JSON, byte for byte the same for equal frontiers; `jaxplan.load` reads it.

        Raises SaveError where it cannot be written.
        """
        text = json.dumps(self.to_json(), indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
        write_whole(path, text + "\n")


def _is_point(point: Plan, plan: Plan) -> bool:
    """Whether a plan is this point of a frontier, or the point as it was compiled afterwards."""
    return point is plan or (plan.verified is not None and point.is_same_program(plan))


def infeasible_error(plans: Iterable[Plan], limit_bytes: int) -> InfeasibleError:
    """Return the error for plans none of which fits, made from the leanest of them."""
    plans = tuple(plans)
    leanest = min(plans, key=lambda plan: plan.memory_bytes)
    largest_first = sorted(leanest.memory_parts.items(), key=lambda part: (-part[1], part[0]))
    parts = ", ".join(f"{name} {format_bytes(num_bytes)}" for name, num_bytes in largest_first if num_bytes)
    cause, fix = _CAUSES.get(largest_first[0][0] if largest_first else "", _OTHER_CAUSE)
    if limit_bytes < _SMALL_LIMIT:
        fix += f"; or, if another unit was meant, memory='{limit_bytes}MiB'"
    message = _INFEASIBLE_MSG.format(
        cause=f"the largest part is {cause}",
        fix=fix,
        limit=format_bytes(limit_bytes),
        limit_bytes=limit_bytes,
        num_plans=len(plans),
        smallest=format_bytes(leanest.memory_bytes),
        smallest_bytes=leanest.memory_bytes,
        parts=parts or "not broken down",
    )
    return InfeasibleError(
        message, smallest_memory_bytes=leanest.memory_bytes, memory_parts=dict(leanest.memory_parts)
    )
