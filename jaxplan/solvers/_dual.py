"""Minimisation by message passing: bounds at any width, configurations fixed away, the rest eliminated.

A configuration goes when every assignment with it costs more than the best one known. The rest is usually
so little that variable elimination settles it; where it is not, the best assignment found and the bound say
how far from optimal it can be at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.errors import InfeasibleError, ProblemError
from jaxplan.solvers._elimination import NOTHING_FEASIBLE_MSG, Optimum, run_schedule
from jaxplan.solvers._messages import Messages, Network
from jaxplan.solvers._problem import Problem, Weights
from jaxplan.solvers._restrict import Labels, restrict
from jaxplan.solvers._rounding import round_consistently
from jaxplan.solvers._schedule import Schedule, best_schedule

# A bound this close, as a fraction, is the optimum up to rounding.
_CLOSED = 1e-10
# Entries of tables read by all sweeps; a core reads about 5e8 a second. Bounds the time, the same everywhere.
_MOST_ENTRIES = 10_000_000_000
# Sweeps without progress before giving up; progress is at least this fraction of the gap.
_PATIENCE, _PROGRESS = 8, 0.01
# Tables are cut down when fewer than this fraction of the configurations is left.
_WORTH_CUTTING = 0.7
# Additions of the elimination that settles the rest.
_MOST_ADDITIONS = 200_000_000
# Entries of all its tables.
_MOST_TABLE_ENTRIES = 2**25
# The fewest configurations, per node, that the last search among the likely ones looks at.
_BEAMS = (16, 8, 4, 2)

_NOTHING_FOUND_MSG = (
    "the graph is too wide for variable elimination, and message passing found no assignment of finite time. "
    "Give nodes fewer configurations, or edges fewer infinite entries."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tightened:
    """The part of a problem that message passing leaves open.

    Attributes:
      bound: no assignment has a lower weighted cost.
      labels: living configurations of each node, ascending: every assignment that costs no more than `upper`
        has these alone.
      reduced: how far above `bound`, at least, each of `labels` is.
      upper: the weighted cost up to which assignments are kept.
      assignment: the best found, of cost `upper`; None where none is finite, and where `upper` was given: then nobody
        asks for one.
    """

    bound: float
    labels: tuple[Labels, ...]
    reduced: tuple[np.ndarray, ...]
    upper: float
    assignment: tuple[int, ...] | None

    @property
    def is_closed(self) -> bool:
        """Whether bound and `upper` meet: of an optimum looked for, that it is proven."""
        return _is_closed(self.upper, self.bound)


def minimise_by_messages(problem: Problem, weights: Weights = (1.0, 0.0)) -> Optimum:
    """Return an assignment of small weighted cost and a bound on the least; mostly they meet.

    Raises:
      InfeasibleError: every assignment has infinite time.
      ProblemError: no assignment of finite time was found.
    """
    found = tighten(problem, weights)
    if found.assignment is not None and found.is_closed:
        return Optimum(value=found.upper, assignment=found.assignment, bound=found.bound)
    small = restrict(problem, found.labels)
    schedule = _affordable(small)
    if schedule is not None:
        return _in_labels(run_schedule(small, schedule, weights), found.labels)
    return _among_likely(problem, weights, found)


def tighten(problem: Problem, weights: Weights, upper: float | None = None) -> Tightened:
    """Pass messages until the bound meets the best assignment, or stays where it is.

    Args:
      problem: the problem to minimise.
      weights: of time and memory.
      upper: keep every assignment that costs at most this, instead of an optimum; in units of the weights.

    Raises:
      InfeasibleError: every assignment has infinite time.
    """
    state = _Tightening(problem, weights, upper)
    while True:
        state.sweep()
        kept = state.kept()
        num_left = sum(map(len, kept))
        if state.is_done() or num_left == problem.num_nodes:
            return state.result(kept)
        if num_left < _WORTH_CUTTING * sum(map(len, state.labels)):
            state.cut(kept)


class _Tightening:
    """The configurations not yet excluded, the messages between them, and the bounds on the optimum."""

    def __init__(self, problem: Problem, weights: Weights, upper: float | None) -> None:
        self.network = Network.of(problem, weights)
        self.messages = Messages(self.network)
        self.labels = [np.arange(size) for size in problem.num_configurations]
        self.given = upper
        self.best, self.assignment = np.inf, None
        self.bound = -np.inf
        self.reduced = [np.zeros(len(rows)) for rows in self.labels]
        self._waited = self._spent = self._swept = 0

    @property
    def upper(self) -> float:
        return self.best if self.given is None else self.given

    def sweep(self) -> None:
        """Pass messages both ways; a configuration's cost above the bound counts from the bound before."""
        before = self.bound
        self._spent += 2 * sum(table.size for table in self.network.tables)
        least = [np.full(len(rows), -np.inf) for rows in self.labels]
        for result in self.messages.sweep(decides=self.given is None):
            if result.assignment is not None:
                self._remember(result.assignment)
            if self.bound > -np.inf:
                least = [np.maximum(low, self.bound + costs) for low, costs in zip(least, result.reduced)]
            self.bound = max(self.bound, result.bound)
        self._swept += 1
        if self.given is None and self.assignment is None and self._swept.bit_count() == 1:  # a sweep costs as much
            self._round()
        if self.bound >= self.network.ceiling:
            raise InfeasibleError(NOTHING_FEASIBLE_MSG)
        self.reduced = [np.maximum(costs - self.bound, 0.0) for costs in least]
        has_progress = self.bound - before > _PROGRESS * (self.upper - self.bound)
        self._waited = 0 if has_progress else self._waited + 1

    def kept(self) -> list[np.ndarray]:
        """Return the places of the living configurations that may cost as little as `upper`."""
        room = self.upper - self.bound + _CLOSED * abs(self.upper)
        kept = []
        for node, costs in enumerate(self.reduced):
            stays = costs <= max(room, float(costs.min()))
            if self.given is None and self.assignment is not None:
                stays |= self.labels[node] == self.assignment[node]
            kept.append(np.nonzero(stays)[0])
        return kept

    def cut(self, kept: list[np.ndarray]) -> None:
        self.labels = [rows[places] for rows, places in zip(self.labels, kept)]
        self.network = self.network.cut(kept)
        self.messages.cut(self.network, kept)

    def is_done(self) -> bool:
        closed = _is_closed(self.upper, self.bound)
        return closed or self._waited >= _PATIENCE or self._spent >= _MOST_ENTRIES

    def result(self, kept: list[np.ndarray]) -> Tightened:
        return Tightened(
            bound=self.bound,
            labels=tuple(tuple(rows[places].tolist()) for rows, places in zip(self.labels, kept)),
            reduced=tuple(costs[places] for costs, places in zip(self.reduced, kept)),
            upper=float(self.upper),
            assignment=self.assignment,
        )

    def _round(self) -> None:
        """Look for an assignment of finite cost where sweeps met none."""
        assignment = round_consistently(self.network, self.messages)
        if assignment is not None:
            self._remember(assignment)

    def _remember(self, assignment: Sequence[int]) -> None:
        cost = self.network.cost(assignment)
        if cost < min(self.best, self.network.ceiling):
            self.best = cost
            self.assignment = tuple(int(rows[label]) for rows, label in zip(self.labels, assignment))


