import numpy as np
import pytest
from random_problems import all_costs, layered_problem, random_problem

from jaxplan import InfeasibleError, ProblemError
from jaxplan.solvers import Problem
from jaxplan.solvers._elimination import run_schedule
from jaxplan.solvers._order import elimination_order
from jaxplan.solvers._schedule import build_schedule


@pytest.mark.sample(48)
@pytest.mark.parametrize("order", ["min-degree", "min-weight"])
@pytest.mark.parametrize("seed", range(60))
def test_minimum_equals_brute_force(seed, order):
    problem = random_problem(seed)
    costs = all_costs(problem)
    for weights in [(1.0, 0.0), (0.0, 1.0), (1.0, 0.3), (0.5, 2.0)]:
        optimum = run_schedule(problem, build_schedule(problem, order), weights)
        best = min(weights[0] * time + weights[1] * memory for memory, time in costs)
        assert optimum.value == pytest.approx(best, abs=1e-9)
        times, memories, _ = problem.evaluate_many(np.array([optimum.assignment]), weights=weights)
        assert weights[0] * times[0] + weights[1] * memories[0] == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_folding_changes_nothing_and_saves_most_steps(seed):
    problem = layered_problem(12, seed=seed)
    folded = build_schedule(problem)
    plain = build_schedule(problem, fold=False)
    for weights in [(1.0, 0.0), (1.0, 1e-3)]:
        optima = [run_schedule(problem, schedule, weights) for schedule in (folded, plain)]
        times, memories, _ = problem.evaluate_many(np.array([optimum.assignment for optimum in optima]))
        values = weights[0] * times + weights[1] * memories
        assert values == pytest.approx(optima[0].value, rel=1e-12)
        assert optima[1].value == pytest.approx(optima[0].value, rel=1e-12)
    assert len(plain.operations) == problem.num_nodes
    assert len(folded.operations) < problem.num_nodes / 2


def test_folding_respects_the_orientation_of_equal_tables():
    table = np.array([[0.0, 5.0], [1.0, 7.0]])
    unary = np.array([0.0, 0.1])
    forward = Problem(time=[unary] * 4, edges=[(0, 1, table), (3, 2, table), (1, 2, table)])
    costs = [
        time
        for labels in np.ndindex(2, 2, 2, 2)
        for time in [
            sum(unary[label] for label in labels)
            + table[labels[0], labels[1]]
            + table[labels[3], labels[2]]
            + table[labels[1], labels[2]]
        ]
    ]
    assert run_schedule(forward, build_schedule(forward)).value == pytest.approx(min(costs))


def test_disconnected_parts_and_single_nodes_add_up():
    problem = Problem(time=[np.array([3.0, 2.0]), np.array([1.0]), np.array([4.0, 5.0])])
    optimum = run_schedule(problem, build_schedule(problem))
    assert (optimum.value, optimum.assignment) == (7.0, (1, 0, 0))


def test_min_degree_takes_leaves_first():
    """A star: GenerateSeq removes leaves, with dependent sets of the centre alone, before the centre."""
    table = np.zeros((2, 2))
    star = Problem(time=[np.zeros(2)] * 6, edges=[(0, leaf, table) for leaf in range(1, 6)])
    assert elimination_order(star, "min-degree").index(0) >= 4


def test_too_wide_graph_is_refused_before_any_table_is_made():
    table = np.zeros((20, 20))
    clique = Problem(
        time=[np.zeros(20)] * 12, edges=[(u, v, table) for u in range(12) for v in range(u + 1, 12)]
    )
    with pytest.raises(ProblemError, match="still joined to 11 others"):
        build_schedule(clique)


def test_contradicting_infinities_are_infeasible():
    unequal = np.array([[np.inf, 0.0], [0.0, np.inf]])
    triangle = Problem(time=[np.zeros(2)] * 3, edges=[(0, 1, unequal), (1, 2, unequal), (2, 0, unequal)])
    with pytest.raises(InfeasibleError, match="infinite time"):
        run_schedule(triangle, build_schedule(triangle))


def test_a_node_with_one_configuration_joins_nothing():
    """Its 100 neighbours would make a table of 100 axes, more than NumPy has."""
    rng = np.random.default_rng(0)
    sizes = [1, *[2] * 100]
    problem = Problem(
        time=[rng.random(size) for size in sizes], edges=[(0, k, rng.random((1, 2))) for k in range(1, 101)]
    )
    best = sum(
        float((time + edge.time[0]).min()) for time, edge in zip(problem.time[1:], problem.edges)
    ) + float(problem.time[0][0])
    for order in ("min-degree", "min-weight", "min-result", range(101)):
        assert run_schedule(problem, build_schedule(problem, order)).value == pytest.approx(best)


def test_edges_between_nodes_with_one_configuration_count():
    problem = Problem(
        time=[np.array([1.0]), np.array([2.0]), np.array([5.0, 3.0])],
        edges=[(0, 1, np.array([[4.0]])), (1, 2, np.array([[0.0, 7.0]])), (1, 0, np.array([[10.0]]))],
    )
    assert run_schedule(problem, build_schedule(problem)).value == 22.0
