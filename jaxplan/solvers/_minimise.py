"""Which engine minimises one weighted cost: variable elimination where it fits, else message passing in the core."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Sequence

from jaxplan.errors import ProblemError
from jaxplan.solvers._core import Core, core_of, minimise_core
from jaxplan.solvers._elimination import Optimum, run_schedule
from jaxplan.solvers._order import OrderName
from jaxplan.solvers._problem import Problem, Weights
from jaxplan.solvers._schedule import Schedule, best_schedule, build_schedule

Minimiser = Callable[[Weights], Optimum]
_ENGINES: weakref.WeakKeyDictionary[Problem, tuple[Schedule | None, Core | None]] = weakref.WeakKeyDictionary()
"""Eliminations and cores of problems, kept between the searches for the hull and for the frontier of one problem."""

# Message passing mostly closes within this many sweeps both ways (instances and train steps measured: 1 to 15).
_TYPICAL_SWEEPS = 10
# Elimination always ends in the same time, so messages pass where they are estimated to take half of it.
_WORTH_MESSAGES = 2
# Eliminations this cheap are not compared: a few thousandths of a second.
_FEW_ADDITIONS = 3_000_000
# Overhead of handling one table in one sweep, beyond its entries, in additions: some 20 microseconds.
_ADDITIONS_PER_TABLE = 10_000


def minimiser(problem: Problem, order: OrderName | Sequence[int] | None = None) -> tuple[Minimiser, int]:
    """Return a minimiser of the problem for given weights, and the additions of one run over the whole problem.

    The number is a measure of the problem: in its core a run takes fewer.

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
    engine = _ENGINES.get(problem)
    if engine is None:
        engine = _ENGINES[problem] = _engine(problem)
    schedule, core = engine
    whole = messages_additions(problem)
    size = whole if schedule is None else min(whole, schedule.num_additions)
    if core is not None:
        return functools.partial(minimise_core, problem, core), size
    assert schedule is not None
    return functools.partial(run_schedule, problem, schedule), size


def _engine(problem: Problem) -> tuple[Schedule | None, Core | None]:
    """Return the cheapest elimination, None where its tables are too large, and the core where messages are cheaper."""
    schedule = None
    with contextlib.suppress(ProblemError):
        schedule = best_schedule(problem)
    if schedule is not None and schedule.num_additions <= _FEW_ADDITIONS:
        return schedule, None
    core = core_of(problem)
    if schedule is not None and schedule.num_additions <= _WORTH_MESSAGES * _core_additions(core):
        return schedule, None
    return schedule, core


def _core_additions(core: Core) -> int:
    """Return about how many additions elimination of all but the core, and messages in it, take."""
    by_messages = 2 * _TYPICAL_SWEEPS * (core.num_entries + _ADDITIONS_PER_TABLE * len(core.pairs))
    return core.schedule.num_additions + by_messages


def messages_additions(problem: Problem) -> int:
    """Return about how many additions message passing takes."""
    entries = sum(edge.time.shape[0] * edge.time.shape[1] for edge in problem.edges)
    return 2 * _TYPICAL_SWEEPS * (entries + _ADDITIONS_PER_TABLE * len(problem.edges))
