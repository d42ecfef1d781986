"""Delta simulation of graphs in which many tasks are ready at the same instant, an instant at a time, in arrays.

On 64 devices the 11,000 tasks of an unrolled RNN become ready at 200 different times: parts of an operator and the
transfers between two start together. Algorithm 1 takes tasks by (ready, number), and those of one instant on different
streams do not depend on each other, so they are taken together; those on one stream follow each other by number. As in
`DeltaSimulation`, tasks ready before the first changed one keep their times. The timeline equals `simulate`'s to the
bit: it takes the same sums and maxima of the same numbers.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from jaxplan.errors import ArgumentError
from jaxplan.simulate._delta_simulator import check_updates
from jaxplan.simulate._instants import ConflictError, Instants
from jaxplan.simulate._simulator import Task, Timeline, simulate


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _State:
    """A graph and its timeline, by slot; never written to.

    Attributes:
      number, stream, seconds: of the task in each slot; streams by their place in `InstantSimulation._streams`.
      alive: whether the slot holds a task.
      source, target: slots of the two ends of each need: the needed task and the task that needs it.
      ready, end: seconds; 0 where there is no task.
    """

    number: np.ndarray
    stream: np.ndarray
    seconds: np.ndarray
    alive: np.ndarray
    source: np.ndarray
    target: np.ndarray
    ready: np.ndarray
    end: np.ndarray


_BY_SLOT = ("number", "stream", "seconds", "alive", "ready", "end")


def _empty() -> _State:
    whole = {name: np.zeros(0, np.int64) for name in ("number", "stream", "source", "target")}
    real = {name: np.zeros(0) for name in ("seconds", "ready", "end")}
    return _State(alive=np.zeros(0, bool), **whole, **real)


class InstantSimulation:
    """As `DeltaSimulation`, its law and attributes included, for graphs with many tasks an instant."""

    def __init__(self, tasks: Mapping[int, Task]) -> None:
        self.tasks: dict[int, Task] = {}
        self.num_touched = 0
        self._streams: dict[int, int] = {}
        self._slots: dict[int, int] = {}
        self._state = _empty()
        self._undo: tuple[_State, dict[int, Task | None], dict[int, int | None]] | None = None
        self.change(tasks)
        self._undo = None

    @property
    def makespan(self) -> float:
        """Seconds until the last task ends."""
        return float(self._state.end.max(initial=0.0))

    def timeline(self) -> Timeline:
        """Return when every task runs now."""
        state = self._state
        alive = np.flatnonzero(state.alive)
        order = alive[np.lexsort((state.number[alive], state.ready[alive], state.stream[alive]))]
        before = np.concatenate([[0.0], state.end[order][:-1]])
        before[np.flatnonzero(np.diff(state.stream[order], prepend=-1))] = 0.0
        numbers = state.number[order].tolist()
        return Timeline(
            tasks=dict(self.tasks),
            start=dict(zip(numbers, np.maximum(state.ready[order], before).tolist())),
            end=dict(zip(numbers, state.end[order].tolist())),
        )

    def change(self, updates: Mapping[int, Task | None]) -> float:
        """Add, replace and (None) remove tasks; return the new makespan.

        Raises:
          ArgumentError: a task that stays needs one that goes, or a new one cannot be run. Nothing has changed then.
        """
        updates = {number: task for number, task in updates.items() if self.tasks.get(number) != task}
        slots = self._renamed(updates)
        try:
            edited, changed = self._edited(updates, slots)
        except ArgumentError:
            self._put_slots(slots)
            raise
        self._undo = self._state, {number: self.tasks.get(number) for number in updates}, slots
        self._put(updates)
        tail = self._tail(edited, changed)
        tasks = edited.number, edited.stream, edited.seconds
        needs, times = (edited.source, edited.target), (edited.ready, edited.end)
        try:
            instants = Instants(tail, edited.alive & ~tail, tasks, needs, times, len(self._streams))
            ready, end = instants.run()
        except ConflictError:
            tail = edited.alive
            ready, end = self._by_task(edited)
        self._state = dataclasses.replace(edited, ready=ready, end=end)
        self.num_touched = np.count_nonzero(tail)
        return self.makespan

    def undo(self) -> None:
        """Take the last change back; nothing happens where there is none."""
        if self._undo is not None:
            self._state, replaced, slots = self._undo
            self._put(replaced)
            self._put_slots(slots)
            self._undo = None

    def _put(self, updates: Mapping[int, Task | None]) -> None:
        for number, task in updates.items():
            if task is None:
                self.tasks.pop(number, None)
            else:
                self.tasks[number] = task

    def _put_slots(self, slots: Mapping[int, int | None]) -> None:
        for number, slot in slots.items():
            if slot is None:
                del self._slots[number]
            else:
                self._slots[number] = slot

    def _renamed(self, updates: Mapping[int, Task | None]) -> dict[int, int | None]:
        """Free the slots of removed tasks and assign slots to new ones; return the change that undoes this."""
        slots, alive = self._slots, self._state.alive
        before: dict[int, int | None] = {
            number: slots.pop(number) for number, task in updates.items() if task is None and number in slots
        }
        added = [number for number, task in updates.items() if task is not None and number not in slots]
        # Not slots freed by this change: tasks that need a removed task would then need its successor in the slot.
        unused = np.flatnonzero(~alive)[: len(added)].tolist()
        slots.update(zip(added, itertools.chain(unused, itertools.count(len(alive)))))
        return before | dict.fromkeys(added)

    def _edited(
        self, updates: Mapping[int, Task | None], before_slots: Mapping[int, int | None]
    ) -> tuple[_State, np.ndarray]:
        """The graph with tasks added, replaced and removed, and their slots; old times stay, removed tasks have 0."""
        before, slots = self._state, self._slots
        gone = [slot for slot in before_slots.values() if slot is not None]
        present = {number: task for number, task in updates.items() if task is not None}
        where = [slots[number] for number in present]
        size = max(len(before.alive), max(where, default=-1) + 1)
        columns = {name: _grown(getattr(before, name), size) for name in _BY_SLOT}
        changed = np.zeros(size, bool)
        changed[gone] = changed[where] = True
        for name in ("alive", "ready", "end"):
            columns[name][gone] = 0
        columns["alive"][where] = True
        columns["number"][where] = list(present)
        streams = self._streams
        columns["stream"][where] = [streams.setdefault(task.stream, len(streams)) for task in present.values()]
        columns["seconds"][where] = seconds = [task.seconds for task in present.values()]
        needs = [task.needs for task in present.values()]
        others = itertools.chain.from_iterable(needs)
        source = np.array([slots.get(other, -1) for other in others], np.int64)
        target = np.repeat(np.array(where, np.int64), [len(some) for some in needs])
        kept = ~changed[before.target]
        old = before.source[kept]
        is_right = source.min(initial=0) >= 0 and np.all(columns["number"][source] < columns["number"][target])
        is_right &= all(length >= 0 for length in seconds) and np.all(columns["alive"][old])
        if not is_right:
            self._refuse(updates)
        source, target = np.concatenate([old, source]), np.concatenate([before.target[kept], target])
        return _State(source=source, target=target, **columns), changed

    def _refuse(self, updates: Mapping[int, Task | None]) -> NoReturn:
        """Raise the error for an invalid change."""
        users: dict[int, list[int]] = {number: [] for number, task in updates.items() if task is None}
        for number, task in self.tasks.items():
            for other in task.needs:
                if other in users:
                    users[other].append(number)
        check_updates(self.tasks, updates, users)
        raise AssertionError(f"a change of {len(updates)} tasks was refused for no reason")

    def _tail(self, edited: _State, touched: np.ndarray) -> np.ndarray:
        """Which tasks are to be taken again: those of the change, and all that are not ready before its first."""
        before = self._state
        old = np.flatnonzero(touched[: len(before.number)] & before.alive)
        times, numbers = [before.ready[old]], [before.number[old]]
        inner = touched[edited.target]
        source, target = edited.source[inner], edited.target[inner]
        ready = np.zeros(len(touched))
        np.maximum.at(ready, target, edited.end[source])
        fresh = touched & edited.alive
        fresh[target[touched[source]]] = False
        times.append(ready[fresh])
        numbers.append(edited.number[fresh])
        when, number = np.concatenate(times), np.concatenate(numbers)
        if not len(when):
            return touched & edited.alive
        first = when.min()
        lowest = number[when == first].min()
        later = (edited.ready > first) | ((edited.ready == first) & (edited.number >= lowest))
        return edited.alive & (later | touched)

    def _by_task(self, edited: _State) -> tuple[np.ndarray, np.ndarray]:
        """When each task is ready and ends, from the beginning, task by task."""
        ready, end = np.zeros(len(edited.number)), np.zeros(len(edited.number))
        for number, when in simulate(self.tasks).end.items():
            end[self._slots[number]] = when
        np.maximum.at(ready, edited.target, end[edited.source])
        return ready, end


def _grown(column: np.ndarray, size: int) -> Any:
    """A copy with room for so many slots."""
    result = np.zeros(size, column.dtype)
    result[: len(column)] = column
    return result
