"""The step time and the memory of a published run, predicted: traced from its dimensions, never materialised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from benchmarks.models import build
from benchmarks.published._rows import Row, UnknownRowError
from benchmarks.published._sharding import grid_of, sharded_grid
from jaxplan.cost import CostModel, ModelBuilder
from jaxplan.frontend._absent_gpu import NEWEST_GPU
from jaxplan.ir import StepGraph
from jaxplan.search._traced import analyse_traced, trace_step
from jaxplan.simulate import OverlappedPredictor
from jaxplan.strategies import reference_solution
from jaxplan.strategies._step import Absent

TRACED_LAYERS = (2, 4)
"""Of a program that has every layer: its figures grow by equal steps, so two sizes give them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Seconds overlapped and additive, their parts, and bytes of one device."""

    seconds: float
    compute_seconds: float
    communication_seconds: float
    memory_bytes: float

    def extended(self, other: Predicted, share: float) -> Predicted:
        """The value on the line from this one to another, ``share`` of the way."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return Predicted(**{n: a + (b - a) * share for n, (a, b) in zip(self.__slots__, pairs)})


def predict(row: Row) -> Predicted:
    """Predict a row; raises `UnknownRowError` where it cannot be built."""
    overrides = row.overrides
    if overrides["scan"]:
        return _predicted(row, overrides)
    few, more = TRACED_LAYERS
    if overrides["num_layers"] <= more:
        return _predicted(row, overrides)
    first, second = (_predicted(row, {**overrides, "num_layers": n}) for n in (few, more))
    return first.extended(second, (overrides["num_layers"] - few) / (more - few))


def _predicted(row: Row, overrides: dict[str, Any]) -> Predicted:
    model, solution = applied(row, analysed(overrides))
    prediction, _ = OverlappedPredictor(model).predict(*solution)
    return Predicted(
        seconds=prediction.time_seconds,
        compute_seconds=prediction.compute_seconds,
        communication_seconds=prediction.communication_seconds,
        memory_bytes=float(prediction.memory_bytes),
    )


def applied(row: Row, graph: StepGraph) -> tuple[CostModel, tuple[Sequence[int], Sequence[int]]]:
    """The published sharding of a row on a step: a cost model that has little else, and its point of it."""
    topology = row.topology
    strategy = sharded_grid(graph, topology, grid_of(topology, *row.degrees))
    if isinstance(strategy, Absent):
        raise UnknownRowError(strategy.reason)
    builder = ModelBuilder(graph, topology, tuple(frozenset((config,)) for config in strategy.configurations))
    wanted = [
        configs[:1] if len(configs) == 1 else tuple(dict.fromkeys((configs[0], config)))
        for configs, config in zip(builder.configurations(1), strategy.configurations, strict=True)
    ]
    model = builder.build(wanted)
    return model, reference_solution(model, strategy)


def analysed(overrides: dict[str, Any]) -> StepGraph:
    """The graph of a step, traced as for a GPU that knows all forms of fused attention."""
    jax.clear_caches()
    step, args = build("decoder-tiny", **overrides)
    return analyse_traced(
        trace_step(step, args, {}, assumption=NEWEST_GPU, donate_argnums=(0,), static_argnums=())
    )
