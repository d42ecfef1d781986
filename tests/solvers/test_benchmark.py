import pytest
from random_problems import all_costs, random_problem

from benchmarks.solvers import __main__ as benchmark


@pytest.mark.parametrize("seed", range(12))
def test_reference_elimination_equals_brute_force(seed):
    problem = random_problem(seed, max_nodes=5)
    assert benchmark.reference_elimination(problem) == min(time for _, time in all_costs(problem))
