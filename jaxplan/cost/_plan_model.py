"""The costs of plans that are known already: every group has the plan's configuration alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from jaxplan.cost._model_builder import build_cost_model
from jaxplan.cost._prediction import Predictor
from jaxplan.ir import Configuration, StepGraph
from jaxplan.mesh import Topology

T = TypeVar("T")

_MOST_REMEMBERED = 32
"""Plans of a step: the points and references of a frontier, of which a report asks in turn."""


def remembered(graph: StepGraph, topology: Topology, what: str, plan: Hashable, compute: Callable[[], T]) -> T:
    """``compute()`` once for each of the last plans of a step on one machine."""
    known = graph.derive(what, topology, dict)
    if plan not in known:
        if len(known) >= _MOST_REMEMBERED:
            del known[next(iter(known))]
        known[plan] = compute()
    return known[plan]


def predictor_of_plan(
    graph: StepGraph, topology: Topology, configurations: Sequence[Configuration]
) -> Predictor:
    """Predicts a plan under its assignment of zeros; equal plans share it."""
    key = tuple(configurations)

    def build() -> Predictor:
        return Predictor(build_cost_model(graph, topology, configurations=[(config,) for config in key]))

    return remembered(graph, topology, "predictors of plans", key, build)
