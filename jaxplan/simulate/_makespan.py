"""The seconds of a simulated step alone: as `PlanSimulator` has them, without its tasks, for searches.

Compute runs in program order, so it is a sum that stops only where a kernel waits for a collective: kernels
between two of these are not walked.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.cost._transfers import Transfer
from jaxplan.mesh import collective_seconds
from jaxplan.simulate._simulated_plan import PlanSimulator

Pool = tuple[str, tuple[int, ...]]
"""Kind and axes of collectives that pay one latency together."""


class _Sent(NamedTuple):
    """One execution of a transfer: the kernel that waits for it, the equation after its operand's, and its steps.

    Attributes:
      steps: seconds of each collective, for all trips; with the pool that pays its latency, None where it is in them.
    """

    wait: int
    made: int
    moves_data: bool
    trips: int
    steps: tuple[tuple[float, Pool | None], ...]


class Chain(NamedTuple):
    """A chain of collectives, by numbers of kernels: it may start when so many have run, and so many run without it."""

    start: int
    wait: int
    seconds: tuple[float, ...]


class _EquationSeconds:
    """Seconds of every equation under each configuration of its group: the tables of the groups, (K, equations) each,
    one after the other; a table that several groups share is there once."""

    def __init__(self, tables: Sequence[np.ndarray]) -> None:
        begins, distinct, end = Memo(), list[np.ndarray](), 0
        for table in tables:
            if begins.number(table) not in begins:
                begins[begins.number(table)] = end
                distinct.append(table.ravel())
                end += table.size
        self._flat = np.concatenate(distinct or [np.zeros(0)])
        self._width = np.array([table.shape[1] for table in tables], dtype=np.int64)
        self._group = np.repeat(np.arange(len(tables)), self._width)
        first = np.array([begins[begins.number(table)] for table in tables], dtype=np.int64)
        place = np.arange(len(self._group)) - np.repeat(np.cumsum(self._width) - self._width, self._width)
        self._place = first[self._group] + place

    def of(self, assignment: Sequence[int]) -> np.ndarray:
        """The seconds of all equations, group after group."""
        rows = np.asarray(assignment, dtype=np.int64) * self._width
        return self._flat[self._place + rows[self._group]]


class Makespans:
    """Makespans of the assignments of one cost model; the part of an assignment that others share is kept."""

    def __init__(self, simulator: PlanSimulator) -> None:
        self._simulator, self._model = simulator, simulator.model
        groups = self._model.graph.grouping.groups
        self._sent = Memo()
        equations = [e for group in groups for e in group.equations]
        self._order = np.argsort(np.array(equations, dtype=np.int64), kind="stable")
        self._equations = np.array(equations, dtype=np.int64)[self._order]

    def of(self, assignment: Sequence[int], choices: Sequence[int]) -> float:
        """Seconds of one step (`PlanSimulator.makespan`)."""
        simulator = self._simulator
        transfers = simulator.predictor.transfers(assignment, choices)
        seconds = self._compute(assignment)
        is_kernel = seconds > 0
        equations, seconds = self._equations[is_kernel], seconds[is_kernel]
        ends = [0.0, *np.cumsum(seconds).tolist()]
        inner = simulator.inner_seconds(assignment, transfers)
        return makespan(ends, self._events(equations, transfers, inner))

    def _compute(self, assignment: Sequence[int]) -> np.ndarray:
        """Seconds of the equations of all groups, in program order."""
        if not assignment:
            return np.zeros(0)
        if self._model.link_bytes:
            of = [self._simulator.compute_seconds(v, label) for v, label in enumerate(assignment)]
            groups = self._model.graph.grouping.groups
            seconds = np.array([found.get(e, 0.0) for found, group in zip(of, groups) for e in group.equations])
        else:
            seconds = self._tables.of(assignment)
        seconds = seconds[self._order]
        seconds[:1] += self._simulator.seconds_before(assignment)
        return seconds

    @functools.cached_property
    def _tables(self) -> _EquationSeconds:
        return _EquationSeconds([self._model.equation_seconds(v) for v in range(len(self._model.configurations))])

    def _events(
        self, equations: np.ndarray, transfers: Sequence[Transfer], inner: dict[int, list[float]]
    ) -> list[Chain]:
        """Chains of collectives in the order of their numbers (`PlanSimulator._tasks`)."""
        pools: Counter[Pool] = Counter()
        sent: list[tuple[int, _Sent]] = []
        for transfer in transfers:
            for turn, one in enumerate(self._of_transfer(transfer)):
                sent.append((one.wait, one))
                if turn == 0:
                    pools.update({pool: one.trips for _, pool in one.steps if pool is not None})
        sent.sort(key=lambda item: item[0])  # stable: of one kernel by transfer and execution
        waits = sorted({wait for wait, one in sent if one.moves_data})
        ahead = dict(zip(waits, (0, *waits)))
        latency = {pool: self._latency(pool) / count for pool, count in pools.items()}
        starts = [max(one.made, ahead[wait]) if one.moves_data else one.made for wait, one in sent]
        ranks = np.searchsorted(
            equations, np.array([starts, [wait for wait, _ in sent]], dtype=np.int64)
        ).tolist()
        events = [
            Chain(
                start,
                wait,
                tuple(s if pool is None else s + one.trips * latency[pool] for s, pool in one.steps),
            )
            for start, wait, (_, one) in zip(*ranks, sent, strict=True)
        ]
        if inner:
            places = {e: int(np.searchsorted(equations, e)) for e in inner}
            kernels = set(equations.tolist())
            events += [
                Chain(places[e], places[e], (s,)) for e, of in inner.items() if e in kernels for s in of
            ]
            events.sort(key=lambda event: event.wait)  # stable: moves come before a kernel's own collectives
        return events

    def _latency(self, pool: Pool) -> float:
        return float(collective_seconds(self._model.topology, pool[0], 0, pool[1]))

    def _of_transfer(self, transfer: Transfer) -> tuple[_Sent, ...]:
        number = self._sent.number(transfer)
        if number not in self._sent:
            self._sent[number] = tuple(self._executions(transfer))
        return self._sent[number]

    def _executions(self, transfer: Transfer):
        model, kernel = self._model, self._simulator.kernel
        collectives = transfer.collectives
        for turn, span in enumerate(transfer.spans if collectives else ()):
            share = 1.0 if turn else model.latency_shares.get(transfer.tensor, 1.0)
            steps = [
                (
                    transfer.trips * collective_seconds(model.topology, kind, size, axes, share),
                    None if share else (kind, tuple(sorted(axes))),
                )
                for kind, axes, size in collectives
            ]
            yield _Sent(
                wait=min(kernel[e] for e in span.readers),
                made=model.graph.values.producer[transfer.tensor] + 1,
                moves_data=not transfer.path.shardings[0].partial,
                trips=transfer.trips,
                steps=tuple(steps),
            )


def makespan(ends: Sequence[float], events: Sequence[Chain]) -> float:
    """When the last kernel and the last collective end.

    Args:
      ends: when each kernel ends if none waits, a zero in front.
      events: by ascending ``wait``; collectives are served first come first served, ties in this order.
    """
    late = free = 0.0  # how long kernels have waited, and when the collectives' stream is idle
    queue: list[tuple[float, int, int]] = []
    done: list[float | None] = [None] * len(events)
    by_start = sorted(range(len(events)), key=lambda i: events[i].start)
    pending, first = 0, 0
    while first < len(events):
        wait = events[first].wait
        while pending < len(events) and events[by_start[pending]].start <= wait:
            i = by_start[pending]
            heappush(queue, (ends[events[i].start] + late, i, 0))
            pending += 1
        last = first
        while last < len(events) and events[last].wait == wait:
            last += 1
        missing = done[first:last].count(None)
        while missing:
            ready, i, step = heappop(queue)
            free = max(free, ready) + events[i].seconds[step]
            if step + 1 < len(events[i].seconds):
                heappush(queue, (free, i, step + 1))
                continue
            done[i] = free
            missing -= first <= i < last
        late = max(late, *(end - ends[wait] for end in done[first:last] if end is not None))
        first = last
    return max(free, ends[-1] + late)
