"""A network on a machine, priced once, and the plans that each search ends at."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.models import MODELS, PAPER_MODELS, build
from jaxplan.cost import REPEAT, CostModel, Predictor, build_cost_model
from jaxplan.cost._prediction import Collective
from jaxplan.ir import Configuration, StepGraph
from jaxplan.mesh import CHIPS, Topology
from jaxplan.plans._plan import Plan
from jaxplan.plans._undominated import undominated
from jaxplan.search._make_plan import make_plan
from jaxplan.search._mcmc_starts import simulated_chains
from jaxplan.search._open_configurations import open_configurations
from jaxplan.search._published import search_arguments
from jaxplan.search._tofu import partition
from jaxplan.search._traced import analyse_step
from jaxplan.simulate import predictor_of
from jaxplan.solvers import Edge, Problem, frontier, solve, walk_chains
from jaxplan.solvers._restrict import restrict
from jaxplan.strategies import StrategyPlan, apply_strategies, reference_solution

GIB = 2**30
_MOST_POINTS = 48
"""Points of a solver's frontier that are predicted."""


@functools.lru_cache(maxsize=4)
def traced(name: str, **overrides: Any) -> StepGraph:
    """The step of a network, its state donated where the step returns it."""
    step, args = build(name, **overrides)
    donated = (MODELS | PAPER_MODELS)[name].donate_argnums
    return analyse_step(step, args, {}, donate_argnums=donated, static_argnums=())


class Priced:
    """A step with the costs of its configurations on one machine; nothing is recomputed or offloaded, as in the papers.

    Attributes:
      extra: configurations of all groups that are priced beside those of the reference strategies.
      seconds: processor seconds that reference strategies and prices took.
    """

    def __init__(
        self, graph: StepGraph, topology: Topology | str, extra: Sequence[tuple[Configuration, ...]] = ()
    ) -> None:
        self.graph = graph
        self.topology = Topology.parse(topology) if isinstance(topology, str) else topology
        start = time.process_time()
        self.strategies: dict[str, StrategyPlan] = dict(apply_strategies(graph, self.topology).plans)
        strategies = [*(s.configurations for s in self.strategies.values()), *extra]
        opened = open_configurations(graph, self.topology, strategies=strategies)
        self.model: CostModel = opened.model
        self.seconds = time.process_time() - start

    @functools.cached_property
    def predictor(self) -> Predictor:
        return predictor_of(self.model)

    def plans(self, solver: str) -> list[Plan]:
        """The frontier of one of `jaxplan.solvers.SOLVERS`, leanest first: predicted, the dominated plans left out."""
        given = search_arguments(solver, self.predictor, self.strategies)
        found = frontier(self.model.problem, solver, max_points=_MOST_POINTS, **given)
        plans = [make_plan(self.predictor, s.assignment, s.choices, name=solver) for s in found]
        return list(undominated(plans))

    def pinned(self, wanted: Mapping[int, Configuration]) -> Plan:
        """The plan of least additive time in which some groups have given configurations."""
        labels = [
            (configurations.index(wanted[v]),) if v in wanted else tuple(range(len(configurations)))
            for v, configurations in enumerate(self.model.configurations)
        ]
        found = solve(restrict(self.model.problem, labels), "pase")
        assignment = [of[k] for of, k in zip(labels, found.assignment, strict=True)]
        return make_plan(self.predictor, assignment, found.choices, name="pinned")

    def reference(self, name: str) -> Plan:
        """The plan of a reference strategy."""
        return make_plan(self.predictor, *reference_solution(self.model, self.strategies[name]), name=name)


def split_alone(priced: Priced) -> Plan:
    """The plan of least time in which every tensor is split as far as its group allows, and one copy of it is kept.

    So TensorOpt simulated ToFu in its cost model: "by splitting all the tensors among all the devices and disabling
    tensor replication" (section 5.1).
    """
    labels = _split_furthest(priced)
    found = solve(_one_copy(restrict(priced.model.problem, labels)), "pase")
    assignment = [of[k] for of, k in zip(labels, found.assignment, strict=True)]
    return make_plan(priced.predictor, assignment, found.choices, name="split alone")


