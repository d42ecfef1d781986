"""Prices of operators that searches of one step have in common."""

from __future__ import annotations

import numpy as np

from benchmarks.models import build
from jaxplan.cost import CostModel, ModelBuilder
from jaxplan.ir import StepGraph
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step

TOPOLOGY = Topology.parse("h100:8")


def graph_of_gpt() -> StepGraph:
    step, args = build("gpt-tiny", num_layers=2)
    return analyse_step(step, args, {}, donate_argnums=(0,), static_argnums=())


def test_prices_that_are_asked_for_in_parts_are_those_of_all_at_once() -> None:
    """The second half of the configurations first, then all: rows are looked up by configuration, not by place."""
    once, parts = ModelBuilder(graph_of_gpt(), TOPOLOGY), ModelBuilder(graph_of_gpt(), TOPOLOGY)
    whole = once.build(once.configurations())
    parts.build([configs[len(configs) // 2 :] for configs in parts.configurations()])
    again = parts.build(parts.configurations())
    assert any(len(configs) > 2 for configs in whole.configurations)

    def tables(model: CostModel, v: int) -> list[np.ndarray]:
        return [model.compute[v], model.flops[v], model.problem.memory[v], model.equation_seconds(v)]

    for v in range(len(whole.configurations)):
        for one, other in zip(tables(whole, v), tables(again, v), strict=True):
            np.testing.assert_array_equal(one, other)


def test_seconds_of_equations_add_up_to_those_of_their_group() -> None:
    builder = ModelBuilder(graph_of_gpt(), TOPOLOGY)
    model = builder.build(builder.configurations())
    for v, group in enumerate(model.graph.grouping.groups):
        of = model.equation_seconds(v)
        assert of.shape == (len(model.configurations[v]), len(group.equations))
        np.testing.assert_allclose(of.sum(axis=1), model.compute[v], rtol=1e-12)