def _is_closed(upper: float, bound: float) -> bool:
    return upper - bound <= _CLOSED * abs(upper)


def _affordable(problem: Problem) -> Schedule | None:
    """Return an elimination of bounded time and memory, if there is one."""
    try:
        schedule = best_schedule(problem, max_entries=_MOST_TABLE_ENTRIES)
    except ProblemError:
        return None
    return schedule if schedule.num_additions <= _MOST_ADDITIONS else None


def _in_labels(optimum: Optimum, labels: Sequence[Labels], bound: float | None = None) -> Optimum:
    """Return an optimum of a restricted problem in the configurations of the whole one."""
    assignment = tuple(kept[label] for kept, label in zip(labels, optimum.assignment))
    return Optimum(
        value=optimum.value, assignment=assignment, bound=optimum.value if bound is None else bound
    )


def _among_likely(problem: Problem, weights: Weights, found: Tightened) -> Optimum:
    """Return the best assignment among the configurations of least reduced cost, as many as fit."""
    best = None
    if found.assignment is not None:
        best = Optimum(value=found.upper, assignment=found.assignment, bound=found.bound)
    for beam in _BEAMS:
        likely = [_likely(rows, costs, beam) for rows, costs in zip(found.labels, found.reduced)]
        try:
            small = restrict(problem, likely)
            schedule = _affordable(small)
            if schedule is None:
                continue
            optimum = _in_labels(run_schedule(small, schedule, weights), likely, found.bound)
        except (InfeasibleError, ProblemError):
            continue
        if best is None or optimum.value < best.value:
            best = optimum
        break
    if best is None:
        raise ProblemError(_NOTHING_FOUND_MSG)
    return best


def _likely(labels: Labels, reduced: np.ndarray, num: int) -> Labels:
    order = np.argsort(reduced, kind="stable")[:num]
    return tuple(labels[place] for place in sorted(order.tolist()))
