"""The plans that a decorated step keeps: for each kind of call one, the least recently used forgotten first."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from jaxplan.core._log import warn_once
from jaxplan.errors import ArgumentError
from jaxplan.frontend._options import MAX_PLANS

if TYPE_CHECKING:
    from jaxplan.frontend._call_key import CallKey
    from jaxplan.partition import PlannedFunction, Results
    from jaxplan.plans._frontier import Frontier

MAX_CALLS_PER_PLAN = 16
"""Kinds of calls that share a plan; closures that every call defines again are such kinds."""

_FORGOTTEN_MSG = (
    "{name} was called with more kinds of arguments than the {max_plans} plans that it keeps: the one used longest ago "
    "is forgotten, and is planned and compiled again when its arguments come back. Likely cause: shapes that differ "
    "from call to call; pad them to a few, or raise max_plans"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ready:
    """The planned step for one kind of call.

    Attributes:
      run: the planned step.
      results_of: from its flat results to the step's results.
      frontier: of which the plan was chosen.
      fits: whether the memory of the compiled program was looked at.
    """

    run: PlannedFunction
    results_of: Results
    frontier: Frontier
    fits: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CacheInfo:
    """Plans that a decorated step keeps, and how often they served a call.

    Attributes:
      hits, misses: calls of a kind that had been prepared, and of one that had not.
      num_plans, max_plans: plans that are kept, and at most are; None: without a bound.
      plans, compiles: how often it planned and compiled.
    """

    hits: int
    misses: int
    num_plans: int
    max_plans: int | None
    plans: int
    compiles: int


class PlanCache:
    """Kinds of calls and their planned steps; several kinds may share one."""

    def __init__(self, name: str, max_plans: int | None) -> None:
        self.max_plans = _checked(max_plans)
        self._name = name
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget all plans and counts."""
        with self._lock:
            self._ready: OrderedDict[CallKey, Ready] = OrderedDict()
            self.hits = self.misses = self.plans = self._lost_compiles = 0

    def get(self, key: CallKey) -> Ready | None:
        """The planned step for calls of this kind, which is then the most recently used."""
        ready = self._ready.get(key)
        if ready is not None:
            with contextlib.suppress(KeyError):  # another thread has just dropped it; this call may use it still
                self._ready.move_to_end(key)
            self.hits += 1
        return ready

    def peek(self, key: CallKey) -> Ready | None:
        """As `get`, without counting."""
        return self._ready.get(key)

    def put(self, key: CallKey, ready: Ready) -> None:
        """Serve calls of this kind from now on, and forget the least recently used beyond the limit."""
        with self._lock:
            self._ready[key] = ready
            self._ready.move_to_end(key)
            own = [other for other, found in self._ready.items() if found.run is ready.run]
            for other in own[: max(0, len(own) - MAX_CALLS_PER_PLAN)]:
                del self._ready[other]
            while self.max_plans is not None and len(runs := self.runs()) > self.max_plans:
                warn_once(_FORGOTTEN_MSG.format(name=self._name, max_plans=self.max_plans))
                self._drop(runs[0])

    def replace(self, old: PlannedFunction, new: PlannedFunction) -> None:
        """Replace a planned step by another for all kinds of calls that it served."""
        with self._lock:
            for key, ready in self._ready.items():
                if ready.run is old:
                    self._ready[key] = dataclasses.replace(ready, run=new, fits=True)

    def items(self) -> list[tuple[CallKey, Ready]]:
        return list(self._ready.items())

    def runs(self) -> list[PlannedFunction]:
        """The planned steps, each once, the one used longest ago first."""
        latest: dict[Any, None] = {}
        for ready in tuple(self._ready.values()):
            latest.pop(ready.run, None)
            latest[ready.run] = None
        return list(latest)

    def count_compiles(self, number: int) -> None:
        """Count programs that were compiled and are not kept."""
        self._lost_compiles += number

    @property
    def compiles(self) -> int:
        return self._lost_compiles + sum(run.num_compilations for run in self.runs())

    def info(self) -> CacheInfo:
        return CacheInfo(
            hits=self.hits,
            misses=self.misses,
            num_plans=len(self.runs()),
            max_plans=self.max_plans,
            plans=self.plans,
            compiles=self.compiles,
        )

    def _drop(self, run: PlannedFunction) -> None:
        self._lost_compiles += run.num_compilations
        for key in [key for key, ready in self._ready.items() if ready.run is run]:
            del self._ready[key]


def _checked(max_plans: Any) -> int | None:
    is_number = isinstance(max_plans, int) and not isinstance(max_plans, bool)
    if max_plans is None or (is_number and max_plans >= 1):
        return max_plans
    raise ArgumentError(
        f"max_plans={max_plans!r} is not understood.\n"
        f"  expected: the number of plans to keep, at least 1 (default {MAX_PLANS}), or None for all of them\n"
        "  likely cause: 0 was meant to keep none: a plan that is not kept is searched at every call\n"
        "  fix: max_plans=1, and step.cache_clear() to free the memory"
    )
