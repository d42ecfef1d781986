"""The core of a problem: nodes that meet at most two others are eliminated, the rest passes messages."""

import itertools

import numpy as np
import pytest
from random_problems import random_problem

from jaxplan.errors import InfeasibleError
from jaxplan.solvers import Problem
from jaxplan.solvers._core import core_of, minimise_core


def tailed_clique(seed: int, *, forbidden: float = 0.0) -> Problem:
    """Four nodes, all joined, each with a chain of two more; edges in both directions, one of them doubled."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, 12)
    pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in itertools.combinations(range(4), 2)]
    pairs += [(v, v + 4) for v in range(4)] + [(v + 8, v + 4) for v in range(4)] + [pairs[0]]
    edges = []
    for u, v in pairs:
        time = rng.random((sizes[u], sizes[v]))
        time[1:, 1:][rng.random(time[1:, 1:].shape) < forbidden] = np.inf
        edges.append((u, v, time, rng.integers(0, 9, time.shape)))
    return Problem(
        time=[rng.random(n) for n in sizes], memory=[rng.integers(0, 9, n) for n in sizes], edges=edges
    )


def least(problem: Problem, weights: tuple[float, float]) -> float:
    """The least weighted cost of all assignments, each with its cheapest choices."""
    rows = np.array(list(itertools.product(*map(range, problem.num_configurations))))
    times, memories, _ = problem.evaluate_many(rows, weights=weights)
    is_possible = np.isfinite(times)
    return float((weights[0] * times[is_possible] + weights[1] * memories[is_possible]).min())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("weights", [(1.0, 0.0), (1.0, 0.3), (0.0, 1.0)])
def test_the_core_has_the_optimum_of_the_problem(seed, weights):
    for problem in (tailed_clique(seed, forbidden=0.5), random_problem(seed)):
        optimum = minimise_core(problem, core_of(problem), weights)
        time, memory, _ = problem.evaluate_many(np.array([optimum.assignment]), weights=weights)
        best = least(problem, weights)
        assert weights[0] * time[0] + weights[1] * memory[0] == pytest.approx(best, rel=1e-9, abs=1e-9)
        assert optimum.bound <= best + 1e-9


def test_chains_leave_the_core_and_a_clique_stays():
    rng = np.random.default_rng(0)
    pairs = [*itertools.combinations(range(4), 2), (0, 4), (4, 5), (5, 1)]  # a chain from one to the other
    problem = Problem(time=[rng.random(3)] * 6, edges=[(u, v, rng.random((3, 3))) for u, v in pairs])
    assert core_of(problem).nodes == (0, 1, 2, 3)
    assert core_of(random_problem(0)).nodes == ()  # a tree


def test_an_impossible_core_is_infeasible():
    unequal = np.array([[np.inf, 0.0], [0.0, np.inf]])
    never = [(u, v, unequal) for u, v in itertools.combinations(range(4), 2)]
    problem = Problem(time=[np.zeros(2)] * 4, edges=never)
    with pytest.raises(InfeasibleError):
        minimise_core(problem, core_of(problem))
