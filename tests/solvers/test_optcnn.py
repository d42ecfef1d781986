import numpy as np
import pytest
from random_problems import all_costs, random_problem

from jaxplan import ProblemError
from jaxplan.solvers import Problem, frontier, solve
from jaxplan.solvers._optcnn import optcnn_order


@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_optimum_equals_brute_force(seed):
    problem = random_problem(seed)
    assert solve(problem, "optcnn").time == min(time for _, time in all_costs(problem))


def test_branches_that_meet_again_reduce_to_nothing():
    """An inception module: four branches between one node and another."""
    table = np.zeros((50, 50))
    edges = [(0, v, table) for v in (1, 2, 3, 4)] + [(v, 5, table) for v in (1, 2, 3, 4)]
    problem = Problem(time=[np.zeros(50)] * 6, edges=edges)
    assert sorted(optcnn_order(problem)) == list(range(6))


def test_a_graph_that_does_not_reduce_is_refused():
    table = np.zeros((60, 60))
    clique = Problem(
        time=[np.zeros(60)] * 5, edges=[(u, v, table) for u in range(5) for v in range(u + 1, 5)]
    )
    with pytest.raises(ProblemError, match=r"end at 5 nodes.*use solver='auto'"):
        frontier(clique, "optcnn")
