"""The plans of one stage: its part of the step planned on its devices, with seconds by segment and bytes in flight."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jaxplan.errors import InfeasibleError
from jaxplan.ir import analyse
from jaxplan.ir.stages import BACKWARD, FORWARD, ONCE, UPDATE, Part, segments_of
from jaxplan.mesh import Topology
from jaxplan.partition.stages import held_bytes
from jaxplan.plans._frontier import Frontier
from jaxplan.plans._frontier_data import spread
from jaxplan.plans._plan import Plan
from jaxplan.simulate import segment_seconds

MOST_POINTS = 6
"""Plans of a stage that pipelines are made of: the leanest, the knee, the fastest, and some between."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagePoint:
    """One plan of a stage.

    Attributes:
      plan: of the stage's part on its devices.
      once, forward, backward, update: seconds of its segments, each run once.
      communication: seconds of collectives in the passes of one micro-batch.
      kept_bytes, received_bytes: of one micro-batch on a device.
    """

    plan: Plan
    once: float
    forward: float
    backward: float
    update: float
    communication: float
    kept_bytes: int
    received_bytes: int

    @property
    def slice_seconds(self) -> float:
        """Both passes of one micro-batch."""
        return self.forward + self.backward

    def memory_bytes(self, in_flight: int) -> int:
        return self.plan.prediction.memory_bytes + (in_flight - 1) * self.kept_bytes + self.received_bytes


class StagePricer:
    """Plans parts of steps; equal parts on equal devices once."""

    def __init__(self, plan_graph: Callable[..., Frontier]) -> None:
        """``plan_graph``: (analysed step, topology) -> its frontier."""
        self._plan_graph = plan_graph
        self._known: dict[tuple[str, str], list[StagePoint]] = {}
        self.num_planned = 0

    def points(self, part: Part, topology: Topology) -> list[StagePoint]:
        """Plans of a stage on its devices, by ascending memory; none where no plan fits."""
        key = (part.program.fingerprint, topology.name)
        if key not in self._known:
            self.num_planned += 1
            self._known[key] = self._price(part, topology)
        return self._known[key]

    def _price(self, part: Part, topology: Topology) -> list[StagePoint]:
        try:
            frontier = self._plan_graph(analyse(part.program), topology)
        except InfeasibleError:
            return []
        chosen = spread(frontier, MOST_POINTS)
        return [priced_point(frontier.points[k], part) for k in chosen]


def priced_point(plan: Plan, part: Part) -> StagePoint:
    """A plan of a stage with its seconds and bytes."""
    graph = plan.require_program()
    program, ranges = graph.program, segments_of(graph.program)
    ports = zip(program.inputs, part.inputs, strict=True)
    lasting = {t for t, port in ports if port.kind not in ("slice", "value")}
    start, stop = ranges[ONCE]
    lasting.update(t for eqn in program.equations[start:stop] for t in eqn.results)
    compute, communication = segment_seconds(
        graph, plan.topology, plan.configurations, plan.repeated, ranges, lasting
    )
    seconds = [a + b for a, b in zip(compute, communication, strict=True)]
    held = held_bytes(plan, part)
    return StagePoint(
        plan=plan,
        once=seconds[ONCE],
        forward=seconds[FORWARD],
        backward=seconds[BACKWARD],
        update=sum(seconds[UPDATE:]),
        communication=communication[FORWARD] + communication[BACKWARD],
        kept_bytes=held.kept,
        received_bytes=held.received,
    )
