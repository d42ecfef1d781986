"""Simulates the execution of a task graph on streams that work first in, first out.

Source: FlexFlow, section 5.1 (task graph, Table 3), 5.2 (full simulation, Algorithm 1), assumptions A2 (links are
fully used) and A3 (first in, first out). A stream runs one task at a time: the arithmetic units of a device
class, a link, a communicator. Communication on a stream of its own overlaps with independent compute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from jaxplan.errors import ArgumentError


class Task(NamedTuple):
    """Something that occupies a stream for a while; a tuple, because graphs of ten thousands are made and compared.

    Attributes:
      stream: the stream that runs it.
      seconds: how long, at least 0.
      needs: tasks that have to end before it starts, each with a lower number than its own.
    """

    stream: int
    seconds: float
    needs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When every task runs.

    Attributes:
      tasks: number -> task.
      start: number -> seconds.
      end: number -> seconds.
    """

    tasks: Mapping[int, Task]
    start: Mapping[int, float]
    end: Mapping[int, float]

    @property
    def makespan(self) -> float:
        """Seconds until the last task ends."""
        return max(self.end.values(), default=0.0)

    def busy_seconds(self, stream: int) -> float:
        """Seconds that a stream works."""
        return sum(task.seconds for task in self.tasks.values() if task.stream == stream)


def simulate(tasks: Mapping[int, Task]) -> Timeline:
    """Run a task graph from the beginning (Algorithm 1).

    A stream takes tasks in the order in which they become ready, ties by number.

    Args:
      tasks: number -> task; numbers order the graph: a task needs lower ones alone.

    Raises:
      ArgumentError: a task needs itself, a later or an unknown task, or takes negative time.

    Example:
      >>> dot, gather, other = Task(0, 1.0, ()), Task(1, 2.0, (0,)), Task(0, 1.5, ())
      >>> simulate({0: dot, 1: gather, 2: other}).makespan  # the gather runs beside the other dot
      3.0
    """
    users, missing, queue = _waiting(tasks)
    ready = dict.fromkeys(tasks, 0.0)
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    free: dict[int, float] = {}
    while queue:
        begin, number = heappop(queue)
        stream, seconds, _ = tasks[number]
        idle = free.get(stream, 0.0)
        if idle > begin:
            begin = idle
        start[number] = begin
        end[number] = free[stream] = finish = begin + seconds
        for user in users[number]:
            if finish > ready[user]:
                ready[user] = finish
            missing[user] -= 1
            if not missing[user]:
                heappush(queue, (ready[user], user))
    return Timeline(tasks=tasks, start=start, end=end)


def _waiting(
    tasks: Mapping[int, Task],
) -> tuple[dict[int, list[int]], dict[int, int], list[tuple[float, int]]]:
    """Return number -> tasks that need it, number -> needs that have to end, and a heap of tasks without any."""
    users: dict[int, list[int]] = {number: [] for number in tasks}
    missing: dict[int, int] = {}
    queue: list[tuple[float, int]] = []
    for number, task in tasks.items():
        _, seconds, needs = task
        if not seconds >= 0:
            check_task(number, task, tasks)
        missing[number] = len(needs)
        if not needs:
            queue.append((0.0, number))
        for other in needs:
            if other >= number or other not in users:
                check_task(number, task, tasks)
            users[other].append(number)
    heapify(queue)
    return users, missing, queue


def check_task(number: int, task: Task, tasks: Collection[int]) -> None:
    """Refuse a task that cannot be run."""
    if not task.seconds >= 0:
        raise ArgumentError(f"task {number} takes {task.seconds} s; expected at least 0")
    for other in task.needs:
        if other >= number or other not in tasks:
            raise ArgumentError(
                f"task {number} needs task {other}; expected a known one with a lower number (numbers follow the graph)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Bytes that live from the start of one task to the end of the last of some others.

    Attributes:
      num_bytes: size.
      made_by: the task that writes it; None: there from the beginning.
      used_by: tasks that read it; None: kept to the end.
    """

    num_bytes: int
    made_by: int | None = None
    used_by: tuple[int, ...] | None = None


def memory_curve(timeline: Timeline, buffers: Sequence[Buffer]) -> list[tuple[float, int]]:
    """Return (seconds, bytes alive from then on), ascending in time; the top is the peak memory.

    A buffer that ends at an instant is freed before buffers that begin there are allocated.
    """
    changes: dict[tuple[float, int], int] = {}
    finish = timeline.makespan
    for buffer in buffers:
        born = 0.0 if buffer.made_by is None else timeline.start[buffer.made_by]
        dies = finish
        if buffer.used_by is not None:
            ends = [timeline.end[task] for task in buffer.used_by]
            own = born if buffer.made_by is None else timeline.end[buffer.made_by]
            dies = max([own, *ends])
            changes[dies, 0] = changes.get((dies, 0), 0) - buffer.num_bytes
        changes[born, 1] = changes.get((born, 1), 0) + buffer.num_bytes
    curve: list[tuple[float, int]] = []
    alive = 0
    for (when, _), change in sorted(changes.items()):
        alive += change
        if curve and curve[-1][0] == when:
            curve[-1] = (when, max(alive, curve[-1][1]) if change > 0 else alive)
        else:
            curve.append((when, alive))
    return curve


def chrome_trace(
    timeline: Timeline, name_task: Callable[[int], str], name_stream: Callable[[int], str]
) -> dict[str, Any]:
    """Return the timeline in the Trace Event Format, to be written as JSON and opened in Perfetto.

    Source: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (complete events).
    """
    streams = sorted({task.stream for task in timeline.tasks.values()})
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": stream, "args": {"name": name_stream(stream)}}
        for stream in streams
    ]
    for number in sorted(timeline.tasks):
        task = timeline.tasks[number]
        events.append(
            {
                "name": name_task(number),
                "ph": "X",
                "pid": 0,
                "tid": task.stream,
                "ts": timeline.start[number] * 1e6,
                "dur": task.seconds * 1e6,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
