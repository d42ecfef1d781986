"""`data` and `fsdp`: what every frontier is compared with.

A strategy is two rules: how a group that carries the batch is split, and how stored state is split. Both pick among the
configurations that the solvers see, so a strategy is a point of the search space and costs what any other point costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from jaxplan.cost import KEEP, REPEAT, CostModel
from jaxplan.ir import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A named way to lay out a step.

    Attributes:
      shard_state: split parameters and optimizer slots on their largest dimension, over all devices
        (ZeRO-3, https://arxiv.org/abs/1910.02054); otherwise every device holds all of them.
      repeat_gathers: gather parameters again for the backward pass instead of keeping them.
    """

    shard_state: bool
    repeat_gathers: bool


REFERENCE_STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "data": Strategy(shard_state=False, repeat_gathers=False),
        "fsdp": Strategy(shard_state=True, repeat_gathers=True),
    }
)


def reference_solution(model: CostModel, strategy: Strategy) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Configuration per group and choice per edge of a strategy.

    Where no axis divides the batch, or no dimension of a leaf, what is left whole is replicated.
    """
    assignment = []
    for group, space, configs in zip(
        model.graph.grouping.groups, model.graph.spaces, model.configurations, strict=True
    ):
        if group.kind == "state":
            wanted = tuple(range(len(space.classes))) if strategy.shard_state else ()
        else:
            wanted = tuple(c for c, cls in enumerate(space.classes) if _is_batch(model, cls.named_dimension))
            wanted = wanted or space.operand_partial  # sums over the batch: each device's own until all are added
        assignment.append(
            _most_split(model, configs, wanted, [min(c.sizes, default=0) for c in space.classes])
        )
    _take_sums(model, assignment)
    return tuple(assignment), _choices(model, assignment, strategy.repeat_gathers)


def _take_sums(model: CostModel, assignment: list[int]) -> None:
    """Where what is added up is no partial sum (no axis divided its batch), neither is the result."""
    for edge in model.problem.edges:
        if np.isfinite(np.min(edge.time[assignment[edge.source], assignment[edge.target]])):
            continue
        for v in (edge.source, edge.target):
            if model.graph.spaces[v].operand_partial:
                assignment[v] = 0


def _is_batch(model: CostModel, dimension: int) -> bool:
    return dimension >= 0 and model.graph.named.dimensions[dimension].name == "batch"


def _most_split(
    model: CostModel, configs: tuple[Configuration, ...], wanted: tuple[int, ...], sizes: list[int]
) -> int:
    """The configuration that splits exactly one wanted class into most parts; ties to the larger dimension."""
    best, best_key = 0, (1, 0)
    for k, config in enumerate(configs):
        used = [c for c, axes in enumerate(config) if axes]
        if len(used) != 1 or used[0] not in wanted:
            continue
        parts = math.prod(model.topology.axes[a].size for a in config[used[0]])
        if (parts, sizes[used[0]]) > best_key:
            best, best_key = k, (parts, sizes[used[0]])
    return best


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
