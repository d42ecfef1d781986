import pytest
from random_problems import brute_frontier, brute_hull, random_problem

from jaxplan.solvers._hull import lower_hull
from jaxplan.solvers._minimise import minimiser


@pytest.mark.parametrize("seed", range(100))
def test_hull_equals_that_of_brute_force_and_its_lines_lie_below_everything(seed):
    problem = random_problem(seed, max_nodes=5)
    frontier = brute_frontier(problem)
    hull = lower_hull(problem, minimiser(problem)[0])
    assert hull.is_complete
    assert brute_hull([(p.memory, p.time) for p in hull.points]) == brute_hull(frontier)
    for point in hull.points:
        assert problem.evaluate(point.assignment, point.choices)[:2] == (point.time, point.memory)
        assert hull.lower_bound(point.memory) == pytest.approx(point.time, rel=1e-9)
    for memory, time in frontier:
        assert hull.lower_bound(memory) <= time + 1e-9


def test_few_solves_keep_both_ends_and_valid_bounds():
    problem = random_problem(42)
    frontier = brute_frontier(problem)
    hull = lower_hull(problem, minimiser(problem)[0], max_solves=5)
    assert (hull.points[0].memory, hull.points[-1].time) == (frontier[0][0], frontier[-1][1])
    assert all(hull.lower_bound(memory) <= time + 1e-9 for memory, time in frontier)
