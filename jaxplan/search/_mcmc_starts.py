"""FlexFlow's search as published: chains on simulated seconds, from known strategies and a random one."""

from __future__ import annotations

from collections.abc import Mapping

from jaxplan.cost import Predictor
from jaxplan.simulate import simulated_walks
from jaxplan.solvers import ChainOptions, Chains
from jaxplan.strategies import StrategyPlan, reference_solution

STARTS = ("data", "megatron")
"""Where chains start, beside random strategies (FlexFlow, section 6.2: data parallelism, experts' strategies)."""
NUM_RANDOM = 2
PROPOSALS_PER_GROUP = 20
"""Budget of each chain; it also ends when the best did not improve for half of it."""
LEAST_PROPOSALS, MOST_PROPOSALS = 500, 20_000
MOST_SECONDS = 60.0
"""... and, on a slow machine or a huge step, after so long all chains together."""


def simulated_chains(
    predictor: Predictor, strategy_plans: Mapping[str, StrategyPlan], seconds: float = MOST_SECONDS
) -> Chains:
    """The chains of the solver "mcmc" on a step: delta simulation of its task graph, from several starts.

    The budget is counted in proposals, so that equal steps give equal plans, as long as they take no more than
    ``seconds``.
    """
    model = predictor.model
    known = [strategy_plans[name] for name in STARTS if name in strategy_plans]
    starts = dict.fromkeys(reference_solution(model, plan)[0] for plan in known)
    budget = max(LEAST_PROPOSALS, PROPOSALS_PER_GROUP * model.problem.num_nodes)
    return Chains(
        walk_from=simulated_walks(model),
        initial=tuple(starts),
        options=ChainOptions(
            num_random=NUM_RANDOM,
            num_proposals=min(MOST_PROPOSALS, budget),
            seconds=seconds / (len(starts) + NUM_RANDOM),
        ),
    )
