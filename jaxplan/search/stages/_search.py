"""The search for plans in stages."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

from jaxplan.core._interrupt import current
from jaxplan.errors import ArgumentError, InfeasibleError, UnsupportedError
from jaxplan.ir import MicroBatches, StepGraph
from jaxplan.ir.microbatch import NotSeparableError
from jaxplan.ir.stages import PipelineStep, cut, cut_places, parts_of, pipeline_step
from jaxplan.mesh import Topology, part_counts, part_of
from jaxplan.plans._frontier import Frontier
from jaxplan.plans._infeasible import infeasible_error
from jaxplan.plans._staged_plan import StagedPlan
from jaxplan.search._what_if import batch_sizes
from jaxplan.search.stages._pipelines import Layout, pipelines
from jaxplan.search.stages._priced_stage import StagePricer

MOST_STAGES = 16
"""Stages that are looked for where no number is given."""
MOST_PLACES = 96
"""Places between which stages are cut."""
ROUNDS = (1, 2, 4, 8)
"""Micro-batches in multiples of the stages."""
_NO_NUMBER_MSG = (
    "the step cannot run in {stages} stages on {devices} devices in {micro}.\n"
    "  because: {reason}\n"
    "  expected: a number of stages that divides the devices, at most {places} for this step, and a batch that divides "
    "into micro-batches of at least 2 examples\n"
    "  fix: another number of stages or micro-batches, or stages=True to look for them"
)

_NOTHING_MSG = (
    "no plan in so many stages fits: a stage alone, with one micro-batch, needs more memory than a device has.\n"
    "  fix: more memory or devices, more micro-batches, or another number of stages"
)


class StageSearch:
    """Looks for plans in stages of one step on one machine."""

    def __init__(
        self, graph: StepGraph, topology: Topology, pricer: StagePricer, micro_batches: bool | int | None
    ) -> None:
        self.graph, self.topology, self.pricer = graph, topology, pricer
        self._asked = micro_batches
        self._steps: dict[int, PipelineStep] = {}

    def step(self, num: int) -> PipelineStep:
        """The step in so many micro-batches."""
        if num not in self._steps:
            dims = {path: min(of) for path, of in batch_sizes(self.graph).items()}
            self._steps[num] = pipeline_step(self.graph.program, MicroBatches(num=num, dims=dims))
        return self._steps[num]

    def numbers(self, num_stages: int) -> list[int]:
        """Numbers of micro-batches to look at, for so many stages."""
        if self._asked is not None and not isinstance(self._asked, bool):
            return [self._asked]
        sizes = [size for dims in batch_sizes(self.graph).values() for size in dims.values()]
        found = [num_stages * k for k in ROUNDS]
        return [m for m in found if sizes and all(size % m == 0 and size >= 2 * m for size in sizes)]

    def plans(self, num_stages: int) -> list[StagedPlan]:
        """The plans in exactly so many stages, each on as many devices.

        Raises:
          ArgumentError: there are none, by the devices, the batch or the step.
          NotSeparableError, UnsupportedError: the step does not run in micro-batches, or not in stages.
        """
        if num_stages not in part_counts(self.topology):
            raise self._refused(num_stages, f"{self.topology.name} has no {num_stages} equal parts")
        if not self.numbers(num_stages):
            raise self._refused(num_stages, "the batch does not divide into as many micro-batches as stages")
        found: list[StagedPlan] = []
        for num in self.numbers(num_stages):
            if found and current().happened:
                break
            found += self._in_micro_batches(num_stages, num)
        return found

    def _in_micro_batches(self, num_stages: int, num: int) -> list[StagedPlan]:
        step = self.step(num)
        places = cut_places(step, MOST_PLACES)
        if len(places) + 1 < num_stages:
            raise self._refused(num_stages, f"it has {len(places)} places where little is sent from part to part")
        each = self.topology.num_devices // num_stages
        made = cut(step, even_starts(step, places, num_stages))
        layout = Layout(
            graph=self.graph,
            cut=made,
            parts=parts_of(made),
            topology=self.topology,
            topologies=(part_of(self.topology, each),) * num_stages,
            first_devices=tuple(range(0, self.topology.num_devices, each)),
        )
        points = [
            self.pricer.points(part, topology)
            for part, topology in zip(layout.parts, layout.topologies, strict=True)
        ]
        return pipelines(layout, points)

    def _refused(self, num_stages: int, reason: str) -> ArgumentError:
        is_number = self._asked is not None and not isinstance(self._asked, bool)
        micro = f"{self._asked} micro-batches" if is_number else "micro-batches"
        places = 1 + (len(cut_places(next(iter(self._steps.values())), MOST_PLACES)) if self._steps else MOST_PLACES)
        devices = self.topology.num_devices
        return ArgumentError(
            _NO_NUMBER_MSG.format(stages=num_stages, devices=devices, micro=micro, reason=reason, places=places)
        )


def even_starts(step: PipelineStep, places: Sequence[int], num_stages: int) -> tuple[int, ...]:
    """Places that cut a step into stages of equal arithmetic, as nearly as they can."""
    before = [0.0, *itertools.accumulate(step.flops)]
    at = [before[p] for p in places]
    starts = [0]
    low = 0
    for k in range(1, num_stages):
        target = before[-1] * k / num_stages
        high = len(places) - (num_stages - 1 - k)
        right = min(max(bisect.bisect_left(at, target), low), high - 1)
        near = [j for j in (right - 1, right) if low <= j < high]
        best = min(near, key=lambda j: abs(at[j] - target))
        starts.append(places[best])
        low = best + 1
    return tuple(starts)


def plan_with_stages(
    asked: bool | int | None, plan_whole: Callable[[], Frontier], search: Callable[[], StageSearch], limit: int | None
) -> Frontier:
    """The frontier of a step, in as many stages as asked for.

    Raises:
      InfeasibleError: no plan fits, in stages neither.
      ArgumentError, UnsupportedError: stages were asked for, and the step cannot run in them.
    """
    if asked is False:
        return plan_whole()
    if asked is not None and asked is not True:
        return _frontier(search().plans(asked), limit)
    whole, error = None, None
    try:
        whole = plan_whole()
    except InfeasibleError as reason:
        error = reason
    if whole is not None and (asked is None or current().happened):
        return whole
    try:
        found = list(_looked_for(search()))
    except ArgumentError:  # pins, or a kept layout, of which no stage knows
        if asked is None and error is not None:
            raise error from None
        raise
    if error is not None:
        fitting = [plan for plan in found if limit is None or plan.memory_bytes <= limit]
        if not fitting:
            raise error
        return _frontier(fitting, limit)
    assert whole is not None
    merged = Frontier.from_plans(
        [*whole.points, *found],
        references=whole.references,
        absent=whole.absent,
        memory_limit_bytes=whole.memory_limit_bytes,
        search_seconds=whole.search_seconds,
        notes=whole.notes,
    )
    return dataclasses.replace(merged, replan=whole.replan)


def _looked_for(search: StageSearch) -> Iterator[StagedPlan]:
    """Plans in ever more stages; none where the step does not run in stages."""
    for num_stages in part_counts(search.topology):
        if not 1 < num_stages <= MOST_STAGES or current().happened:
            continue
        try:
            yield from search.plans(num_stages)
        except (NotSeparableError, UnsupportedError):
            return
        except ArgumentError:
            continue


def _frontier(plans: Sequence[StagedPlan], limit: int | None) -> Frontier:
    if not plans:
        raise InfeasibleError(_NOTHING_MSG, smallest_memory_bytes=None, memory_parts={})
    if limit is not None and all(plan.memory_bytes > limit for plan in plans):
        raise infeasible_error(plans, limit)
    return Frontier.from_plans(plans, memory_limit_bytes=limit)
