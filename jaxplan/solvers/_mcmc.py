"""FlexFlow's search: Markov chains over assignments, from given and from random strategies.

Source: FlexFlow, section 6.1 (Metropolis-Hastings, equation 1) and 6.2 (proposals, initial strategies, the two
criteria that end a chain).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan._errors import ProblemError
from jaxplan.solvers._chain import Walk, WalkFrom
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
      patience: a chain also ends when the best did not improve for this fraction of its budget of proposals
        (the second criterion, half of the search in the paper).
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
    """What `solve` and `frontier` walk with for the solver "mcmc", instead of on the additive costs.

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
    """The best assignment of all chains and its cost; `costs` holds the cost after every proposal."""

    assignment: tuple[int, ...]
    cost: float
    costs: tuple[float, ...]


def walk_chains(
    problem: Problem,
    walk_from: WalkFrom,
    initial: Sequence[Sequence[int]] = (),
    options: ChainOptions | None = None,
) -> ChainResult:
    """Walk one chain from each initial strategy and return the best assignment that any of them saw.

    Args:
      problem: nodes and their configurations; costs come from `walk_from` alone.
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
    results = [_walk_chain(sizes, walk_from(start), start, options, rng) for start in starts]
    best = min(results, key=lambda result: result.cost)
    costs = tuple(cost for result in results for cost in result.costs)
    return ChainResult(assignment=best.assignment, cost=best.cost, costs=costs)


def _walk_chain(
    sizes: Sequence[int], walk: Walk, start: tuple[int, ...], options: ChainOptions, rng: random.Random
) -> ChainResult:
    nodes = [node for node, size in enumerate(sizes) if size > 1]
    current, best, best_cost = list(start), start, walk.cost
    costs: list[float] = []
    num_proposals = options.num_proposals or max(_LEAST_PROPOSALS, _PROPOSALS_PER_LABEL * sum(sizes))
    patience = options.patience * num_proposals
    sharpness = options.sharpness * len(sizes)
    since_best, began = 0, time.monotonic()
    for _ in range(num_proposals if nodes else 0):
        node = rng.choice(nodes)
        label = rng.randrange(sizes[node])
        proposed = walk.propose(node, label)
        if _is_accepted(walk.cost, proposed, sharpness, rng.random()):
            walk.accept()
            current[node] = label
        costs.append(walk.cost)
        since_best += 1
        if walk.cost < best_cost:
            best, best_cost, since_best = tuple(current), walk.cost, 0
        out_of_time = options.seconds is not None and time.monotonic() - began > options.seconds
        if since_best > patience or out_of_time:
            break
    return ChainResult(assignment=best, cost=best_cost, costs=tuple(costs))


def _is_accepted(cost: float, proposed: float, sharpness: float, drawn: float) -> bool:
    """Equation (1), with beta = sharpness / cost; from one infinite cost to another every step is taken."""
    if proposed <= cost:
        return True
    return cost > 0 and math.isfinite(proposed) and drawn < math.exp(-sharpness * (proposed - cost) / cost)
