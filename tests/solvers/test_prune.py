import numpy as np
import pytest
from random_problems import all_costs, brute_frontier, layered_problem, random_problem

from jaxplan.solvers import Problem
from jaxplan.solvers._prune import prune
from jaxplan.solvers._restrict import restrict


@pytest.mark.sample(30)
@pytest.mark.parametrize("seed", range(80))
def test_the_frontier_survives(seed):
    problem = random_problem(seed)
    small = restrict(problem, prune(problem))
    assert brute_frontier(small) == brute_frontier(problem)


@pytest.mark.sample(40)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (1.0, 0.7)])
def test_an_optimum_of_one_cost_survives(seed, weights):
    problem = random_problem(seed)
    small = restrict(problem, prune(problem, [weights]))
    assert sum(small.num_configurations) <= sum(restrict(problem, prune(problem)).num_configurations)
    least = [min(weights[0] * t + weights[1] * m for m, t in all_costs(each)) for each in (small, problem)]
    assert least[0] == pytest.approx(least[1])


@pytest.mark.slow
def test_pruning_at_two_slopes_is_exact_at_every_slope_between():
    for seed in range(40):
        problem = random_problem(seed)
        small = restrict(problem, prune(problem, [(1.0, 0.3), (1.0, 2.0)]))
        for slope in (0.3, 0.6, 1.0, 2.0):
            least = [min(t + slope * m for m, t in all_costs(each)) for each in (small, problem)]
            assert least[0] == pytest.approx(least[1])


def test_a_chain_of_dominated_configurations_falls_by_itself():
    """Node 0 loses one; only then does its neighbour's second configuration have nothing left to win."""
    bonus = np.array([[0.0, 0.0], [0.0, -5.0]])
    problem = Problem(time=[np.array([0.0, 9.0]), np.array([0.0, 1.0])], edges=[(0, 1, bonus)])
    assert prune(problem) == [(0,), (0,)]


def test_of_equal_configurations_the_first_stays():
    problem = Problem(time=[np.ones(4), np.ones(3)], edges=[(0, 1, np.zeros((4, 3)))])
    assert prune(problem) == [(0,), (0,)]


def test_configurations_that_nothing_living_goes_with_are_dropped():
    table = np.array([[np.inf, np.inf], [1.0, np.inf], [np.inf, 2.0]])
    problem = Problem(time=[np.array([0.0, 5.0, 5.0]), np.zeros(2)], edges=[(0, 1, table)])
    assert 0 not in prune(problem)[0]


def test_equal_layers_lose_equal_configurations():
    problem = layered_problem(6, labels=6)
    labels = prune(problem)
    assert labels[6:11] == labels[11:16] == labels[16:21]
