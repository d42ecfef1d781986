"""Which engine minimises one weighted cost: variable elimination where it fits, else message passing."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence

from jaxplan.errors import ProblemError
from jaxplan.solvers._dual import minimise_by_messages
from jaxplan.solvers._elimination import Optimum, run_schedule
from jaxplan.solvers._order import OrderName
from jaxplan.solvers._problem import Problem, Weights
from jaxplan.solvers._schedule import Schedule, best_schedule, build_schedule

Minimiser = Callable[[Weights], Optimum]
_SCHEDULES: weakref.WeakKeyDictionary[Problem, Schedule] = weakref.WeakKeyDictionary()
"""The schedules of problems, kept between the searches for the hull and for the frontier of one problem."""

# Message passing mostly closes within this many sweeps both ways (instances and train steps measured: 1 to 15).
_TYPICAL_SWEEPS = 10
# Overhead of handling one table in one sweep, beyond its entries, in additions: some 20 microseconds.
_ADDITIONS_PER_TABLE = 10_000


def minimiser(problem: Problem, order: OrderName | Sequence[int] | None = None) -> tuple[Minimiser, int]:
    """Return a minimiser of the problem for given weights, and the additions of one run.

    Args:
      problem: the problem to minimise.
      order: the elimination to use, as `build_schedule` takes it; None takes the cheapest order, or
        messages where they are cheaper.

    Raises:
      ProblemError: an order was given, and the graph is too wide for it.
    """
    if order is not None:
        schedule = build_schedule(problem, order)
        return functools.partial(run_schedule, problem, schedule), schedule.num_additions
    by_messages = messages_additions(problem)
    try:
        schedule = _SCHEDULES.get(problem) or best_schedule(problem)
    except ProblemError:
        return functools.partial(minimise_by_messages, problem), by_messages
    _SCHEDULES[problem] = schedule
    if schedule.num_additions <= by_messages:
        return functools.partial(run_schedule, problem, schedule), schedule.num_additions
    return functools.partial(minimise_by_messages, problem), by_messages


def messages_additions(problem: Problem) -> int:
    """Return about how many additions message passing takes."""
    entries = sum(edge.time.shape[0] * edge.time.shape[1] for edge in problem.edges)
    return 2 * _TYPICAL_SWEEPS * (entries + _ADDITIONS_PER_TABLE * len(problem.edges))
