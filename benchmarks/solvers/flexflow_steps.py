"""FlexFlow's search on train steps: seconds of the chains, and full against delta simulation along the same chain.

    python -m benchmarks.flexflow_steps [--models NAME ...] [--topologies NAME ...] [--proposals N]

Source: FlexFlow, Table 5 (six networks on P100, four to a node). Full simulation builds and
simulates the whole task graph for each proposal. Both walks have equal costs at each proposal, or the command fails.
Seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.models import build
from jaxplan.cost import CostModel, Predictor
from jaxplan.ir import STORED_KINDS
from jaxplan.mesh import Topology
from jaxplan.search._mcmc_starts import simulated_chains
from jaxplan.search._open_configurations import open_configurations
from jaxplan.search._traced import analyse_step
from jaxplan.simulate import PlanSimulator, simulated_walks
from jaxplan.simulate._operator_walk import OperatorWalk
from jaxplan.simulate._plan_walk import FullPlanWalk
from jaxplan.solvers import Walk, walk_chains
from jaxplan.strategies import StrategyPlan, apply_strategies

# Published seconds of the whole search: (devices, full, delta).
PUBLISHED = {
    "alexnet": {16: (1.4, 0.48), 64: (18, 5.9)},
    "resnet101": {16: (22, 7.3), 64: (515, 158)},
    "inception-v3": {16: (388, 77), 64: (8817, 1278)},
    "rnntc": {16: (404, 170), 64: (4404, 1489)},
    "rnnlm": {16: (327, 121), 64: (3406, 969)},
    "nmt": {16: (998, 328), 64: (8982, 2190)},
}


PER_DEVICE = 64
"""Examples of a batch for one device; AlexNet has 256 (FlexFlow, section 8)."""


def step_of(name: str, num_devices: int) -> tuple[Any, tuple[Any, ...]]:
    """A network of the paper with its batch, in float32."""
    batch = num_devices * (4 * PER_DEVICE if name == "alexnet" else PER_DEVICE)
    precision = {"dtype": "float32"} if name in ("alexnet", "resnet101", "inception-v3") else {}
    return build(name, batch_size=batch, **precision)


def priced(name: str, topology: Topology) -> tuple[CostModel, dict[str, StrategyPlan]]:
    """The cost model that the planner works on, and the reference strategies that are points of it."""
    step, args = step_of(name, topology.num_devices)
    graph = analyse_step(step, args, {}, donate_argnums=None, static_argnums=())
    strategy_plans = apply_strategies(graph, topology).plans
    opened = open_configurations(graph, topology, strategies=[s.configurations for s in strategy_plans.values()])
    return opened.model, dict(strategy_plans)


def timed_chain(walk: Walk, model: CostModel, num_proposals: int) -> tuple[float, list[float]]:
    """Seconds of a walk that takes every improvement and some steps besides, and the cost of each proposal."""
    rng, sizes = random.Random(0), model.problem.num_configurations
    nodes = [v for v, size in enumerate(sizes) if size > 1]
    costs, start = [], time.process_time()
    for _ in range(num_proposals):
        node = rng.choice(nodes)
        costs.append(walk.propose(node, rng.randrange(sizes[node])))
        if costs[-1] <= walk.cost or rng.random() < 0.05:
            walk.accept()
    return time.process_time() - start, costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Processor seconds of pricing, and of one proposal in full and by delta; whether both have the same costs."""

    num_groups: int
    pricing_seconds: float
    full_seconds: float
    delta_seconds: float
    is_same: bool


def measure(name: str, topology: Topology, num_proposals: int) -> Measured:
    """Walk one chain from data parallelism by both simulations."""
    start = time.process_time()
    model, strategy_plans = priced(name, topology)
    return _measured(model, strategy_plans, time.process_time() - start, num_proposals)


def _measured(
    model: CostModel, strategy_plans: dict[str, StrategyPlan], pricing: float, num_proposals: int
) -> Measured:
    data = simulated_chains(Predictor(model), strategy_plans).initial[0]
    is_stored = [group.kind in STORED_KINDS for group in model.graph.grouping.groups]
    started = FullPlanWalk(PlanSimulator(Predictor(model)), data)
    full, costs = timed_chain(OperatorWalk(started, model.problem, is_stored), model, num_proposals)
    delta, same = timed_chain(simulated_walks(model)(data), model, num_proposals)
    return Measured(
        num_groups=model.problem.num_nodes,
        pricing_seconds=pricing,
        full_seconds=full / num_proposals,
        delta_seconds=delta / num_proposals,
        is_same=costs == same,
    )


def compare(name: str, topology: Topology, num_proposals: int) -> bool:
    """Print one line; return whether both simulations agree."""
    start = time.process_time()
    model, strategy_plans = priced(name, topology)
    found = _measured(model, strategy_plans, time.process_time() - start, num_proposals)
    chains = simulated_chains(Predictor(model), strategy_plans)
    before = chains.walk_from(chains.initial[0]).cost
    start = time.process_time()
    walked = walk_chains(model.problem, chains.walk_from, chains.initial, chains.options)
    search = time.process_time() - start
    published = PUBLISHED.get(name, {}).get(topology.num_devices)
    print(
        f"{name:<13} {topology.name:<10} {found.num_groups:>5} groups {found.pricing_seconds:>6.1f} s  "
        f"search {search:>6.1f} s, {len(walked.costs):>6} proposals, {len(walked.seen):>3} on the frontier, "
        f"{before * 1e3:8.2f} -> {walked.cost * 1e3:8.2f} ms; a proposal {found.full_seconds * 1e3:6.2f} ms in full, "
        f"{found.delta_seconds * 1e3:6.2f} by delta: {found.full_seconds / found.delta_seconds:4.1f}x"
        + (f" (published {published[0] / published[1]:.1f}x, search {published[1]} s)" if published else "")
        + ("" if found.is_same else "  COSTS DIFFER"),
        flush=True,
    )
    return found.is_same


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flexflow_steps", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(PUBLISHED))
    parser.add_argument("--topologies", nargs="+", default=["p100:4x4", "p100:16x4"])
    parser.add_argument("--proposals", type=int, default=200)
    options = parser.parse_args(arguments)
    results = [
        compare(name, Topology.parse(topology), options.proposals)
        for name in options.models
        for topology in options.topologies
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
