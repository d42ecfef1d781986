"""Equal layers are priced once and never tied: a folded solve finds the same as an unfolded one."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict

import pytest

from benchmarks.models import build
from jaxplan.cost import CostModel, _node_tables, build_cost_model
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from jaxplan.solvers import frontier, solve
from jaxplan.solvers._elimination import run_schedule
from jaxplan.solvers._schedule import build_schedule
from tests.sampling import sampled

NUM_LAYERS = 12


@functools.cache
def _gpt(num_layers: int) -> CostModel:
    step, args = build("gpt-tiny", num_layers=num_layers, width=128, batch_size=64)
    graph = analyse_step(step, args, {}, donate_argnums=(0,), static_argnums=())
    return build_cost_model(graph, Topology.parse("h100:8"))


@pytest.mark.parametrize("weights", sampled([((1.0, 1e-12),), ((0.0, 1.0),), ((1.0, 0.0),)]))
def test_the_folded_optimum_is_the_unfolded_one(weights: tuple[float, float]) -> None:
    problem = _gpt(NUM_LAYERS).problem
    folded, unfolded = build_schedule(problem), build_schedule(problem, fold=False)
    assert len(folded.operations) < len(unfolded.operations) / 3
    found = run_schedule(problem, folded, weights).value
    assert found == pytest.approx(run_schedule(problem, unfolded, weights).value, rel=1e-9)


def test_the_solver_finds_that_optimum() -> None:
    problem = _gpt(NUM_LAYERS).problem
    unfolded = run_schedule(problem, build_schedule(problem, fold=False)).value
    assert solve(problem, solver="auto").time == pytest.approx(unfolded, rel=1e-9)


@pytest.mark.slow
def test_tables_are_made_once_however_many_layers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = _node_tables.compute_seconds
    monkeypatch.setattr(_node_tables, "compute_seconds", lambda *args: (calls.append(1), original(*args))[1])
    counts, tables = [], []
    for num_layers in (6, NUM_LAYERS):
        calls.clear()
        _gpt.cache_clear()
        problem = _gpt(num_layers).problem
        counts.append(len(calls))
        tables.append(len({id(edge.time) for edge in problem.edges}))
    assert counts[0] == counts[1]  # the first and the last layer have other neighbours, those between are equal
    assert tables[0] == tables[1]


def test_layers_that_are_equal_may_be_laid_out_differently() -> None:
    model = _gpt(NUM_LAYERS)
    roles: dict[str, list[int]] = defaultdict(list)
    paths = dict(zip(model.graph.program.inputs, model.graph.program.in_paths, strict=True))
    for group in model.graph.grouping.groups:
        for t in group.inputs[:1]:
            if "block_" in paths[t]:
                roles[re.sub(r"block_\d+", "block", paths[t])].append(group.index)
    layered = [nodes for nodes in roles.values() if len(nodes) == NUM_LAYERS]
    assert layered
    copies = {edge.source: e for e, edge in enumerate(model.problem.edges) if edge.time.ndim == 3}
    mixed = 0
    for point in frontier(model.problem, max_points=64):
        for nodes in layered:
            chosen = [(point.assignment[v], point.choices[copies[v]] if v in copies else 0) for v in nodes]
            counts = Counter(chosen).values()
            mixed += len(counts) > 1 and max(counts) < NUM_LAYERS
    assert mixed  # k of 12 layers laid out, or gathered, one way, the others another
