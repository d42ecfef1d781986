import numpy as np
import pytest
from random_problems import brute_frontier, layered_problem, random_problem

from jaxplan import InfeasibleError, ProblemError
from jaxplan.solvers import SOLVERS, Problem, frontier, solve
from jaxplan.solvers import _exact as exact


@pytest.mark.sample(64)
@pytest.mark.parametrize("solver", ["auto", "ft", "pase", "exact"])
@pytest.mark.parametrize("seed", range(40))
def test_fastest_within_each_limit(seed, solver):
    problem = random_problem(seed)
    true = brute_frontier(problem)
    assert solve(problem, solver).time == true[-1][1]
    for limit in {true[0][0], true[len(true) // 2][0], true[-1][0] + 3}:
        fastest = min(time for memory, time in true if memory <= limit)
        point = solve(problem, solver, limit)
        assert point.memory <= limit
        assert problem.evaluate(point.assignment, point.choices)[:2] == (point.time, point.memory)
        assert point.lower_bound <= fastest + 1e-9
        if solver in ("ft", "exact"):
            assert point.time == pytest.approx(fastest)
            assert point.gap == 0


@pytest.mark.parametrize("seed", range(30))
def test_programme_equals_brute_force(seed, monkeypatch):
    monkeypatch.setattr(exact, "_MOST_COUNTED", 0)
    monkeypatch.setattr(exact, "_MOST_COUNTED_ENTRIES", 0)
    problem = random_problem(seed)
    true = brute_frontier(problem)
    for memory, time in true[:: max(1, len(true) // 3)]:
        point = solve(problem, "exact", memory)
        assert (point.time, point.memory <= memory) == (pytest.approx(time), True)
        assert point.gap <= 1e-6


def test_ties_of_auto_go_to_less_memory():
    problem = Problem(time=[np.array([1.0, 1.0, 1.0])], memory=[np.array([5, 3, 4])])
    assert solve(problem).memory == 3


def test_too_small_a_limit_names_the_smallest_memory():
    problem = random_problem(3)
    least = brute_frontier(problem)[0][0]
    for solver in ("auto", "ft", "pase", "exact"):
        with pytest.raises(InfeasibleError, match=f"the leanest one takes {least} bytes") as caught:
            solve(problem, solver, least - 1)
        assert caught.value.smallest_memory_bytes == least


def test_unknown_solver_lists_the_known_ones():
    with pytest.raises(
        ProblemError,
        match="no solver is called 'tabu'; known are auto, ft, ft-elimination, pase, optcnn, tofu, mcmc, exact",
    ):
        solve(random_problem(0), "tabu")


@pytest.mark.slow
def test_binding_limit_on_layers_stays_near_the_bound():
    problem = layered_problem(24, labels=5)
    lean, fast = solve(problem, "auto", None), None
    for fraction in (0.9, 0.6):
        limit = int(lean.memory * fraction)
        try:
            fast = solve(problem, "auto", limit)
        except InfeasibleError:
            continue
        assert fast.memory <= limit and fast.time >= lean.time and fast.gap < 0.05
    assert fast is not None


HEURISTICS = ("tofu", "equal-chop", "all-row-greedy", "greedy-by-size")
# The restriction to one mesh is told the meaning of configurations (test_one_mesh.py).
ON_PLAIN_ARRAYS = [name for name in SOLVERS if name != "one_mesh"]


@pytest.mark.parametrize("solver", ON_PLAIN_ARRAYS)
def test_every_solver_takes_parts_that_no_edge_joins(solver):
    table = np.array([[0.0, 4.0], [4.0, 0.0]])
    problem = Problem(
        time=[np.array([3.0, 2.0]), np.array([1.0, 2.5]), np.array([4.0, 5.0]), np.array([7.0])],
        memory=[np.array([1, 2])] * 3 + [np.array([5])],
        edges=[(0, 1, table)],
    )
    found = solve(problem, solver)
    assert (found.time, found.gap, found.solver) == (15.0, 0.0, solver)
    points = frontier(problem, solver)
    assert points[-1].time == 15.0
    assert all(problem.evaluate(p.assignment, p.choices)[:2] == (p.time, p.memory) for p in points)


@pytest.mark.parametrize("solver", ON_PLAIN_ARRAYS)
def test_every_solver_names_the_least_memory_that_fits(solver):
    problem = random_problem(3)
    least = brute_frontier(problem)[0][0]
    with pytest.raises(InfeasibleError, match=f"the leanest one takes {least} bytes"):
        solve(problem, solver, least - 1)


@pytest.mark.parametrize("solver", ON_PLAIN_ARRAYS)
def test_every_solver_refuses_contradicting_infinities(solver):
    unequal = np.array([[np.inf, 0.0], [0.0, np.inf]])
    triangle = Problem(time=[np.zeros(2)] * 3, edges=[(0, 1, unequal), (1, 2, unequal), (2, 0, unequal)])
    with pytest.raises(InfeasibleError):
        solve(triangle, solver)


def disconnected_problem() -> Problem:
    """Two triangles of nodes, a pair, and a node alone: every part on its own has ten assignments or fewer."""
    rng = np.random.default_rng(3)
    edges = [(0, 1), (1, 2), (0, 2), (3, 4), (5, 6), (6, 7), (5, 7)]
    return Problem(
        time=[rng.random(2) for _ in range(9)],
        memory=[rng.integers(1, 100, 2) for _ in range(9)],
        edges=[(u, v, rng.random((2, 2)), rng.integers(0, 100, (2, 2))) for u, v in edges],
    )


@pytest.mark.parametrize("solver", ON_PLAIN_ARRAYS)
def test_graphs_in_several_parts_are_solved_by_every_solver(solver):
    problem = disconnected_problem()
    every = np.stack(np.meshgrid(*[[0, 1]] * 9, indexing="ij"), axis=-1).reshape(-1, 9)
    times, memories, _ = problem.evaluate_many(every)
    found = solve(problem, solver)
    assert found.lower_bound == pytest.approx(times.min())
    assert found.time == pytest.approx(times.min()) or solver in HEURISTICS
    points = frontier(problem, solver)
    for point in points:
        assert point.lower_bound <= times[memories <= point.memory].min() * (1 + 1e-12)
    if solver in ("auto", "ft", "ft-elimination", "pase", "optcnn"):
        assert points[0].memory == memories.min() and points[-1].time == pytest.approx(times.min())
