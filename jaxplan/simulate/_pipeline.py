"""A pipeline on the simulator: its makespan, the idle share of its ranks, and the micro-batches that a rank holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxplan.errors import ArgumentError
from jaxplan.simulate._schedules import Schedule, StageTask
from jaxplan.simulate._simulator import Task, Timeline, simulate


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Seconds of one micro-batch in one stage.

    Attributes:
      forward, backward: seconds of compute.
      send: seconds that its result travels to the next stage, and its gradient back; beside the compute of both.
      held_bytes: activations that it keeps from the forward to the backward pass.
    """

    forward: float
    backward: float
    send: float = 0.0
    held_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """A simulated pipeline.

    Attributes:
      timeline: streams are the ranks, and behind them the links between stages.
      tasks: number of a task of the timeline -> the pass that it is; sends are not listed.
      bubble: share of the ranks' time until the end in which they do not compute.
      most_held: per rank, the most micro-batches, each of one stage, between their forward and backward pass.
      peak_bytes: per rank, the most bytes of activations that these hold.
    """

    timeline: Timeline
    tasks: dict[int, StageTask]
    bubble: float
    most_held: tuple[int, ...]
    peak_bytes: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """From the first task to the end of the last."""
        return self.timeline.makespan


def run_pipeline(schedule: Schedule, num_ranks: int, stages: Sequence[StageCost]) -> PipelineRun:
    """Run a schedule; stage ``s`` is on rank ``s % num_ranks``, and each rank keeps the order of its tasks.

    Raises:
      ArgumentError: the schedule does not do each pass once, or its ranks wait for each other for ever.

    >>> from jaxplan.simulate import gpipe
    >>> run_pipeline(gpipe(2, 3), 2, [StageCost(forward=1.0, backward=2.0)] * 2).seconds
    12.0
    """
    orders = [schedule(rank) for rank in range(num_ranks)]
    _check_complete(orders, len(stages))
    tasks, of = _numbered(orders, stages)
    timeline = simulate(tasks)
    busy = sum(timeline.busy_seconds(rank) for rank in range(num_ranks))
    total = num_ranks * timeline.makespan
    held = [_held(order, stages) for order in orders]
    return PipelineRun(
        timeline=timeline,
        tasks={number: task for task, number in of.items()},
        bubble=1 - busy / total if total else 0.0,
        most_held=tuple(most for most, _ in held),
        peak_bytes=tuple(peak for _, peak in held),
    )


def _check_complete(orders: Sequence[Sequence[StageTask]], num_stages: int) -> None:
    everything = [task for order in orders for task in order]
    micro_batches = {task.micro_batch for task in everything}
    expected = {
        StageTask(stage, k, phase)
        for stage in range(num_stages)
        for k in micro_batches
        for phase in ("forward", "backward")
    }
    astray = [t for rank, order in enumerate(orders) for t in order if t.stage % len(orders) != rank]
    if len(everything) != len(expected) or set(everything) != expected or astray:
        raise ArgumentError(
            f"the schedule has {len(everything)} tasks for {num_stages} stages and {len(micro_batches)} micro-batches, "
            f"{len(astray)} of them on a rank that does not have their stage.\n"
            f"  expected: each pass once, {len(expected)} tasks"
        )


def _numbered(
    orders: Sequence[Sequence[StageTask]], stages: Sequence[StageCost]
) -> tuple[dict[int, Task], dict[StageTask, int]]:
    """Tasks of the simulator in an order in which each needs lower numbers alone, sends between them."""
    tasks: dict[int, Task] = {}
    of: dict[StageTask, int] = {}
    done = [0] * len(orders)
    while any(at < len(order) for at, order in zip(done, orders)):
        before = len(tasks)
        for rank, order in enumerate(orders):
            for task in order[done[rank] :]:
                source = _source(task, len(stages))
                if source is not None and source not in of:
                    break
                needs = [of[order[done[rank] - 1]]] if done[rank] else []
                if source is not None:
                    needs.append(_sent(tasks, of, source, task, stages, len(orders)))
                cost = stages[task.stage]
                of[task] = len(tasks)
                seconds = cost.forward if task.phase == "forward" else cost.backward
                tasks[of[task]] = Task(stream=rank, seconds=seconds, needs=tuple(needs))
                done[rank] += 1
        if len(tasks) == before:
            waiting = [order[at] for at, order in zip(done, orders) if at < len(order)]
            raise ArgumentError(f"the ranks of the schedule wait for each other: {', '.join(map(str, waiting[:4]))}")
    return tasks, of


def _source(task: StageTask, num_stages: int) -> StageTask | None:
    """The pass whose result a task reads; None for the first forward pass of a micro-batch."""
    if task.phase == "forward":
        return task._replace(stage=task.stage - 1) if task.stage else None
    if task.stage == num_stages - 1:
        return task._replace(phase="forward")
    return task._replace(stage=task.stage + 1)


def _sent(
    tasks: dict[int, Task],
    of: dict[StageTask, int],
    source: StageTask,
    task: StageTask,
    stages: Sequence[StageCost],
    num_ranks: int,
) -> int:
    """The task after which a result is where it is read: itself on the same rank, else a send on the link between."""
    seconds = stages[min(source.stage, task.stage)].send
    if not seconds or source.stage % num_ranks == task.stage % num_ranks:
        return of[source]
    link = num_ranks + 2 * min(source.stage, task.stage) + (task.phase == "backward")
    tasks[len(tasks)] = Task(stream=link, seconds=seconds, needs=(of[source],))
    return len(tasks) - 1


def _held(order: Sequence[StageTask], stages: Sequence[StageCost]) -> tuple[int, int]:
    """The most micro-batches, and the most bytes, between the two passes of a rank."""
    count = num_bytes = most = peak = 0
    for task in order:
        sign = 1 if task.phase == "forward" else -1
        count += sign
        num_bytes += sign * stages[task.stage].held_bytes
        most, peak = max(most, count), max(peak, num_bytes)
    return most, peak
