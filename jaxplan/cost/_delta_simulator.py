"""Changes a simulated timeline from where a change of the task graph first reaches it, and takes changes back.

Source: FlexFlow, section 5.3. There updates travel from task to task (Algorithm 2); measured on unrolled RNNs, a
change moves three quarters of all later tasks, and travelling updates come by a task nine times. Algorithm 1 takes
tasks in ascending order of (ready, number), so what comes before the first changed task stays, and the rest is taken
again, once each. The timeline is that of `simulate`, to the bit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from jaxplan._errors import ArgumentError
from jaxplan.cost._simulator import Execution, Task, Timeline, check_task

_Key = tuple[float, int]


class DeltaSimulation:
    """A task graph with its timeline, which follow changes and take the last one back.

    Law: after any changes, `timeline()` equals `simulate(self.tasks)`.

    Attributes:
      tasks: number -> task. Do not write to it.
      num_touched: tasks that the last change took again.
    """

    def __init__(self, tasks: Mapping[int, Task]) -> None:
        for number, task in tasks.items():
            check_task(number, task, tasks)
        self.tasks = dict(tasks)
        self.num_touched = 0
        self._state = Execution.of(tasks)
        self._state.run(tasks)
        self._undo: _Undo | None = None

    @property
    def makespan(self) -> float:
        """Seconds until the last task ends."""
        return max(self._state.free.values(), default=0.0)

    def timeline(self) -> Timeline:
        """Return when every task runs now."""
        return Timeline(tasks=dict(self.tasks), start=dict(self._state.start), end=dict(self._state.end))

    def change(self, updates: Mapping[int, Task | None]) -> float:
        """Add, replace and (None) remove tasks; return the new makespan.

        Raises:
          ArgumentError: a task that stays needs one that goes, or a new one cannot be run. Nothing has changed then.
        """
        updates = {number: task for number, task in updates.items() if self.tasks.get(number) != task}
        self._check(updates)
        self._undo = _Undo(self, updates)
        again = self._roll_back(self._undo.place)
        self._put(updates)
        for number, task in updates.items():
            if task is None:
                again.pop(number, None)
            else:
                again[number] = task
        self.num_touched = len(again)
        self._state.run(again)
        return self.makespan

    def undo(self) -> None:
        """Take the last change back; nothing happens where there is none."""
        undo, state = self._undo, self._state
        if undo is None:
            return
        self._roll_back(undo.place)
        self._put(undo.tasks)
        state.sequence += undo.sequence
        state.start |= undo.start
        state.end |= undo.end
        state.free_before |= undo.free_before
        state.free = undo.free
        self._undo = None

    def first_key(self, updates: Mapping[int, Task | None]) -> _Key:
        """Return the (ready, number) before which nothing can change."""
        end, sequence_key = self._state.end, (float("inf"), 0)
        for number, task in updates.items():
            old = self.tasks.get(number)
            for version in (old, task):
                if version is not None and not any(other in updates for other in version.needs):
                    ready = max((end[other] for other in version.needs), default=0.0)
                    sequence_key = min(sequence_key, (ready, number))
        return sequence_key

    def _roll_back(self, place: int) -> dict[int, Task]:
        """Forget all that was taken from a place on, and return those tasks."""
        state, again = self._state, {}
        for _, number in reversed(state.sequence[place:]):
            task = self.tasks[number]
            again[number] = task
            state.free[task.stream] = state.free_before.pop(number)
            del state.start[number], state.end[number]
        del state.sequence[place:]
        return again

    def _put(self, updates: Mapping[int, Task | None]) -> None:
        """Change the graph alone."""
        users = self._state.users
        for number in updates:
            old = self.tasks.pop(number, None)
            for other in old.needs if old is not None else ():
                users[other].remove(number)
        for number, task in updates.items():
            if task is not None:
                self.tasks[number] = task
                users.setdefault(number, [])
        for number, task in updates.items():
            for other in task.needs if task is not None else ():
                users[other].append(number)
        for number, task in updates.items():
            if task is None:
                users.pop(number, None)

    def _check(self, updates: Mapping[int, Task | None]) -> None:
        """Refuse changes that leave a graph that cannot be run."""
        gone = {number for number, task in updates.items() if task is None}
        for number, task in updates.items():
            if task is not None:
                known = {other for other in task.needs if other in updates or other in self.tasks} - gone
                check_task(number, task, dict.fromkeys(known))
                continue
            for user in self._state.users.get(number, ()):
                if user not in updates:
                    raise ArgumentError(
                        f"task {number} is removed, but task {user} needs it; change that one too"
                    )


class _Undo:
    """What a change overwrites."""

    def __init__(self, simulation: DeltaSimulation, updates: Mapping[int, Task | None]) -> None:
        state = simulation._state
        self.place = bisect_left(state.sequence, simulation.first_key(updates))
        self.tasks = {number: simulation.tasks.get(number) for number in updates}
        self.sequence = state.sequence[self.place :]
        numbers = [number for _, number in self.sequence]
        self.start = {number: state.start[number] for number in numbers}
        self.end = {number: state.end[number] for number in numbers}
        self.free_before = {number: state.free_before[number] for number in numbers}
        self.free = dict(state.free)
