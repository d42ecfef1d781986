"""Reference strategies of a model, predicted without a search and without a compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from typing import Any

import jax

from benchmarks.models import build
from jaxplan.cost import CostModel, ModelBuilder, Prediction
from jaxplan.ir import StepGraph
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from jaxplan.simulate import predictor_of
from jaxplan.strategies import apply_strategies, reference_solution
from jaxplan.xla import Target


def analysed(model: str, overrides: dict[str, Any]) -> StepGraph:
    """The dimension graph of a model of the registry."""
    jax.clear_caches()
    step, args = build(model, **overrides)
    return analyse_step(step, args, {}, donate_argnums=None, static_argnums=())


def predict_references(
    graph: StepGraph, topology: Topology, without: Collection[str] = ()
) -> Iterator[tuple[str, Prediction]]:
    """(name, prediction) of each strategy that applies, ``without`` the compiler rules of these names.

    The cost model holds, for every group, the replicated configuration and those that the strategies ask for: enough to
    predict them, and a small part of the prices of a search.
    """
    strategy_plans = apply_strategies(graph, topology).plans
    always = tuple(map(frozenset, zip(*(plan.configurations for plan in strategy_plans.values()), strict=True)))
    target = Target.of(topology.chip, topology.num_devices, without)
    builder = ModelBuilder(graph, topology, always, target=target)
    wanted = [
        configs[:1] if len(configs) == 1 else configs[:1] + tuple(sorted(asked.difference(configs[:1])))
        for configs, asked in zip(builder.configurations(1), always, strict=True)
    ]
    model: CostModel = builder.build(wanted)
    predictor = predictor_of(model)
    for name, strategy_plan in strategy_plans.items():
        yield name, predictor.predict(*reference_solution(model, strategy_plan))[0]


def digest(prediction: Prediction) -> dict[str, Any]:
    """A prediction as JSON data: equal data means that nothing changed; collectives as a hash of them."""
    collectives = repr(
        sorted((c.kind, c.num_bytes, c.axes, c.count, c.latency_share) for c in prediction.collectives)
    )
    return {
        "memory_bytes": prediction.memory_bytes,
        "memory_parts": dict(sorted(prediction.memory_parts.items())),
        "flops": prediction.flops,
        "compute_seconds": prediction.compute_seconds,
        "communication_seconds": prediction.communication_seconds,
        "collectives": hashlib.sha256(collectives.encode()).hexdigest()[:16],
    }
