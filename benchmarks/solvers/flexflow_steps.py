"""FlexFlow's search on train steps: seconds of the chains, and full against delta simulation along the same chain.

    python -m benchmarks.flexflow_steps [--models NAME ...] [--topologies NAME ...] [--proposals N]

Source: FlexFlow, Table 5 (AlexNet, ResNet-101, Inception-v3, RNNLM on P100, four to a node). Full simulation builds and
simulates the whole task graph for each proposal. Both walks have equal costs at each proposal, or the command fails.
Seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.models import build
from benchmarks.solvers.tofu import lstm
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
    "resnet50": {16: (22, 7.3), 64: (515, 158)},  # ResNet-101 there
    "inception-v3": {16: (388, 77), 64: (8817, 1278)},
    "rnnlm": {16: (327, 121), 64: (3406, 969)},
}


def alexnet(batch: int) -> tuple[Any, tuple[Any, ...]]:
    """AlexNet with one tower, momentum SGD, and its abstract arguments."""
    kernels = [(11, 3, 64), (5, 64, 192), (3, 192, 384), (3, 384, 256), (3, 256, 256)]
    strides, pooled, dense = [4, 1, 1, 1, 1], (0, 1, 4), [(6 * 6 * 256, 4096), (4096, 4096), (4096, 1000)]

    def loss(weights: Any, images: Any, labels: Any) -> Any:
        x = images
        for layer, kernel in enumerate(weights[: len(kernels)]):
            step = (strides[layer],) * 2
            x = jax.lax.conv_general_dilated(x, kernel, step, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x)
            if layer in pooled:
                x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")
        x = x.reshape(x.shape[0], -1)
        for layer, weight in enumerate(weights[len(kernels) :]):
            x = x @ weight
            x = x if layer == 2 else jax.nn.relu(x)
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(x) * labels, axis=1))

    def step(weights: Any, momenta: Any, images: Any, labels: Any) -> Any:
        gradients = jax.grad(loss)(weights, images, labels)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
        return jax.tree.map(lambda w, m: w - 0.01 * m, weights, momenta), momenta

    shapes = [(size, size, *channels) for size, *channels in kernels] + dense
    weights = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    images, labels = ((batch, 224, 224, 3), (batch, 1000))
    return step, (weights, weights, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in (images, labels)))


def step_of(name: str, num_devices: int) -> tuple[Any, tuple[Any, ...]]:
    """A network of the paper with its batch: 64 a device, 256 for AlexNet."""
    if name == "alexnet":
        return alexnet(256 * num_devices)
    if name == "rnnlm":
        return lstm(2, 2048, 40, 64 * num_devices, 1024)
    return build(name)


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


def compare(name: str, topology: Topology, num_proposals: int) -> bool:
    """Print one line; return whether both simulations agree."""
    start = time.process_time()
    model, strategy_plans = priced(name, topology)
    pricing = time.process_time() - start
    predictor = Predictor(model)
    chains = simulated_chains(predictor, strategy_plans)
    start = time.process_time()
    found = walk_chains(model.problem, chains.walk_from, chains.initial, chains.options)
    search = time.process_time() - start
    data = chains.initial[0]
    started = FullPlanWalk(PlanSimulator(predictor), data)
    before = started.cost
    is_stored = [group.kind in STORED_KINDS for group in model.graph.grouping.groups]
    full, costs = timed_chain(OperatorWalk(started, model.problem, is_stored), model, num_proposals)
    delta, same = timed_chain(simulated_walks(model)(data), model, num_proposals)
    published = PUBLISHED.get(name, {}).get(topology.num_devices)
    print(
        f"{name:<13} {topology.name:<10} {model.problem.num_nodes:>5} groups {pricing:>6.1f} s  "
        f"search {search:>6.1f} s, {len(found.costs):>6} proposals, {len(found.seen):>3} on the frontier, "
        f"{before * 1e3:8.2f} -> {found.cost * 1e3:8.2f} ms; a proposal {full / num_proposals * 1e3:6.2f} ms in full, "
        f"{delta / num_proposals * 1e3:6.2f} by delta: {full / delta:4.1f}x"
        + (f" (published {published[0] / published[1]:.1f}x, search {published[1]} s)" if published else "")
        + ("" if costs == same else "  COSTS DIFFER"),
        flush=True,
    )
    return costs == same


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
