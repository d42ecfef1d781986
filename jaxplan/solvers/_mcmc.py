"""FlexFlow's search: Markov chains over assignments, from given and from random strategies.

Source: FlexFlow, section 6.1 (Metropolis-Hastings, equation 1) and 6.2 (proposals, initial strategies, the two
criteria that end a chain).
"""

from __future__ import annotations

import bisect
import math
import operator
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxplan.errors import ProblemError
from jaxplan.solvers._chain import AdditiveTables, Walk, WalkFrom
from jaxplan.solvers._problem import Problem

_LEAST_PROPOSALS, _PROPOSALS_PER_LABEL = 20_000, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOptions:
    """How long and how boldly to walk.

    Attributes:
      seed: of the random numbers; equal seeds walk equal chains.
      num_random: random initial strategies, beside the given ones.
      num_proposals: budget of each chain, FlexFlow's first criterion; None for 20 per configuration there is,
        and 20,000 at least.
      seconds: wall-clock budget of each chain, None for none: results then depend on the machine.
      patience: a chain also ends when the best did not improve for this fraction of either budget (the second
        criterion, half of the search in the paper).
      sharpness: beta times the current cost per node: a proposal that is dearer by a fraction f of an average
        node's share is accepted with probability exp(-sharpness f). The paper leaves beta open; 2 found the optimum of
        both its small models in 40 of 40 seeds (`benchmarks.flexflow`), 1 in 39 and 5 in 38.
    """

    seed: int = 0
    num_random: int = 2
    num_proposals: int | None = None
    seconds: float | None = None
    patience: float = 0.5
    sharpness: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chains:
    """The starts and the score of the chains of solver "mcmc", in place of the additive costs.

    Attributes:
      walk_from: starts a walk on any score of whole assignments, such as simulated seconds.
      initial: strategies to start from, beside random ones.
      options: budgets and seed.
    """

    walk_from: WalkFrom
    initial: tuple[tuple[int, ...], ...] = ()
    options: ChainOptions = ChainOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainResult:
    """The assignments that chains visited.

    Attributes:
      assignment: the best of all chains.
      cost: its cost.
      costs: the cost after every proposal.
      seen: every proposal and start that nothing else seen beats in both cost and memory, ascending in memory.
    """

    assignment: tuple[int, ...]
    cost: float
    costs: tuple[float, ...]
    seen: tuple[Seen, ...] = ()


class Seen(NamedTuple):
    """An assignment with the bytes of the additive problem and the cost of the walk."""

    memory: int
    cost: float
    assignment: tuple[int, ...]


