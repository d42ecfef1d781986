import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from random_problems import brute_frontier, brute_hull, layered_problem, random_problem

from jaxplan import InfeasibleError, ProblemError
from jaxplan.solvers import Problem, frontier
from jaxplan.solvers import _frontier as internals


@pytest.mark.sample(80)
@pytest.mark.parametrize("seed", range(200))
def test_small_frontiers_are_exactly_those_of_brute_force(seed):
    problem = random_problem(seed)
    points = frontier(problem, "ft")
    assert [(point.memory, point.time) for point in points] == brute_frontier(problem)
    for point in points:
        assert problem.evaluate(point.assignment, point.choices)[:2] == (point.time, point.memory)
        assert point.lower_bound == point.time and point.gap == 0 and point.solver == "ft"


@pytest.mark.sample(40)
@pytest.mark.parametrize("solver", ["auto", "ft", "pase"])
@pytest.mark.parametrize("seed", range(0, 200, 5))
def test_without_exact_lists_hull_and_bounds_still_are_right(seed, solver, monkeypatch):
    monkeypatch.setattr(internals, "_EXACT_LISTS_CANDIDATES", 0)
    monkeypatch.setattr(internals, "HULL_TOLERANCE", 0.0)
    problem = random_problem(seed, max_nodes=5)
    true = brute_frontier(problem)
    points = frontier(problem, solver)
    found = [(point.memory, point.time) for point in points]
    assert set(brute_hull(true)) <= set(found)
    assert found == sorted(found) and all(a[1] > b[1] for a, b in itertools.pairwise(found))
    for point in points:
        assert problem.evaluate(point.assignment, point.choices)[:2] == (point.time, point.memory)
        fastest = min(time for memory, time in true if memory <= point.memory)
        assert point.lower_bound <= fastest + 1e-9 <= point.time + 2e-9


def test_hull_stage_equals_exact_lists_on_layers(monkeypatch):
    """On equal layers hull, moves and restricted lists come within a percent of the exact frontier."""
    problem = layered_problem(4, labels=2)
    exact = frontier(problem, "ft", max_points=10_000)
    assert all(point.gap == 0 for point in exact)
    monkeypatch.setattr(internals, "_EXACT_LISTS_CANDIDATES", 0)
    found = frontier(problem, "auto", max_points=10_000)
    assert (found[0].memory, found[-1].time) == (exact[0].memory, exact[-1].time)
    for point in exact:
        best = min(other.time for other in found if other.memory <= point.memory)
        assert point.time <= best <= 1.05 * point.time


def test_thinning_keeps_the_ends_and_the_order():
    problem = layered_problem(6)
    whole = frontier(problem, max_points=10_000)
    few = frontier(problem, max_points=7)
    assert len(few) <= 7 < len(whole)
    assert (few[0].memory, few[-1].time) == (whole[0].memory, whole[-1].time)
    assert [point.memory for point in few] == sorted({point.memory for point in few})


def test_no_memory_at_all_leaves_one_point():
    problem = Problem(time=[np.array([2.0, 1.0])] * 2, edges=[(0, 1, np.array([[0.0, 1.0], [1.0, 5.0]]))])
    (point,) = frontier(problem)
    assert (point.time, point.memory, point.assignment) == (4.0, 0, (0, 0))


def test_progress_reports_stages_and_fractions():
    calls = []
    frontier(layered_problem(30, labels=6), progress=lambda stage, done: calls.append((stage, done)))
    assert {stage for stage, _ in calls} <= {"hull", "moves", "lists"}
    assert all(0 <= done <= 1 for _, done in calls) and ("hull" in dict(calls))


def test_unknown_solver_lists_the_known_ones():
    with pytest.raises(ProblemError, match="no solver is called 'magic'; known are auto, ft, ft-elim"):
        frontier(random_problem(0), "magic")
    with pytest.raises(ProblemError, match="at least 2"):
        frontier(random_problem(0), max_points=1)


def test_contradicting_infinities_are_infeasible():
    unequal = np.array([[np.inf, 0.0], [0.0, np.inf]])
    triangle = Problem(time=[np.zeros(2)] * 3, edges=[(0, 1, unequal), (1, 2, unequal), (2, 0, unequal)])
    with pytest.raises(InfeasibleError, match="infinite"):
        frontier(triangle)


def test_frontier_is_the_same_under_any_hash_seed():
    here = Path(__file__).parent
    code = (
        "from random_problems import layered_problem\n"
        "from jaxplan.solvers import frontier\n"
        "points = frontier(layered_problem(24, labels=5), max_points=40)\n"
        "print([(p.assignment, p.choices, p.time.hex(), p.memory, p.lower_bound.hex()) for p in points])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])]),
            },
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(outputs) == 1


def test_an_interrupt_returns_the_best_frontier_so_far():
    problem = layered_problem(30, labels=6)
    calls = []

    def interrupt(stage, done):
        calls.append(stage)
        if stage == "hull" and calls.count("hull") == 2:
            raise KeyboardInterrupt

    points = frontier(problem, "pase", progress=interrupt)
    whole = frontier(problem, "pase")
    assert len(points) >= 2
    assert (points[0].memory, points[-1].time) == (whole[0].memory, whole[-1].time)
    for point in points:
        assert problem.evaluate(point.assignment, point.choices)[:2] == (point.time, point.memory)
        assert point.lower_bound <= point.time
