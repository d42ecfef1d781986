"""The search for plans in stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from jaxplan.core._interrupt import current
from jaxplan.core._log import logger
from jaxplan.errors import ArgumentError, InfeasibleError, UnsupportedError
from jaxplan.ir import MicroBatches, StepGraph
from jaxplan.ir.microbatch import NotSeparableError
from jaxplan.ir.stages import Cut, PipelineStep, cut, parts_of, pipeline_step, units_of
from jaxplan.mesh import Topology, part_counts, part_of
from jaxplan.plans._frontier import Frontier
from jaxplan.plans._infeasible import infeasible_error
from jaxplan.plans._staged_plan import StagedPlan
from jaxplan.search._what_if import batch_sizes
from jaxplan.search.stages._partition import Partition, partitions
from jaxplan.search.stages._pipelines import Layout, pipelines
from jaxplan.search.stages._priced_stage import StagePricer
from jaxplan.search.stages._unit_costs import unit_costs

MOST_STAGES = 16
"""Stages at most, where no number is given; a sub-mesh has at least that part of the devices."""
MOST_UNITS = 96
"""Units of a step at most: of more layers some are together."""
MOST_REALISED = 2
"""Partitions that are planned stage by stage, of each number of micro-batches, the best by their estimates."""
NEAR = 1.5
"""Stages are looked for by themselves where the leanest plan takes at most so many times the limit."""
ROUNDS = (1, 4, 16)
"""Micro-batches in multiples of the stages that were asked for."""
NUMBERS = (4, 16, 64)
"""Micro-batches where stages are looked for."""
_NO_NUMBER_MSG = (
    "the step cannot run in {stages} stages on {devices} devices in {micro}.\n"
    "  because: {reason}\n"
    "  expected: at most a stage for each device and for each of the {units} units of the step, and a batch that "
    "divides into micro-batches of at least 2 examples\n"
    "  fix: another number of stages or micro-batches, or stages=True to look for them"
)
_TORUS_MSG = (
    "plans in stages are not made for {name}, a torus: parts of it are not devices that follow each other.\n"
    "  fix: stages=False"
)
_NOTHING_MSG = (
    "no plan in so many stages fits: a stage alone, with one micro-batch, needs more memory than a device has.\n"
    "  fix: more memory or devices, more micro-batches, or another number of stages"
)


class StageSearch:
    """Looks for plans in stages of one step on one machine."""

    def __init__(
        self,
        graph: StepGraph,
        topology: Topology,
        pricer: StagePricer,
        micro_batches: bool | int | None,
        limit_bytes: int | None,
    ) -> None:
        self.graph, self.topology, self.pricer, self._limit = graph, topology, pricer, limit_bytes
        self._asked = micro_batches
        self._steps: dict[int, PipelineStep] = {}

    def step(self, num: int) -> PipelineStep:
        """The step in so many micro-batches."""
        if num not in self._steps:
            dims = {path: min(of) for path, of in batch_sizes(self.graph).items()}
            self._steps[num] = pipeline_step(self.graph.program, MicroBatches(num=num, dims=dims))
        return self._steps[num]

    def numbers(self, num_stages: int | None) -> list[int]:
        """Numbers of micro-batches to look at, for so many stages or for any."""
        if self._asked is not None and not isinstance(self._asked, bool):
            return [self._asked]
        sizes = [size for dims in batch_sizes(self.graph).values() for size in dims.values()]
        wanted = NUMBERS if num_stages is None else [num_stages * k for k in ROUNDS]
        return [m for m in wanted if sizes and all(size % m == 0 and size >= 2 * m for size in sizes)]

    def plans(self, num_stages: int | None) -> list[StagedPlan]:
        """The plans in exactly so many stages; None: in any number of them.

        Raises:
          ArgumentError: there are none, by the devices, the batch or the step.
          NotSeparableError, UnsupportedError: the step does not run in micro-batches, or not in stages.
        """
        if self.topology.chip.torus_rank:
            raise UnsupportedError(_TORUS_MSG.format(name=self.topology.name))
        if num_stages is not None and num_stages > self.topology.num_devices:
            raise self._refused(num_stages, "there are fewer devices")
        if not self.numbers(num_stages):
            raise self._refused(num_stages, "the batch does not divide into as many micro-batches as stages")
        found: list[StagedPlan] = []
        for num in self.numbers(num_stages):
            if found and current().happened:
                break
            found += self._in_micro_batches(num_stages, num)
        return found

    def _in_micro_batches(self, num_stages: int | None, num: int) -> list[StagedPlan]:
        units = units_of(self.step(num), MOST_UNITS)
        if num_stages is not None and units.num_stages < num_stages:
            raise self._refused(num_stages, f"it has {units.num_stages} units", units.num_stages)
        devices = self.topology.num_devices
        most = num_stages or min(MOST_STAGES, units.num_stages, devices)
        sizes = self._sizes(num_stages)
        if most < 2 or not sizes:
            return []
        costs = unit_costs(units, self.topology, sizes, self.pricer)
        counts = [num_stages] if num_stages else list(range(2, most + 1))
        found = partitions(costs, devices, counts, num, self._limit)
        plans: list[StagedPlan] = []
        for partition in [of for of in found if self._first_devices(of.sizes)][:MOST_REALISED]:
            if plans and current().happened:
                break
            plans += self._realised(units, partition)
        return plans

    def _sizes(self, num_stages: int | None) -> list[int]:
        """Devices that a stage may have: for a number of stages up to twice and down to half of an equal share."""
        devices = self.topology.num_devices
        counts = [n for n in part_counts(self.topology) if n < devices]
        if num_stages is None:
            return [n for n in counts if devices <= n * MOST_STAGES]
        return [n for n in counts if devices <= 2 * n * num_stages and n * num_stages <= 2 * devices]

    def _realised(self, units: Cut, partition: Partition) -> list[StagedPlan]:
        """The plans of one partition, each stage planned as a whole."""
        made = cut(units.step, [units.starts[u] for u in partition.starts])
        layout = Layout(
            graph=self.graph,
            cut=made,
            parts=parts_of(made),
            topology=self.topology,
            topologies=tuple(part_of(self.topology, size) for size in partition.sizes),
            first_devices=self._first_devices(partition.sizes),
        )
        points = [
            self.pricer.points(part, topology)
            for part, topology in zip(layout.parts, layout.topologies, strict=True)
        ]
        return pipelines(layout, points)

    def _first_devices(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The first device of each stage, the largest stages first; empty where a stage would lie across nodes."""
        node = self.topology.levels[-1].size if self.topology.levels else 1
        found, at = {}, 0
        for stage in sorted(range(len(sizes)), key=lambda s: (-sizes[s], s)):
            found[stage] = at
            is_inside = at // node == (at + sizes[stage] - 1) // node if sizes[stage] <= node else at % node == 0
            if not is_inside:
                return ()
            at += sizes[stage]
        return tuple(found[stage] for stage in range(len(sizes)))

    def _refused(self, num_stages: int | None, reason: str, units: int | str = "few") -> ArgumentError:
        is_number = self._asked is not None and not isinstance(self._asked, bool)
        micro = f"{self._asked} micro-batches" if is_number else "micro-batches"
        devices = self.topology.num_devices
        text = _NO_NUMBER_MSG.format(
            stages=num_stages or "several", devices=devices, micro=micro, reason=reason, units=units
        )
        return ArgumentError(text)


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
    if error is not None and asked is None and not _is_near(error, limit):
        raise error
    try:
        looks = search()
    except ArgumentError:  # pins, or a kept layout, of which no stage knows
        if asked is None and error is not None:
            raise error from None
        raise
    found = _looked_for(looks)
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


def _is_near(error: InfeasibleError, limit: int | None) -> bool:
    """Whether the leanest plan of the whole step is so near the limit that stages could fit it."""
    return limit is not None and (error.smallest_memory_bytes or 0) <= NEAR * limit


def _looked_for(search: StageSearch) -> list[StagedPlan]:
    """Plans in any number of stages; none where the step does not run in stages."""
    try:
        return search.plans(None)
    except (NotSeparableError, UnsupportedError, ArgumentError) as reason:
        logger.info("no plans in stages: %s", str(reason).partition("\n")[0])
        return []


def _frontier(plans: Sequence[StagedPlan], limit: int | None) -> Frontier:
    if not plans:
        raise InfeasibleError(_NOTHING_MSG, smallest_memory_bytes=None, memory_parts={})
    if limit is not None and all(plan.memory_bytes > limit for plan in plans):
        raise infeasible_error(plans, limit)
    return Frontier.from_plans(plans, memory_limit_bytes=limit)
