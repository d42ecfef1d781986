"""Takes the tasks of a graph an instant at a time, in arrays (see `_instant_simulator.py`)."""

from __future__ import annotations

import itertools
from heapq import heappop, heappush

import numpy as np


class ConflictError(Exception):
    """A task that takes no time lets another begin at once, which goes before one taken together with the first."""


class Instants:
    """Tasks that wait for others, by slot, and those that are ready, by instant.

    Args:
      tail, head: by slot, whether a task is taken again or stays; those that stay are ready before the others.
      tasks: number, stream and seconds by slot.
      needs: for each need the slot that is needed, and the slot that needs it.
      times: ready and end by slot, right for the head.
      num_streams: streams are below.
    """

    def __init__(
        self,
        tail: np.ndarray,
        head: np.ndarray,
        tasks: tuple[np.ndarray, np.ndarray, np.ndarray],
        needs: tuple[np.ndarray, np.ndarray],
        times: tuple[np.ndarray, np.ndarray],
        num_streams: int,
    ) -> None:
        self.number, self.stream, self.seconds = tasks
        self.ready, self.end = (column.copy() for column in times)
        self.free = np.zeros(num_streams)
        np.maximum.at(self.free, self.stream[head], self.end[head])
        source, target = (column[tail[needs[1]]] for column in needs)
        inner = tail[source]
        self.ready[tail] = 0.0
        np.maximum.at(self.ready, target[~inner], self.end[source[~inner]])
        source, target = source[inner], target[inner]
        self.missing = np.bincount(target, minlength=len(tail))
        self.users = target[np.argsort(source, kind="stable")]
        self.num_users = np.bincount(source, minlength=len(tail))
        self.first_user = np.cumsum(self.num_users) - self.num_users
        self.places = np.arange(max(num_streams, len(tail), len(self.users)))
        self.ones = np.ones(len(self.users), np.int64)
        self.place_of_stream = np.zeros(num_streams, np.int64)
        self.place_of_task = np.zeros(len(tail), np.int64)
        self.instants: list[float] = []
        self.waiting: dict[float, list[np.ndarray]] = {}
        self.enqueue(np.flatnonzero(tail & (self.missing == 0)))

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        """Return when each task is ready and ends, those of the tail taken again.

        Raises:
          ConflictError: the ready tasks of an instant depend on the order in which its first tasks are taken.
        """
        last, taken = -1.0, []
        while self.instants:
            now = heappop(self.instants)
            groups = self.waiting.pop(now)
            group = groups[0] if len(groups) == 1 else np.concatenate(groups)
            if now == last:
                self.check_order(np.concatenate(taken), group)
            else:
                last, taken = now, []
            taken.append(group)
            while len(group):
                group = self.take(now, group)
        return self.ready, self.end

    def take(self, now: float, group: np.ndarray) -> np.ndarray:
        """Take tasks that are ready now, the first of each stream; return the others."""
        rest = group[:0]
        if len(group) == 1:
            self.take_one(now, group.item())
            return rest
        stream = self.stream[group]
        places = self.places[: len(group)]
        self.place_of_stream[stream] = places
        if np.count_nonzero(self.place_of_stream[stream] != places):
            group = group[np.argsort(self.number[group])]
            stream = self.stream[group]
            self.place_of_stream[stream[::-1]] = places[::-1]
            is_first = self.place_of_stream[stream] == places
            group, stream, rest = group[is_first], stream[is_first], group[~is_first]
        end = np.maximum(self.free[stream], now) + self.seconds[group]
        self.end[group] = self.free[stream] = end
        counts = self.num_users[group]
        first = self.first_user[group]
        if np.count_nonzero(counts != 1) == 0:
            self.release(self.users[first], end)
        elif np.count_nonzero(counts):
            until = np.cumsum(counts)
            where = np.repeat(first - until + counts, counts) + self.places[: until[-1]]
            self.release(self.users[where], np.repeat(end, counts))
        return rest

    def take_one(self, now: float, slot: int) -> None:
        stream = self.stream.item(slot)
        end = max(self.free.item(stream), now) + self.seconds.item(slot)
        self.end[slot] = self.free[stream] = end
        count = self.num_users.item(slot)
        if count:
            first = self.first_user.item(slot)
            self.release(self.users[first : first + count], end)

    def release(self, users: np.ndarray, end: np.ndarray | float) -> None:
        """Let tasks go on that need some which end; one comes as often as it needs them."""
        if len(users) == 1:
            user, when = users.item(), end.item() if isinstance(end, np.ndarray) else end
            if when > self.ready.item(user):
                self.ready[user] = when
            missing = self.missing.item(user) - 1
            self.missing[user] = missing
            if not missing:
                self.wait(self.ready.item(user), users)
            return
        np.maximum.at(self.ready, users, end)
        np.subtract.at(self.missing, users, self.ones[: len(users)])
        free = users[self.missing[users] == 0]
        if len(free) > 1:
            places = self.places[: len(free)]
            self.place_of_task[free] = places
            free = free[self.place_of_task[free] == places]
        self.enqueue(free)

    def enqueue(self, slots: np.ndarray) -> None:
        """Note tasks that wait for their instant alone."""
        ready = self.ready[slots]
        if len(slots) > 1 and np.count_nonzero(ready != ready[0]):
            order = np.argsort(ready, kind="stable")
            slots, ready = slots[order], ready[order]
            cuts = [0, *(np.flatnonzero(ready[1:] != ready[:-1]) + 1).tolist(), len(slots)]
            for first, last in itertools.pairwise(cuts):
                self.wait(float(ready[first]), slots[first:last])
        elif len(slots):
            self.wait(ready.item(0), slots)

    def wait(self, when: float, slots: np.ndarray) -> None:
        groups = self.waiting.get(when)
        if groups is None:
            heappush(self.instants, when)
            self.waiting[when] = [slots]
        else:
            groups.append(slots)

    def check_order(self, taken: np.ndarray, group: np.ndarray) -> None:
        """Raise where one of a group should have been taken before one on its stream that was, this instant."""
        highest = np.full(len(self.free), -1)
        np.maximum.at(highest, self.stream[taken], self.number[taken])
        if (highest[self.stream[group]] > self.number[group]).any():
            raise ConflictError
