"""A step on parts of a machine: the fewest devices that hold it, and the best time for each number of devices.

Source: TensorOpt, section 4.1 (mini-parallelism and profiling; mini-time is `Frontier.within`). The step is
traced and analysed once; each part has its own configurations, costs and plans.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxplan.core._interrupt import current
from jaxplan.core._units import counted, format_bytes, format_gib, format_milliseconds
from jaxplan.errors import ArgumentError, InfeasibleError

if TYPE_CHECKING:
    from jaxplan.mesh import Topology
    from jaxplan.plans._frontier import Frontier
    from jaxplan.plans._plan import Plan

_NO_COUNTS_MSG = (
    "device_counts is {given!r}; expected one or more numbers of devices, such as {counts}.\n"
    "  fix: leave it out for all even parts of {name}"
)
_NONE_FITS_MSG = (
    "the step fits {limit} per device ({limit_bytes} bytes) on no part of {name}.\n"
    "  expected:     a memory that some plan meets on at most {num_devices}\n"
    "  but:          on {best} the leanest plan needs {smallest} per device ({smallest_bytes} bytes), "
    "the least of {tried}\n"
    "  likely cause: too few devices; what does not split over more of them is needed by each\n"
    "  fix:          a topology of more devices, a limit of at least that, a smaller batch, or rematerialisation "
    "(jax.checkpoint)"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScalePoint:
    """A step on so many devices.

    Attributes:
      num_devices: how many.
      topology: the part of the machine that has them.
      frontier: the plans that fit; None where none does.
      smallest_memory_bytes: of the leanest plan, whether it fits or not; bytes per device.
    """

    num_devices: int
    topology: Topology
    frontier: Frontier | None
    smallest_memory_bytes: int

    @property
    def fits(self) -> bool:
        return self.frontier is not None

    @property
    def plan(self) -> Plan:
        """The fastest plan that fits.

        Raises:
          InfeasibleError: none does.
        """
        if self.frontier is None:
            raise InfeasibleError(
                f"no plan fits on {counted(self.num_devices, 'device')}: the leanest needs "
                f"{format_bytes(self.smallest_memory_bytes)} per device",
                smallest_memory_bytes=self.smallest_memory_bytes,
            )
        return self.frontier.fastest()

    def __repr__(self) -> str:
        found = repr(self.plan) if self.fits else f"needs {format_bytes(self.smallest_memory_bytes)}"
        return f"ScalePoint({counted(self.num_devices, 'device')}: {found})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scaling:
    """A step on several numbers of devices, ascending; iterate over the points, or index by number of devices.

    Attributes:
      points: one for each number of devices that was planned.
      memory_limit_bytes: the limit per device.
    """

    points: tuple[ScalePoint, ...]
    memory_limit_bytes: int

    def __iter__(self) -> Iterator[ScalePoint]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, num_devices: int) -> ScalePoint:
        for point in self.points:
            if point.num_devices == num_devices:
                return point
        counts = ", ".join(str(point.num_devices) for point in self.points)
        raise ArgumentError(f"{num_devices!r} devices were not planned; planned were {counts}")

    def __repr__(self) -> str:
        return f"Scaling({', '.join(map(repr, self.points))})"

    def to_json(self) -> dict[str, Any]:
        """Plain data: the fastest plan that fits on each number of devices, null where none does."""
        points = [
            {
                "num_devices": point.num_devices,
                "topology": point.topology.name,
                "smallest_memory_bytes": point.smallest_memory_bytes,
                "plan": point.plan.to_json() if point.fits else None,
            }
            for point in self.points
        ]
        return {"memory_limit_bytes": self.memory_limit_bytes, "points": points}

    def table(self, *, width: int | None = None) -> str:
        """Return one line for each number of devices: the fastest plan that fits, and how well it uses them."""
        return _draw_table(self, width)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MinDevices(Scaling):
    """The fewest devices that hold a step; usable as that number.

    Attributes:
      points: all that were planned: too few devices, and the last one, which fits.
    """

    @property
    def num_devices(self) -> int:
        return self.points[-1].num_devices

    @property
    def topology(self) -> Topology:
        return self.points[-1].topology

    @property
    def frontier(self) -> Frontier:
        """The plans that fit on so many devices."""
        frontier = self.points[-1].frontier
        assert frontier is not None
        return frontier

    @property
    def plan(self) -> Plan:
        """The fastest of them."""
        return self.points[-1].plan

    def __index__(self) -> int:
        return self.num_devices

    def __int__(self) -> int:
        return self.num_devices

    def __repr__(self) -> str:
        return f"MinDevices({self.num_devices}: {self.plan!r})"


PlanFn = Callable[["Topology"], "Frontier"]
"""Plans the step on a topology; raises InfeasibleError where nothing fits."""


def find_fewest(topology: Topology, memory_limit_bytes: int, plan_on: PlanFn, state_bytes: int) -> MinDevices:
    """Plan on ever larger even parts until a plan fits.

    Args:
      state_bytes: bytes of the arguments together: parts that could not even hold these are not planned.

    Raises:
      InfeasibleError: nothing fits on the whole machine; names the smallest memory of those that were planned.
    """
    from jaxplan.mesh import part_counts

    counts = part_counts(topology)
    possible = [n for n in counts if state_bytes <= n * memory_limit_bytes] or [counts[-1]]
    points: list[ScalePoint] = []
    for count in possible:
        points.append(_plan_part(topology, count, plan_on))
        if points[-1].fits:
            return MinDevices(points=tuple(points), memory_limit_bytes=memory_limit_bytes)
        if current().happened:
            raise KeyboardInterrupt  # the points so far do not fit, and better ones may have been missed
    best = min(points, key=lambda point: point.smallest_memory_bytes)
    message = _NONE_FITS_MSG.format(
        limit=format_bytes(memory_limit_bytes),
        limit_bytes=memory_limit_bytes,
        name=topology.name,
        num_devices=counted(topology.num_devices, "device"),
        best=counted(best.num_devices, "device"),
        smallest=format_bytes(best.smallest_memory_bytes),
        smallest_bytes=best.smallest_memory_bytes,
        tried=", ".join(str(point.num_devices) for point in points),
    )
    raise InfeasibleError(message, smallest_memory_bytes=best.smallest_memory_bytes)


def scale(
    topology: Topology, memory_limit_bytes: int, plan_on: PlanFn, device_counts: Sequence[int] | None
) -> Scaling:
    """Plan on a part of each given number of devices, by default on all even parts; fewer after an interrupt.

    Raises:
      ArgumentError: no numbers were given.
      TopologyError: the machine has no part of that number.
    """
    counts = checked_counts(topology, device_counts)
    points: list[ScalePoint] = []
    for count in counts:
        points.append(_plan_part(topology, count, plan_on))
        if current().happened:
            break
    return Scaling(points=tuple(points), memory_limit_bytes=memory_limit_bytes)


def checked_counts(topology: Topology, device_counts: Sequence[int] | None) -> tuple[int, ...]:
    """The numbers of devices, ascending and each once; an error for those of which there is no part."""
    from jaxplan.mesh import part_counts, part_of

    even = part_counts(topology)
    if device_counts is None:
        return even
    is_list = hasattr(device_counts, "__iter__") and not isinstance(device_counts, (str, bytes, Mapping))
    counts = list(device_counts) if is_list else []
    if not counts or not all(hasattr(count, "__index__") and not isinstance(count, bool) for count in counts):
        raise ArgumentError(
            _NO_COUNTS_MSG.format(given=device_counts, counts=list(even), name=topology.name)
        )
    numbers = sorted({count.__index__() for count in counts})
    for number in numbers:
        part_of(topology, number)
    return tuple(numbers)


def _plan_part(topology: Topology, num_devices: int, plan_on: PlanFn) -> ScalePoint:
    from jaxplan.mesh import part_of

    part = part_of(topology, num_devices)
    try:
        frontier = plan_on(part)
    except InfeasibleError as error:
        if error.smallest_memory_bytes is None:
            raise
        return ScalePoint(
            num_devices=num_devices,
            topology=part,
            frontier=None,
            smallest_memory_bytes=error.smallest_memory_bytes,
        )
    return ScalePoint(
        num_devices=num_devices,
        topology=part,
        frontier=frontier,
        smallest_memory_bytes=frontier.leanest().memory_bytes,
    )


def _draw_table(scaling: Scaling, width: int | None) -> str:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from jaxplan.plans._frontier_view import print_table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for header in ("devices", "time ms", "compute", "exposed", "GiB", "leanest", "speed-up", "share"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("plan", overflow="fold")
    first = next((point for point in scaling if point.fits), None)
    for point in scaling:
        leanest = format_gib(point.smallest_memory_bytes)
        if first is None or not point.fits:
            table.add_row(str(point.num_devices), *["-"] * 4, leanest, "-", "-", "does not fit")
            continue
        plan = point.plan
        faster = first.plan.time_seconds / plan.time_seconds
        table.add_row(
            str(point.num_devices),
            format_milliseconds(plan.time_seconds),
            format_milliseconds(plan.compute_seconds),
            format_milliseconds(plan.communication_seconds - plan.hidden_seconds),
            format_gib(plan.memory_bytes),
            leanest,
            f"{faster:.2f}",
            f"{faster * first.num_devices / point.num_devices:.0%}",
            Text(plan.outline.short()),
        )
    limit = f"the fastest plan within {format_bytes(scaling.memory_limit_bytes)} per device"
    footer = [limit]
    if first is not None:
        footer[0] += f"; speed-up over {first.num_devices}, and its share of the linear one"
        footer.append("exposed: communication that no compute hides")
    return print_table(table, footer, width)
