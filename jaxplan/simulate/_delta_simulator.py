"""Changes a simulated timeline from where a change of the task graph first reaches it, and takes changes back.

Source: FlexFlow, section 5.3. Its updates travel from task to task (Algorithm 2). Measured on unrolled RNNs, one
change moves half of all tasks, and separating the moved tasks from the others that come later takes longer than
simulating all later tasks again. Algorithm 1 takes tasks in ascending order of (ready, number), so tasks before the
first changed one keep their times, and each later one is simulated once more. The timeline is that of
`simulate`, to the bit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heappush

from jaxplan.errors import ArgumentError
from jaxplan.simulate._simulator import Task, Timeline, check_task, simulate

_Record = tuple[float, int, int, float, float]
"""(ready, number, stream, end, before): before is when the stream was free for it; ascending in the timeline."""

_UNKNOWN = -1.0
"""When a task ends that is taken again, until it is."""


class DeltaSimulation:
    """A task graph with its timeline, which follow changes and take the last one back.

    Law: after any changes, `timeline()` equals `simulate(self.tasks)`.

    Attributes:
      tasks: number -> task. Do not write to it.
      num_touched: tasks that the last change took again.
    """

    def __init__(self, tasks: Mapping[int, Task]) -> None:
        self._end = dict(simulate(tasks).end)
        self.tasks = dict(tasks)
        self.num_touched = 0
        self._users: dict[int, set[int]] = {number: set() for number in tasks}
        for number, task in tasks.items():
            for other in task.needs:
                self._users[other].add(number)
        self._free: dict[int, float] = {}
        self._sequence: list[_Record] = []
        for ready, number in sorted((self._ready(task), number) for number, task in tasks.items()):
            stream, end = tasks[number].stream, self._end[number]
            self._sequence.append((ready, number, stream, end, self._free.get(stream, 0.0)))
            self._free[stream] = end
        self._undo: _Undo | None = None

    @property
    def makespan(self) -> float:
        """Seconds until the last task ends."""
        return max(self._free.values(), default=0.0)

    def timeline(self) -> Timeline:
        """Return when every task runs now."""
        start = {number: max(ready, before) for ready, number, _, _, before in self._sequence}
        return Timeline(tasks=dict(self.tasks), start=start, end=dict(self._end))

    def change(self, updates: Mapping[int, Task | None]) -> float:
        """Add, replace and (None) remove tasks; return the new makespan.

        Raises:
          ArgumentError: a task that stays needs one that goes, or a new one cannot be run. Nothing has changed then.
        """
        updates = {number: task for number, task in updates.items() if self.tasks.get(number) != task}
        check_updates(self.tasks, updates, self._users)
        place = bisect_left(self._sequence, self._first_key(updates))
        replaced = {number: self.tasks.get(number) for number in updates}
        self._undo = undo = _Undo(replaced, place, self._sequence[place:], self._free)
        self._put(updates)
        del self._sequence[place:]
        self._free = self._free.copy()
        for record in reversed(undo.tail):
            self._free[record[2]] = record[4]
        again = [record[1] for record in undo.tail if record[1] not in updates]
        again += [number for number, task in updates.items() if task is not None]
        self.num_touched = len(again)
        self._run(again)
        return self.makespan

    def undo(self) -> None:
        """Take the last change back; nothing happens where there is none."""
        undo = self._undo
        if undo is None:
            return
        self._undo = None
        self._put(undo.tasks)
        self._sequence[undo.place :] = undo.tail
        self._end.update({record[1]: record[3] for record in undo.tail})
        self._free = undo.free

    def _ready(self, task: Task) -> float:
        return max(map(self._end.__getitem__, task.needs), default=0.0)

    def _first_key(self, updates: Mapping[int, Task | None]) -> tuple[float, int]:
        """Return the (ready, number) before which nothing can change."""
        first = (math.inf, 0)
        for number, task in updates.items():
            for version in (self.tasks.get(number), task):
                if version is not None and updates.keys().isdisjoint(version.needs):
                    first = min(first, (self._ready(version), number))
        return first

    def _run(self, again: Collection[int]) -> None:
        """Take tasks again, after those that stay (`simulate` from here on)."""
        tasks, users, end, free = self.tasks, self._users, self._end, self._free
        ready, missing, queue = self._waiting(again)
        append = self._sequence.append
        while queue:
            begin, number = heappop(queue)
            stream, seconds, _ = tasks[number]
            before = free.get(stream, 0.0)
            finish = (begin if begin > before else before) + seconds
            end[number] = free[stream] = finish
            append((begin, number, stream, finish, before))
            for user in users[number]:
                if finish > ready[user]:
                    ready[user] = finish
                if missing[user] == 1:
                    heappush(queue, (ready[user], user))
                else:
                    missing[user] -= 1

    def _waiting(
        self, again: Collection[int]
    ) -> tuple[dict[int, float], dict[int, int], list[tuple[float, int]]]:
        """Return number -> earliest start by kept tasks, number -> open needs, and the tasks without open needs."""
        tasks, end = self.tasks, self._end
        end.update(dict.fromkeys(again, _UNKNOWN))
        ready: dict[int, float] = {}
        missing: dict[int, int] = {}
        queue: list[tuple[float, int]] = []
        for number in again:
            needs, when, count = tasks[number][2], 0.0, 0
            if len(needs) == 1:
                when = end[needs[0]]
                if when == _UNKNOWN:
                    when, count = 0.0, 1
            elif needs:
                ends = [end[other] for other in needs]
                when = max(0.0, *ends)
                count = ends.count(_UNKNOWN)
            if count:
                ready[number], missing[number] = when, count
            else:
                queue.append((when, number))
        heapify(queue)
        return ready, missing, queue

    def _put(self, updates: Mapping[int, Task | None]) -> None:
        """Change the graph alone."""
        tasks, users = self.tasks, self._users
        for number, task in updates.items():
            old = tasks.pop(number, None)
            if old is not None:
                for other in old.needs:
                    users[other].discard(number)
            if task is not None:
                tasks[number] = task
                users.setdefault(number, set())
        for number, task in updates.items():
            if task is not None:
                for other in task.needs:
                    users[other].add(number)
        for number, task in updates.items():
            if task is None:
                users.pop(number, None)
                self._end.pop(number, None)


def check_updates(
    tasks: Mapping[int, Task], updates: Mapping[int, Task | None], users: Mapping[int, Collection[int]]
) -> None:
    """Refuse changes that leave an invalid graph; ``users``: the tasks that need a removed task."""
    for number, task in updates.items():
        if task is None:
            for user in users.get(number, ()):
                if user not in updates:
                    raise ArgumentError(
                        f"task {number} is removed, but task {user} needs it; change that one too"
                    )
            continue
        known = [other for other in task.needs if updates.get(other, tasks.get(other)) is not None]
        check_task(number, task, known)


class _Undo:
    """The state that a change overwrites: tasks, the sequence from a place on, when streams are free."""

    __slots__ = ("free", "place", "tail", "tasks")

    def __init__(
        self, tasks: Mapping[int, Task | None], place: int, tail: list[_Record], free: dict[int, float]
    ) -> None:
        self.tasks, self.place, self.tail, self.free = tasks, place, tail, free
