import numpy as np
import pytest
from random_problems import all_costs, random_problem

from jaxplan import InfeasibleError, ProblemError
from jaxplan.solvers import Problem, frontier, solve
from jaxplan.solvers import _dual as dual
from jaxplan.solvers._dual import minimise_by_messages, tighten
from jaxplan.solvers._elimination import run_schedule
from jaxplan.solvers._messages import Messages, Network
from jaxplan.solvers._schedule import best_schedule

WEIGHTS = [(1.0, 0.0), (0.0, 1.0), (1.0, 0.3)]


def value(weights, memory, time):
    return weights[0] * time + weights[1] * memory


@pytest.mark.sample(40)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("weights", WEIGHTS)
def test_minimum_and_bound_meet_brute_force(seed, weights):
    problem = random_problem(seed)
    best = min(value(weights, memory, time) for memory, time in all_costs(problem))
    optimum = minimise_by_messages(problem, weights)
    assert (optimum.value, optimum.bound) == (pytest.approx(best), pytest.approx(best))


@pytest.mark.parametrize("seed", range(40))
def test_every_sweep_bounds_every_configuration_from_below(seed):
    """With the bound before a sweep, reduced costs bound the best assignment that has the configuration."""
    problem = random_problem(seed, max_nodes=5)
    rows = list(np.ndindex(*problem.num_configurations))
    times = problem.evaluate_many(np.array(rows))[0]
    messages = Messages(Network.of(problem, (1.0, 0.0)))
    before = -np.inf
    for _ in range(3):
        for sweep in messages.sweep():
            assert sweep.bound <= times.min() + 1e-9
            assert sweep.bound >= before - 1e-9  # never worse than the sweep before
            if np.isfinite(before):
                for node, size in enumerate(problem.num_configurations):
                    for label in range(size):
                        best = min(t for row, t in zip(rows, times) if row[node] == label)
                        assert before + sweep.reduced[node][label] <= best + 1e-9
            before = sweep.bound


@pytest.mark.parametrize("seed", range(40))
def test_assignments_up_to_the_given_cost_keep_their_configurations(seed):
    problem = random_problem(seed)
    rows = np.array(list(np.ndindex(*problem.num_configurations)))
    times = problem.evaluate_many(rows)[0]
    upper = float(times.min()) + 2.0
    found = tighten(problem, (1.0, 0.0), upper)
    for row in rows[times <= upper]:
        assert all(label in labels for label, labels in zip(row, found.labels))


def test_on_a_tree_the_bound_is_tight_and_only_the_optimum_is_left():
    rng = np.random.default_rng(0)
    problem = Problem(
        time=[rng.random(9) for _ in range(40)],
        edges=[(int(rng.integers(0, v)), v, rng.random((9, 9))) for v in range(1, 40)],
    )
    found = tighten(problem, (1.0, 0.0))
    assert found.bound == pytest.approx(run_schedule(problem, best_schedule(problem)).value)
    assert sum(map(len, found.labels)) == problem.num_nodes


def clique(num_nodes, labels, seed=0):
    rng = np.random.default_rng(seed)
    return Problem(
        time=[rng.random(labels) for _ in range(num_nodes)],
        memory=[rng.integers(0, 100, labels) for _ in range(num_nodes)],
        edges=[
            (u, v, rng.random((labels, labels))) for u in range(num_nodes) for v in range(u + 1, num_nodes)
        ],
    )


def test_too_wide_for_elimination_gives_a_real_assignment_and_a_bound(monkeypatch):
    monkeypatch.setattr(dual, "_MOST_ENTRIES", 2_000_000)
    monkeypatch.setattr(dual, "_MOST_ADDITIONS", 100_000)
    problem = clique(12, 20)
    found = solve(problem)
    assert problem.evaluate(found.assignment)[0] == found.time
    assert 0 < found.lower_bound < found.time
    assert found.gap == pytest.approx(found.time / found.lower_bound - 1)


def test_frontier_of_a_wide_graph_is_certified_from_below(monkeypatch):
    def refuse(problem):
        raise ProblemError("too wide")

    monkeypatch.setattr("jaxplan.solvers._minimise.best_schedule", refuse)
    monkeypatch.setattr("jaxplan.solvers._frontier._EXACT_LISTS_CANDIDATES", 0)
    monkeypatch.setattr(dual, "_MOST_ADDITIONS", 0)
    problem = clique(5, 3, seed=1)
    costs = all_costs(problem)
    for point in frontier(problem, "auto"):
        fastest = min(time for memory, time in costs if memory <= point.memory)
        assert point.lower_bound <= fastest + 1e-9 <= point.time + 2e-9


def test_contradicting_infinities_are_infeasible():
    unequal = np.array([[np.inf, 0.0], [0.0, np.inf]])
    triangle = Problem(time=[np.zeros(2)] * 3, edges=[(0, 1, unequal), (1, 2, unequal), (2, 0, unequal)])
    with pytest.raises(InfeasibleError):
        minimise_by_messages(triangle)


def test_infinite_entries_are_avoided():
    rng = np.random.default_rng(5)
    tables = [np.where(rng.random((8, 8)) < 0.5, np.inf, rng.random((8, 8))) for _ in range(20)]
    problem = Problem(
        time=[rng.random(8) for _ in range(21)], edges=[(v, v + 1, table) for v, table in enumerate(tables)]
    )
    exact = run_schedule(problem, best_schedule(problem)).value
    optimum = minimise_by_messages(problem)
    assert (optimum.value, optimum.bound) == (pytest.approx(exact), pytest.approx(exact))