def without_redundancy(priced: Priced, solver: str) -> list[Plan]:
    """The frontier of a solver where every group is split as far as it goes: no work is done on several devices."""
    labels = _split_furthest(priced)
    found = frontier(restrict(priced.model.problem, labels), solver, max_points=_MOST_POINTS)
    plans = [
        make_plan(
            priced.predictor,
            [of[k] for of, k in zip(labels, s.assignment, strict=True)], s.choices, name=solver,
        )
        for s in found
    ]  # fmt: skip
    return list(undominated(plans))


def _split_furthest(priced: Priced) -> list[tuple[int, ...]]:
    """The configurations of each group that split it over the most devices."""
    sizes = [axis.size for axis in priced.topology.axes]

    def parts(configuration: Configuration) -> int:
        return math.prod(sizes[axis] for split in configuration for axis in split)

    most = [max(map(parts, of)) for of in priced.model.configurations]
    return [
        tuple(k for k, configuration in enumerate(of) if parts(configuration) == n)
        for of, n in zip(priced.model.configurations, most, strict=True)
    ]


def _one_copy(problem: Problem) -> Problem:
    """The problem in which what may be fetched again is: every other choice takes infinite time."""
    edges = []
    for edge in problem.edges:
        table = edge.time
        if table.ndim == 3:
            again = np.isfinite(table[..., REPEAT])[..., None] & (np.arange(table.shape[2]) != REPEAT)
            table = np.where(again, np.inf, table)
        edges.append(Edge(source=edge.source, target=edge.target, time=table, memory=edge.memory))
    return Problem(time=problem.time, memory=problem.memory, edges=edges, names=problem.names)


def partitioned(graph: StepGraph, topology: Topology | str, solver: str) -> tuple[Plan, float]:
    """The plan of a search for the fewest bytes (Tofu's and those beside it), and processor seconds of the search."""
    topology = Topology.parse(topology) if isinstance(topology, str) else topology
    start = time.process_time()
    strategy_plan = partition(graph, topology, solver)
    seconds = time.process_time() - start
    model = build_cost_model(graph, topology, configurations=[(of,) for of in strategy_plan.configurations])
    return make_plan(predictor_of(model), *reference_solution(model, strategy_plan), name=solver), seconds


def received_bytes(plan: Plan) -> float:
    """Bytes that one device receives in a step: (n - 1) / n of a collective's larger side, twice for an all-reduce."""
    return sum(c.count * c.num_bytes * received_share(plan.topology, c) for c in plan.prediction.collectives)


def received_share(topology: Topology, collective: Collective) -> float:
    """Bytes that one device of a group of n receives over those of the larger side, twice (n - 1) / n if all reduce."""
    devices = math.prod(topology.axes[axis].size for axis in collective.axes)
    return (devices - 1) / devices * (2 if collective.kind == "all-reduce" else 1)


def figures(plan: Plan) -> dict[str, float]:
    """Milliseconds of a step, its compute and communication, and GiB of a device."""
    return {
        "ms": plan.time_seconds * 1e3,
        "compute_ms": plan.compute_seconds * 1e3,
        "communication_ms": plan.communication_seconds * 1e3,
        "gib": plan.memory_bytes / GIB,
    }


def tensoropt_machine(num_devices: int) -> Topology:
    """V100 16 GB, eight to a machine on NVLink, machines on one card of 100 Gbit/s (TensorOpt, section 5)."""
    chip = dataclasses.replace(CHIPS["v100"], name="v100-edr", node_link=CHIPS["p100"].node_link)
    return Topology.of(chip, (num_devices // 8, 8) if num_devices > 8 else (num_devices,))


def nodes_of(chip: str, num_devices: int, per_node: int = 8) -> str:
    """A topology string of so many devices, nodes filled one after the other."""
    return (
        f"{chip}:{num_devices // per_node}x{per_node}" if num_devices > per_node else f"{chip}:{num_devices}"
    )


def chains_plan(priced: Priced, seconds: float) -> Plan:
    """FlexFlow's strategy: chains from data parallelism, the experts' and random ones, stopped after so long."""
    chains = simulated_chains(priced.predictor, priced.strategies, seconds)
    found = walk_chains(priced.model.problem, chains.walk_from, chains.initial, chains.options)
    choices = priced.model.problem.evaluate(found.assignment)[2]
    return make_plan(priced.predictor, found.assignment, choices, name="mcmc")