class _Archive:
    """The undominated assignments seen so far, by memory; costs fall as memory rises."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def is_beaten(self, memory: float, cost: float) -> bool:
        """Whether something seen takes at most as much of both."""
        place = bisect.bisect_right(self.seen, memory, key=operator.attrgetter("memory"))
        return place > 0 and self.seen[place - 1].cost <= cost

    def add(self, new: Seen) -> None:
        """Keep an undominated assignment, in place of those that it dominates."""
        place = bisect.bisect_left(self.seen, new.memory, key=operator.attrgetter("memory"))
        last = place
        while last < len(self.seen) and self.seen[last].cost >= new.cost:
            last += 1
        self.seen[place:last] = [new]


def walk_chains(
    problem: Problem,
    walk_from: WalkFrom,
    initial: Sequence[Sequence[int]] = (),
    options: ChainOptions | None = None,
) -> ChainResult:
    """Walk one chain from each initial strategy and return the best assignment that any of them saw.

    Args:
      problem: nodes and their configurations, and the bytes of each; costs come from `walk_from` alone.
      walk_from: starts a walk from an assignment.
      initial: strategies to start from (data parallelism, experts' ...), random ones come after them.
      options: budgets, boldness and seed.

    Raises:
      ProblemError: there is nothing to start from.
    """
    options = options or ChainOptions()
    rng = random.Random(options.seed)
    sizes = problem.num_configurations
    starts = [tuple(strategy) for strategy in initial]
    starts += [tuple(rng.randrange(size) for size in sizes) for _ in range(options.num_random)]
    if not starts:
        raise ProblemError("mcmc has nothing to start from; give initial strategies or num_random above 0")
    tables, archive = AdditiveTables(problem), _Archive()
    results = [_walk_chain(sizes, walk_from(start), start, options, rng, tables, archive) for start in starts]
    best = min(results, key=lambda result: result.cost)
    costs = tuple(cost for result in results for cost in result.costs)
    return ChainResult(assignment=best.assignment, cost=best.cost, costs=costs, seen=tuple(archive.seen))


def _walk_chain(
    sizes: Sequence[int],
    walk: Walk,
    start: tuple[int, ...],
    options: ChainOptions,
    rng: random.Random,
    tables: AdditiveTables,
    archive: _Archive,
) -> ChainResult:
    nodes = [node for node, size in enumerate(sizes) if size > 1]
    current, best, best_cost = list(start), start, walk.cost
    _, memory, forbidden = tables.whole(start)
    if not forbidden and not archive.is_beaten(memory, walk.cost):
        archive.add(Seen(int(memory), walk.cost, start))
    costs: list[float] = []
    num_proposals = options.num_proposals or max(_LEAST_PROPOSALS, _PROPOSALS_PER_LABEL * sum(sizes))
    sharpness = options.sharpness * len(sizes)
    clock = _Clock(options, num_proposals)
    for _ in range(num_proposals if nodes else 0):
        node = rng.choice(nodes)
        label = rng.randrange(sizes[node])
        proposed = walk.propose(node, label)
        changes = getattr(walk, "proposed", {node: label})
        then, more_bytes, more_forbidden = list(current), memory, forbidden
        for other, new in changes.items():
            _, old_bytes, old_forbidden = tables.around(other, then[other], then)
            then[other] = new
            _, new_bytes, new_forbidden = tables.around(other, new, then)
            more_bytes += new_bytes - old_bytes
            more_forbidden += new_forbidden - old_forbidden
        if not more_forbidden and not archive.is_beaten(more_bytes, proposed):
            archive.add(Seen(int(more_bytes), proposed, tuple(then)))
        if _is_accepted(walk.cost, proposed, sharpness, rng.random()):
            walk.accept()
            current, memory, forbidden = then, more_bytes, more_forbidden
        costs.append(walk.cost)
        if clock.is_over(is_best=walk.cost < best_cost):
            break
        if walk.cost < best_cost:
            best, best_cost = tuple(current), walk.cost
    if walk.cost < best_cost:
        best, best_cost = tuple(current), walk.cost
    return ChainResult(assignment=best, cost=best_cost, costs=tuple(costs))


class _Clock:
    """Both criteria that end a chain (section 6.2), counted in proposals and in seconds."""

    def __init__(self, options: ChainOptions, num_proposals: int) -> None:
        self._patience = options.patience * num_proposals
        self._seconds, self._fraction = options.seconds, options.patience
        self._began = self._best_at = time.monotonic()
        self._since_best = 0

    def is_over(self, is_best: bool) -> bool:
        """Count one proposal; return whether it was the last."""
        self._since_best = 0 if is_best else self._since_best + 1
        if self._since_best > self._patience:
            return True
        if self._seconds is None:
            return False
        now = time.monotonic()
        self._best_at = now if is_best else self._best_at
        return now - self._began > self._seconds or now - self._best_at > self._fraction * self._seconds


def _is_accepted(cost: float, proposed: float, sharpness: float, drawn: float) -> bool:
    """Equation (1), with beta = sharpness / cost; from one infinite cost to another every step is taken."""
    if proposed <= cost:
        return True
    return cost > 0 and math.isfinite(proposed) and drawn < math.exp(-sharpness * (proposed - cost) / cost)
