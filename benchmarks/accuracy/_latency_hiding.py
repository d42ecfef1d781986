"""The order in which XLA's latency-hiding scheduler runs the instructions of a computation, simulated.

The scheduler works from the end of the program to its beginning: it takes one of the instructions that are read by
scheduled ones only, and puts it before them. One collective is in flight at a time. Which instruction it takes, by the
first of these on which two differ:

1. the end of a collective: as late as it may be;
2. the one that waits least for a collective to have run long enough;
3. no beginning of a collective that depends on no other one;
4. the one behind the longest chain of collectives;
5. the one whose time is nearest to what is still to be hidden;
6. one that reads the end of a collective, then one that is the last reader of more values;
7. the one that came last in the order before.

Bitcasts, tuples and parameters are placed as soon as they may be.
https://github.com/openxla/xla/blob/main/xla/service/latency_hiding_scheduler.cc
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_EDGE = 1.0
"""Microseconds between an instruction and its reader that are no ends of one collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One instruction.

    Attributes:
      operands: indices of the instructions that it reads; of the end of a collective its beginning first.
      cost: microseconds that it takes.
      kind: ``start`` and ``done`` are the ends of a collective; a ``view`` takes no time and no kernel.
      latency: microseconds of the collective that it begins.
    """

    operands: tuple[int, ...] = ()
    cost: float = 0.0
    kind: Literal["compute", "start", "done", "view"] = "compute"
    latency: float = 0.0


def latency_hiding_order(nodes: Sequence[Node]) -> list[int]:
    """Indices of nodes in the order in which they run; the last node is the result of the computation.

    >>> dot, start, done, other = Node(cost=9), Node(operands=(0,), kind="start", latency=5), Node(
    ...     operands=(1,), kind="done"), Node(cost=9)
    >>> latency_hiding_order([dot, start, done, other, Node(operands=(2, 3))])  # the other dot runs beside it
    [0, 1, 3, 2, 4]
    """
    return _Schedule(nodes).run()


def order_before(nodes: Sequence[Node]) -> list[int]:
    """The order that the scheduler starts from: operands first, collectives begun at once and ended for their readers.

    It breaks ties only, so that the orders of other schedulers, which look at memory, do nearly as well.
    """
    readers = _readers(nodes)
    order = _post_order(nodes)
    begun: list[int] = []
    placed: set[int] = set()
    for x in order:
        if x in placed:
            continue
        begun.append(x)
        placed.add(x)
        ready = [y for y in readers[x] if nodes[y].kind == "start" and placed.issuperset(nodes[y].operands)]
        begun += ready
        placed.update(ready)
    reversed_order: list[int] = []
    placed = set()
    for x in reversed(begun):
        if x in placed:
            continue
        reversed_order.append(x)
        placed.add(x)
        ended = [y for y in nodes[x].operands if nodes[y].kind == "done" and placed.issuperset(readers[y])]
        reversed_order += ended
        placed.update(ended)
    return reversed_order[::-1]


def _readers(nodes: Sequence[Node]) -> list[list[int]]:
    readers: list[list[int]] = [[] for _ in nodes]
    for x, node in enumerate(nodes):
        for y in dict.fromkeys(node.operands):
            readers[y].append(x)
    return readers


def _post_order(nodes: Sequence[Node]) -> list[int]:
    """Depth first from what nothing reads, the result last."""
    readers, order, state = _readers(nodes), list[int](), [0] * len(nodes)
    unread = [x for x in range(len(nodes) - 1) if not readers[x]]
    stack = [len(nodes) - 1, *reversed(unread)]
    while stack:
        x = stack[-1]
        if state[x]:
            stack.pop()
            if state[x] == 1:
                state[x] = 2
                order.append(x)
            continue
        state[x] = 1
        stack += [y for y in reversed(dict.fromkeys(nodes[x].operands)) if not state[y]]
    return order


class _Schedule:
    """The state of the scheduler; time runs backwards."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes, self._readers = nodes, _readers(nodes)
        self._operands = [tuple(dict.fromkeys(node.operands)) for node in nodes]
        before = order_before(nodes)
        self._position = {x: i for i, x in enumerate(before)}
        self._depth = self._depths(before)
        self._unscheduled = [len(readers) for readers in self._readers]
        self._ready_at = [0.0] * len(nodes)
        self._now, self._in_flight, self._waiting_ends = 0.0, 0, 0
        self._views: list[int] = []
        self._ready: list[int] = []
        self._later: list[float] = []

    def _latency(self, x: int, reader: int) -> float:
        is_pair = self._nodes[reader].kind == "done" and self._operands[reader][0] == x
        return self._nodes[x].latency if is_pair else _EDGE

    def _depths(self, order: Sequence[int]) -> list[float]:
        """Latency of the longest chain of collectives up to each node."""
        depth = [0.0] * len(order)
        for x in order:
            is_end = self._nodes[x].kind == "done"
            depth[x] = max((depth[y] + is_end * self._latency(y, x) for y in self._operands[x]), default=0.0)
        return depth

    def run(self) -> list[int]:
        for x in self._position:
            if not self._unscheduled[x]:
                self._release(x)
        order: list[int] = []
        while len(order) < len(self._nodes):
            x = self._views.pop() if self._views else self._best()
            order.append(x)
            self._place(x)
        return order[::-1]

    def _release(self, x: int) -> None:
        """All readers of a node are scheduled."""
        self._waiting_ends += self._nodes[x].kind == "done"
        if self._nodes[x].kind == "view":
            self._views.append(x)
            return
        self._ready.append(x)
        if self._ready_at[x] > self._now:
            heapq.heappush(self._later, self._ready_at[x])

    def _place(self, x: int) -> None:
        kind = self._nodes[x].kind
        self._in_flight += (kind == "done") - (kind == "start")
        self._waiting_ends -= kind == "done"
        self._ready_at[x] = self._earliest(x)
        self._now = self._ready_at[x] + self._nodes[x].cost
        while self._later and self._later[0] < self._now:
            heapq.heappop(self._later)
        for y in self._operands[x]:
            self._unscheduled[y] -= 1
            if not self._unscheduled[y]:
                self._ready_at[y] = self._earliest(y)
                self._release(y)

    def _earliest(self, x: int) -> float:
        return max([self._now, *(self._ready_at[r] + self._latency(x, r) for r in self._readers[x])])

    def _best(self) -> int:
        candidates = [x for x in self._ready if self._nodes[x].kind != "done" or not self._in_flight]
        best = candidates[0]
        for x in candidates[1:]:
            if self._is_better(x, best):
                best = x
        self._ready.remove(best)
        return best

    def _is_better(self, x: int, other: int) -> bool:
        one, two = self._urgency(x), self._urgency(other)
        if one != two:
            return one > two
        if self._later:
            left = self._later[0] - self._now
            wasted = [abs(left - self._nodes[y].cost) for y in (x, other)]
            is_compute = [self._nodes[y].kind != "start" for y in (x, other)]
            less = is_compute[0] and wasted[0] < wasted[1], is_compute[1] and wasted[1] < wasted[0]
            if less[0] != less[1]:
                return less[0]
        return self._unlocks(x) > self._unlocks(other)

    def _urgency(self, x: int) -> tuple[bool, float, bool, bool, float]:
        kind, depth = self._nodes[x].kind, self._depth[x]
        is_awaited = kind == "start" and self._in_flight > 0 and self._waiting_ends > 0
        may_begin = kind != "start" or depth > 0 or is_awaited
        return kind == "done", -max(self._ready_at[x] - self._now, 0.0), may_begin, is_awaited, depth

    def _unlocks(self, x: int) -> tuple[bool, int, int]:
        ends = any(self._nodes[y].kind == "done" for y in self._operands[x])
        return ends, sum(self._unscheduled[y] == 1 for y in self._operands[x]), self._position[x]
