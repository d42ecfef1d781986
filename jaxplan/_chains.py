"""FlexFlow's search as published: chains on simulated seconds, from known strategies and a random one."""

from __future__ import annotations

from collections.abc import Mapping

from jaxplan.cost import Predictor, simulated_walks
from jaxplan.solvers import ChainOptions, Chains
from jaxplan.strategies import Sketch, reference_solution

STARTS = ("data", "megatron")
"""Where chains start, beside a random strategy (FlexFlow, section 6.2: data parallelism, experts' strategies)."""
SIMULATED_READS = 1_000_000
"""Proposals of each chain times the reads that each of them simulates: some ten seconds."""
LEAST_PROPOSALS, MOST_PROPOSALS = 200, 10_000


def simulated_chains(predictor: Predictor, sketches: Mapping[str, Sketch]) -> Chains:
    """What the solver "mcmc" walks with on a step; the budget is counted, so that equal steps give equal plans."""
    model = predictor.model
    budget = max(LEAST_PROPOSALS, SIMULATED_READS // max(1, len(model.flows)))
    starts = dict.fromkeys(reference_solution(model, sketches[name])[0] for name in STARTS if name in sketches)
    return Chains(
        walk_from=simulated_walks(model),
        initial=tuple(starts),
        options=ChainOptions(num_random=1, num_proposals=min(MOST_PROPOSALS, budget)),
    )
