"""Simulates the execution of a task graph on streams that work first in, first out.

Source: FlexFlow, section 5.1 (task graph, Table 3), 5.2 (full simulation, Algorithm 1), assumptions A2 (links are
fully used) and A3 (first in, first out). A stream is what runs one task at a time: the arithmetic of a device
class, a link, a communicator. Communication on a stream of its own overlaps with what does not need it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxplan._errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Something that occupies a stream for a while.

    Attributes:
      stream: what runs it.
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
    """
    for number, task in tasks.items():
        check_task(number, task, tasks)
    state = Execution.of(tasks)
    state.run(tasks)
    return Timeline(tasks=tasks, start=state.start, end=state.end)


@dataclass(slots=True, kw_only=True)
class Execution:
    """What Algorithm 1 knows on its way.

    Attributes:
      users: number -> tasks that need it.
      start: number -> seconds, of tasks that were taken.
      end: number -> seconds.
      free: stream -> seconds from which on it is free.
      free_before: number -> seconds from which on its stream was free when the task was taken.
      sequence: (ready, number) of the tasks taken, in that order, which is ascending.
    """

    users: dict[int, list[int]]
    start: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)
    free: dict[int, float] = field(default_factory=dict)
    free_before: dict[int, float] = field(default_factory=dict)
    sequence: list[tuple[float, int]] = field(default_factory=list)

    @classmethod
    def of(cls, tasks: Mapping[int, Task]) -> Execution:
        """Return the beginning: nothing was taken yet."""
        users: dict[int, list[int]] = {number: [] for number in tasks}
        for number, task in tasks.items():
            for other in task.needs:
                users[other].append(number)
        return cls(users=users)

    def run(self, tasks: Mapping[int, Task]) -> None:
        """Take the tasks that were not taken yet, with `tasks` among them; a stream that is unknown is free."""
        start, end, free, users = self.start, self.end, self.free, self.users
        ready: dict[int, float] = {}
        missing: dict[int, int] = {}
        queue: list[tuple[float, int]] = []
        for number, task in tasks.items():
            when, count = 0.0, 0
            for other in task.needs:
                ended = end.get(other)
                if ended is None:
                    count += 1
                elif ended > when:
                    when = ended
            ready[number], missing[number] = when, count
            if not count:
                queue.append((when, number))
        heapq.heapify(queue)
        while queue:
            taken = when, number = heapq.heappop(queue)
            task = tasks[number]
            idle = free.get(task.stream, 0.0)
            self.free_before[number] = idle
            self.sequence.append(taken)
            begin = when if when > idle else idle
            start[number] = begin
            end[number] = free[task.stream] = finish = begin + task.seconds
            for user in users[number]:
                if finish > ready[user]:
                    ready[user] = finish
                missing[user] -= 1
                if not missing[user]:
                    heapq.heappush(queue, (ready[user], user))


def check_task(number: int, task: Task, tasks: Mapping[int, Any]) -> None:
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

    What ends at an instant is freed before what begins there is allocated.
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
