import numpy as np
import pytest
from random_problems import all_costs, random_problem

from jaxplan import InfeasibleError, ProblemError
from jaxplan.solvers import Problem, solve
from jaxplan.solvers._tofu import all_row_greedy, critical_dp, greedy_largest_first, recursive_dp


def chain(length, seed=0, labels=3):
    rng = np.random.default_rng(seed)
    return Problem(
        time=[rng.random(labels) for _ in range(length)],
        edges=[(v, v + 1, rng.random((labels, labels))) for v in range(length - 1)],
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_is_one_critical_path_so_the_result_is_optimal(seed):
    problem = chain(6, seed)
    best = min(time for _, time in all_costs(problem))
    assert problem.evaluate(critical_dp(problem))[0] == pytest.approx(best)


def test_the_path_of_large_tensors_is_decided_first():
    """Node 2 hangs on node 0 by a large tensor and node 1 by a small one: node 0 suits node 2."""
    agree = np.array([[0.0, 1.0], [1.0, 0.0]])
    problem = Problem(
        time=[np.zeros(2), np.array([0.0, 9.0]), np.array([9.0, 0.0])],
        edges=[(0, 1, 5 * agree), (0, 2, 4 * agree)],
    )
    assert critical_dp(problem, sizes=[1.0, 100.0]) == (1, 0, 1)
    assert critical_dp(problem, sizes=[100.0, 1.0]) == (0, 0, 1)
    assert problem.evaluate((0, 0, 1))[0] < problem.evaluate((1, 0, 1))[0]


@pytest.mark.parametrize("seed", range(12))
def test_searches_give_real_assignments_never_below_the_optimum(seed):
    problem = random_problem(seed)
    best = min(time for _, time in all_costs(problem))
    rows = dict.fromkeys(range(0, problem.num_nodes, 2), 0)
    for assignment in (critical_dp(problem), greedy_largest_first(problem), all_row_greedy(problem, rows)):
        assert problem.evaluate(assignment)[0] >= best - 1e-9
    found = solve(problem, "tofu")
    assert found.lower_bound == pytest.approx(best) and found.gap >= 0


def test_operators_suit_themselves_between_rows():
    table = np.array([[0.0, 5.0], [5.0, 0.0]])
    problem = Problem(time=[np.zeros(2)] * 3, edges=[(0, 1, table), (1, 2, table)])
    assert all_row_greedy(problem, {0: 1, 2: 1}) == (1, 1, 1)


def test_recursion_recosts_every_factor_after_earlier_choices():
    seen = []

    def recost(steps):
        seen.append(steps)
        return chain(3, seed=len(steps)) if len(steps) < 3 else None

    steps = recursive_dp(chain(3), recost)
    assert steps == tuple(critical_dp(chain(3, seed=seed)) for seed in range(3))
    assert seen == [steps[:1], steps[:2], steps]


def test_dead_ends_and_wrong_sizes_say_so():
    with pytest.raises(ProblemError, match="one for each of 2 edges"):
        critical_dp(chain(3), sizes=[1.0])
    only_first = np.array([[0.0, np.inf], [np.inf, np.inf]])
    problem = Problem(
        time=[np.array([1.0, 0.0]), np.zeros(2), np.zeros(2)],
        edges=[(0, 1, np.zeros((2, 2))), (0, 2, only_first)],
    )
    with pytest.raises(InfeasibleError, match="dead end"):
        critical_dp(problem, sizes=[9.0, 1.0])


@pytest.mark.parametrize("seed", range(8))
def test_members_of_the_groups_on_a_path_are_decided_together(seed):
    """Two groups in a row, each a cycle of three nodes: one path, so the result is optimal."""
    rng = np.random.default_rng(seed)
    pairs = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 3)]
    problem = Problem(
        time=[rng.random(3) for _ in range(6)], edges=[(u, v, rng.random((3, 3))) for u, v in pairs]
    )
    best = min(time for _, time in all_costs(problem))
    assert problem.evaluate(critical_dp(problem, groups=[0, 0, 0, 3, 3, 3]))[0] == pytest.approx(best)


def test_a_path_has_the_most_bytes_between_groups():
    """Group 1 hangs on group 0 by two small tensors that are more than the large one to group 2."""
    agree = np.array([[0.0, 1.0], [1.0, 0.0]])
    problem = Problem(
        time=[np.zeros(2), np.zeros(2), np.array([0.0, 9.0]), np.array([9.0, 0.0])],
        edges=[(0, 2, 5 * agree), (1, 2, 5 * agree), (0, 3, 4 * agree), (0, 1, 50 * agree)],
    )
    groups = [0, 0, 2, 3]
    assert critical_dp(problem, sizes=[6.0, 6.0, 10.0, 0.0], groups=groups)[:2] == (0, 0)
    assert critical_dp(problem, sizes=[4.0, 4.0, 10.0, 0.0], groups=groups)[:2] == (1, 1)


def test_operators_that_hold_their_results_suit_themselves_beside_the_rows_of_others():
    table = np.array([[0.0, 5.0], [5.0, 0.0]])
    problem = Problem(time=[np.array([0.0, 2.0]), np.array([0.0, 11.0])], edges=[(0, 1, table)])
    # Each takes the row of the other, unless that costs more than the way to it.
    assert all_row_greedy(problem, {0: 1, 1: 1}, [True, True]) == (1, 0)
    assert all_row_greedy(problem, {0: 1, 1: 1}, [False, False]) == (1, 1)
