"""Proofs of plans: against every assignment of small problems, and in words."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from jaxplan import Frontier
from jaxplan.ir import COARSE_CONFIGURATIONS
from jaxplan.plans._certificate import certificate, proven_points
from jaxplan.search import _open_configurations as _hierarchy
from jaxplan.solvers import Problem, bound_at, frontier
from tests.fake_plan import GIB, FakePlan


def step(params, batch):
    def loss_fn(params):
        hidden = jnp.maximum(batch["x"] @ params["up"], 0)
        return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients), loss


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.float32)


ARGS = (
    {"up": shape(1024, 4096), "down": shape(4096, 1024)},
    {"x": shape(512, 1024), "y": shape(512, 1024)},
)


@pytest.fixture(scope="module")
def planned():
    """By the sum of compute and communication: its optimum is proven."""
    return jaxplan.plan(step, *ARGS, topology="h100:4", progress=False, overlap=False)


def test_bounds_hold_at_any_memory_for_all_assignments():
    """Of two nodes and an edge everything is counted through: nothing is faster than the bound at its memory."""
    time, memory = [[5.0, 3.0, 1.0], [4.0, 2.5]], [[1, 2, 4], [1, 3]]
    between = [[0.0, 1.0], [0.5, 0.0], [2.0, 0.25]]
    problem = Problem(time=time, memory=memory, edges=[(0, 1, between)])
    solutions = frontier(problem)
    for a in range(3):
        for b in range(2):
            bound = bound_at(solutions, memory[0][a] + memory[1][b])
            assert bound <= time[0][a] + time[1][b] + between[a][b]
    fastest = min(time[0][a] + time[1][b] + between[a][b] for a in range(3) for b in range(2))
    assert bound_at(solutions, 10**18) == fastest


def test_every_point_and_every_reference_has_a_bound(planned):
    for plan in (*planned, *planned.references.values()):
        assert plan.gap is not None and plan.gap >= 0
        assert 0 < plan.lower_bound_seconds <= plan.time_seconds
        assert plan.most_configurations is None
    assert planned.fastest().gap == 0


def test_table_and_explanation_say_what_is_proven(planned):
    assert "optimal for the cost model: " in planned.table()
    assert "optimal for the cost model: nothing of at most its memory" in planned.fastest().explain()


def test_simulated_times_have_a_bound_in_table_and_explanation():
    frontier = jaxplan.plan(step, *ARGS, topology="h100:4", progress=False)
    for plan in (*frontier, *frontier.references.values()):
        assert plan.overlapped and plan.gap is not None and plan.gap > 0
        assert plan.compute_seconds / 2 < plan.lower_bound_seconds <= plan.time_seconds
        assert plan.time_seconds <= plan.lower_bound_seconds * (1 + plan.gap) * (1 + 1e-9)
    most = max(plan.gap for plan in frontier)
    assert f"times are simulated, with overlap; none is over {most:.1%} above its bound" in frontier.table()
    assert "nothing of at most its memory costs over " in frontier.fastest().explain()
    assert "optimal" not in frontier.table() + frontier.fastest().explain()


def test_certificates_are_saved_with_the_plan(planned, tmp_path):
    plan = dataclasses.replace(planned.fastest(), gap=0.125, most_configurations=40)
    plan.save(tmp_path / "plan.json")
    read = jaxplan.load(tmp_path / "plan.json")
    assert isinstance(read, jaxplan.Plan)
    assert (read.gap, read.most_configurations) == (0.125, 40)
    assert "11.11% less in the cost model within 40 configurations" in read.explain()
    planned.save(tmp_path / "frontier.json")
    again = jaxplan.load(tmp_path / "frontier.json")
    assert isinstance(again, Frontier)
    assert [plan.gap for plan in again] == [plan.gap for plan in planned]


def test_where_configurations_were_capped_optimal_is_within_them(monkeypatch):
    monkeypatch.setattr(_hierarchy.ModelBuilder, "has_all", lambda self: False)
    capped = jaxplan.plan(step, *ARGS, topology="h100:2", progress=False, overlap=False)
    most = {plan.most_configurations for plan in capped}
    assert len(most) == 1 and 1 < (most.pop() or 0) <= COARSE_CONFIGURATIONS
    assert " configurations an operator: " in capped.table() and "optimal for the cost model within" in capped.table()


def fake(gib, milliseconds, gap, most=None):
    return FakePlan(
        name="p", time_seconds=milliseconds / 1e3, memory_bytes=gib * GIB, gap=gap, most_configurations=most
    )


@pytest.mark.parametrize(
    ("gaps", "text"),
    [
        ([0.0] * 3, "optimal for the cost model: every point"),
        ([0.0], "optimal for the cost model: the only point"),
        ([0.0, 0.0, 0.0, 0.02, 0.0], "optimal for the cost model: #0-#2, #4; gap of the others at most 2.0%"),
        ([0.01, None], "optimal for the cost model: no point is proven; gap of the others at most 1.0%"),
        ([None, None], None),
    ],
)
def test_proven_points_in_words(gaps, text):
    points = [fake(1 + i, 100 - i, gap) for i, gap in enumerate(gaps)]
    assert proven_points(points) == text  # pyright: ignore[reportArgumentType]


def test_bounds_of_simulated_points_in_words():
    points = [dataclasses.replace(fake(1 + i, 100 - i, 0.01 * i, 40), overlapped=True) for i in (1, 2)]
    text = "times are simulated, with overlap; none is over 2.0% above its bound within 40 configurations an operator"
    assert proven_points(points) == text  # pyright: ignore[reportArgumentType]


def test_one_plan_in_words():
    assert certificate(fake(1, 1, None)) == "nothing is proven of this plan"  # pyright: ignore[reportArgumentType]
    capped = certificate(fake(1, 1, 0.0, 40))  # pyright: ignore[reportArgumentType]
    assert capped.startswith("optimal for the cost model within 40 configurations an operator")
