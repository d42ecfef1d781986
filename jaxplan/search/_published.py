"""Inputs of published searches beside the additive problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxplan.cost import CostModel, Predictor
from jaxplan.ir import StepGraph
from jaxplan.mesh import Topology
from jaxplan.search._mcmc_starts import simulated_chains
from jaxplan.search._named_splits import named_splits
from jaxplan.search._tofu import PARTITION_SOLVERS, partition
from jaxplan.solvers import Solution, heuristic_solution
from jaxplan.strategies import StrategyPlan, reference_solution


def search_arguments(solver: str, predictor: Predictor, strategy_plans: Mapping[str, StrategyPlan]) -> dict[str, Any]:
    """The keyword arguments of `jaxplan.solvers.frontier` that a solver needs on a step."""
    if solver == "mcmc":
        return {"chains": simulated_chains(predictor, strategy_plans)}
    if solver == "one_mesh":
        return {"meanings": named_splits(predictor.model)}
    return {}


def partitions(graph: StepGraph, topology: Topology, solver: str) -> dict[str, StrategyPlan]:
    """The strategy plan of a solver that does not search the additive problem, by its name; none for others."""
    return {solver: partition(graph, topology, solver)} if solver in PARTITION_SOLVERS else {}


def partition_solution(model: CostModel, strategy_plan: StrategyPlan, solver: str) -> Solution:
    """A partition as a solution of the additive problem."""
    return heuristic_solution(model.problem, solver, *reference_solution(model, strategy_plan))
