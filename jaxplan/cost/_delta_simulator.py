"""Changes a simulated timeline where a change of the task graph reaches it, and nowhere else.

Source: FlexFlow, section 5.3 and Algorithm 2. The timeline is that of `simulate`, to the bit: both take tasks of a
stream in the order of (ready, number), and that order and its times have one solution.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Mapping

from jaxplan._errors import ArgumentError
from jaxplan.cost._simulator import Task, Timeline, check_task, simulate

_Times = tuple[float, float, float]  # ready, start, end


class DeltaSimulation:
    """A task graph with its timeline, which follow changes and take the last one back.

    Law: after any changes, `timeline()` equals `simulate(self.tasks)`.

    Attributes:
      tasks: number -> task. Do not write to it.
    """

    def __init__(self, tasks: Mapping[int, Task]) -> None:
        timeline = simulate(tasks)
        self.tasks = dict(tasks)
        self._users: dict[int, dict[int, None]] = {number: {} for number in tasks}
        self._times: dict[int, _Times] = {}
        self._order: dict[int, list[tuple[float, int]]] = {}
        for number, task in tasks.items():
            ready = max((timeline.end[other] for other in task.needs), default=0.0)
            self._times[number] = (ready, timeline.start[number], timeline.end[number])
            self._order.setdefault(task.stream, []).append((ready, number))
            for other in task.needs:
                self._users[other][number] = None
        for order in self._order.values():
            order.sort()
        self._queue: list[tuple[float, int]] = []
        self._waiting: dict[int, float] = {}
        self._old_tasks: dict[int, Task | None] = {}
        self._old_times: dict[int, _Times | None] = {}

    @property
    def makespan(self) -> float:
        """Seconds until the last task ends."""
        return max((self._times[order[-1][1]][2] for order in self._order.values() if order), default=0.0)

    @property
    def num_touched(self) -> int:
        """Tasks whose times the last change altered."""
        return len(self._old_times)

    def timeline(self) -> Timeline:
        """Return when every task runs now."""
        return Timeline(
            tasks=dict(self.tasks),
            start={number: times[1] for number, times in self._times.items()},
            end={number: times[2] for number, times in self._times.items()},
        )

    def change(self, updates: Mapping[int, Task | None]) -> float:
        """Add, replace and (None) remove tasks; return the new makespan.

        Raises:
          ArgumentError: a task that stays needs one that goes, or a new one cannot be run.
        """
        updates = {number: task for number, task in updates.items() if self.tasks.get(number) != task}
        self._check(updates)
        self._old_tasks = {number: self.tasks.get(number) for number in updates}
        self._old_times = {}
        for number, task in updates.items():
            self._take_out(number, task is None)
        for number, task in updates.items():
            if task is not None:
                self.tasks[number] = task
                self._users.setdefault(number, {})
        for number, task in updates.items():
            if task is None:
                self._users.pop(number, None)
                continue
            for other in task.needs:
                self._users[other][number] = None
            self._wait(number)
        self._settle()
        return self.makespan

    def undo(self) -> None:
        """Take the last change back."""
        for number in self._old_times:
            if number in self._times:
                self._displace(number)
        for number, task in self._old_tasks.items():
            self._unlink(number)
            if task is None:
                self.tasks.pop(number, None)
                self._users.pop(number, None)
            else:
                self.tasks[number] = task
                self._users.setdefault(number, {})
        for number, task in self._old_tasks.items():
            for other in task.needs if task is not None else ():
                self._users[other][number] = None
        for number, times in self._old_times.items():
            if times is not None:
                self._times[number] = times
                insort(self._order.setdefault(self.tasks[number].stream, []), (times[0], number))
        self._old_tasks, self._old_times = {}, {}

    def _check(self, updates: Mapping[int, Task | None]) -> None:
        """Refuse changes that leave a graph that cannot be run; nothing has changed then."""
        gone = {number for number, task in updates.items() if task is None}
        for number, task in updates.items():
            if task is not None:
                known = {other for other in task.needs if other in updates or other in self.tasks} - gone
                check_task(number, task, dict.fromkeys(known))
                continue
            for user in self._users.get(number, {}):
                if user not in updates:
                    raise ArgumentError(
                        f"task {number} is removed, but task {user} needs it; change that one too"
                    )

    def _take_out(self, number: int, for_good: bool) -> None:
        """Remove a task from its stream and from what it needs; what came after it on the stream may move up."""
        if number not in self.tasks:
            self._old_times.setdefault(number, None)
            return
        self._remember(number)
        following = self._displace(number)
        if following is not None:
            self._wait(following)
        self._unlink(number)
        if for_good:
            del self.tasks[number]

    def _unlink(self, number: int) -> None:
        task = self.tasks.get(number)
        for other in task.needs if task is not None else ():
            if other in self._users:
                self._users[other].pop(number, None)

    def _settle(self) -> None:
        """Work off waiting tasks, the earliest first, until nothing changes any more (lines 6 to 14)."""
        while self._queue:
            key, number = heapq.heappop(self._queue)
            if self._waiting.get(number) != key:
                continue
            del self._waiting[number]
            if number in self.tasks:
                self._update(number)

    def _update(self, number: int) -> None:
        task, times = self.tasks[number], self._times
        ready = self._ready(task)
        old = times.get(number)
        if old is None or old[0] != ready:
            self._remember(number)
            if old is not None:
                following = self._displace(number)
                if following is not None:
                    self._wait(following)
            order = self._order.setdefault(task.stream, [])
            place = bisect_left(order, (ready, number))
            order.insert(place, (ready, number))
        else:
            order = self._order[task.stream]
            place = bisect_left(order, (ready, number))
        start = max(ready, times[order[place - 1][1]][2]) if place else ready
        end = start + task.seconds
        if old is not None and old == (ready, start, end):
            return
        self._remember(number)
        times[number] = (ready, start, end)
        if place + 1 < len(order):
            self._wait(order[place + 1][1])
        if old is None or old[2] != end:
            for user in self._users[number]:
                self._wait(user)

    def _ready(self, task: Task) -> float:
        """Return when the last task that is needed ends, as far as that is known."""
        times = self._times
        return max((times[other][2] for other in task.needs if other in times), default=0.0)

    def _wait(self, number: int) -> None:
        task = self.tasks.get(number)
        if task is None:
            return
        key = self._ready(task)
        if self._waiting.get(number) != key:
            self._waiting[number] = key
            heapq.heappush(self._queue, (key, number))

    def _displace(self, number: int) -> int | None:
        """Take a placed task off its stream and return the one after it."""
        order = self._order[self.tasks[number].stream]
        ready, _, _ = self._times.pop(number)
        place = bisect_left(order, (ready, number))
        del order[place]
        return order[place][1] if place < len(order) else None

    def _remember(self, number: int) -> None:
        self._old_times.setdefault(number, self._times.get(number))
