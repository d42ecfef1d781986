"""The stages of a plan as data, and the pipeline that they make."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from jaxplan.plans._plan import Plan
from jaxplan.simulate import PipelineRun, Schedule, StageCost, StageTask, gpipe, one_f_one_b, run_pipeline

SCHEDULES: Mapping[str, Callable[[int, int], Schedule]] = {"1f1b": one_f_one_b, "gpipe": gpipe}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """One stage of a plan: a part of the step on its own devices.

    Attributes:
      first_device: number of the first of its devices; they follow each other.
      start: place of its first forward equation among those that are cut (`jaxplan.ir.stages.PipelineStep.forward`).
      plan: of its part, on the topology of its devices: forward and backward pass of one micro-batch, and the update.
      once_seconds, forward_seconds, backward_seconds, update_seconds: of the segments of that part, each run once.
      send_seconds: that one micro-batch travels to the next stage, or its gradient back.
      held_bytes: that a device keeps of one micro-batch from its forward to its backward pass.
      received_bytes: that a device receives of one micro-batch.
      in_flight: most micro-batches that are between the two passes.
    """

    first_device: int
    start: int
    plan: Plan
    once_seconds: float
    forward_seconds: float
    backward_seconds: float
    update_seconds: float
    send_seconds: float
    held_bytes: int
    received_bytes: int
    in_flight: int

    @property
    def num_devices(self) -> int:
        return self.plan.topology.num_devices

    @property
    def devices(self) -> range:
        """Numbers of its devices among those of the whole plan."""
        return range(self.first_device, self.first_device + self.num_devices)

    @property
    def memory_bytes(self) -> int:
        """Predicted peak of one of its devices, with all of its micro-batches in flight."""
        return self.plan.prediction.memory_bytes + (self.in_flight - 1) * self.held_bytes + self.received_bytes

    @property
    def cost(self) -> StageCost:
        """Of one micro-batch, as a pipeline is simulated."""
        return StageCost(
            forward=self.forward_seconds,
            backward=self.backward_seconds,
            send=self.send_seconds,
            held_bytes=self.held_bytes,
        )


def simulated(stages: Sequence[Stage], schedule: str, num_micro_batches: int) -> PipelineRun:
    """The passes of all stages under a schedule."""
    order = SCHEDULES[schedule](len(stages), num_micro_batches)
    return run_pipeline(order, len(stages), [stage.cost for stage in stages])


def dispatch_order(num_stages: int, schedule: str, num_micro_batches: int) -> list[StageTask]:
    """All passes in an order in which each comes after those that it needs."""
    order = SCHEDULES[schedule](num_stages, num_micro_batches)
    run = run_pipeline(order, num_stages, [StageCost(forward=1.0, backward=1.0)] * num_stages)
    return [run.tasks[number] for number in sorted(run.tasks)]
