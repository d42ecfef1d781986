"""The reference strategies by name; every frontier is compared with them.

A strategy is a set of rules over named dimensions: some split groups of operators, others split stored arrays. The
result is a configuration for every group: a point of the search space, with the cost of that point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from jaxplan.cost import KEEP, REPEAT, CostModel, check_user_meshes
from jaxplan.ir import Configuration, StepGraph
from jaxplan.mesh import Topology
from jaxplan.strategies._axes import grid_name, grids
from jaxplan.strategies._data import data, fsdp, hybrid_fsdp, zero1, zero2
from jaxplan.strategies._special import context, experts, one_weird_trick, spatial
from jaxplan.strategies._step import Absent, Step, StrategyPlan
from jaxplan.strategies._tensor import grid, megatron, megatron_sequence
from jaxplan.strategies._weights import Weights

Strategy = Callable[[Step], StrategyPlan | Absent]

REFERENCE_STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "data": data,
        "zero1": zero1,
        "zero2": zero2,
        "fsdp": fsdp,
        "hybrid_fsdp": hybrid_fsdp,
        "megatron": megatron,
        "megatron_sequence": megatron_sequence,
        "one_weird_trick": one_weird_trick,
        "experts": experts,
        "spatial": spatial,
        "context": context,
    }
)
"""Strategies with one form on every topology; `apply_strategies` adds data times tensor on every grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The reference strategies of one step on one topology.

    Attributes:
      plans: name -> plan of the strategies that apply, `data` first.
      absent: name -> reason why a strategy does not apply.
    """

    plans: Mapping[str, StrategyPlan]
    absent: Mapping[str, str]

    def configurations(self) -> tuple[frozenset[Configuration], ...]:
        """Per group, the configurations that the search space must hold."""
        return tuple(map(frozenset, zip(*(plan.configurations for plan in self.plans.values()), strict=True)))


def reference_names(topology: Topology) -> tuple[str, ...]:
    """Names of all reference strategies on a topology, whether they apply to a step or not.

    Example:
      >>> reference_names(Topology.parse("h100:2x2"))[-2:]
      ('data2x1_tensor1x2', 'data1x2_tensor2x1')
    """
    return (*REFERENCE_STRATEGIES, *(grid_name(topology, split) for split in grids(topology)))


def apply_strategies(graph: StepGraph, topology: Topology) -> References:
    """Apply every reference strategy to a step; one with the same plan as an earlier one is absent."""
    check_user_meshes(graph, topology)
    step = Step(graph=graph, topology=topology, weights=Weights(graph))
    strategies: dict[str, Strategy] = dict(REFERENCE_STRATEGIES)
    for split in grids(topology):
        strategies[grid_name(topology, split)] = lambda step, split=split: grid(step, split)
    strategy_plans: dict[str, StrategyPlan] = {}
    absent: dict[str, str] = {}
    for name, strategy in strategies.items():
        alone = not topology.axes and name != "data"
        found = Absent(reason="there is one device") if alone else strategy(step)
        if isinstance(found, Absent):
            absent[name] = found.reason
            continue
        twin = next((other for other, strategy_plan in strategy_plans.items() if strategy_plan == found), None)
        if twin is None:
            strategy_plans[name] = found
        else:
            absent[name] = f"here it is the same as {twin}"
    return References(plans=strategy_plans, absent=absent)


def reference_solution(model: CostModel, strategy_plan: StrategyPlan) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Configuration per group and choice per edge of a strategy.

    Raises ValueError where the search space lacks a configuration, except of tiny state, which is always whole.
    """
    assignment = [
        configs.index(wanted) if len(configs) > 1 else 0
        for configs, wanted in zip(model.configurations, strategy_plan.configurations, strict=True)
    ]
    _take_sums(model, assignment)
    return tuple(assignment), _choices(model, assignment, strategy_plan.repeat_gathers)


def _take_sums(model: CostModel, assignment: list[int]) -> None:
    """Make a sum group's result whole where its summands are (no axis divided their batch)."""
    adding = [bool(space.operand_partial) for space in model.graph.spaces]
    for edge in model.problem.edges:
        if not (adding[edge.source] or adding[edge.target]):
            continue
        if np.isfinite(np.min(edge.time[assignment[edge.source], assignment[edge.target]])):
            continue
        for v in (edge.source, edge.target):
            if adding[v]:
                assignment[v] = 0


def _choices(model: CostModel, assignment: list[int], repeat: bool) -> tuple[int, ...]:
    choices = []
    for edge in model.problem.edges:
        table = edge.time
        again = table.ndim == 3 and repeat
        if again and np.isfinite(table[assignment[edge.source], assignment[edge.target], REPEAT]):
            choices.append(REPEAT)
        else:
            choices.append(KEEP)
    return tuple(choices)
