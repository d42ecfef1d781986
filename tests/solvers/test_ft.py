import numpy as np
import pytest
from random_problems import brute_frontier, layered_problem, random_problem

from jaxplan.solvers import Problem
from jaxplan.solvers._ft import HEURISTICS, track_frontier


def costs(problem, tracked):
    times, memories, _ = problem.evaluate_many(tracked.assignments, tracked.choices)
    return list(zip(memories.tolist(), times.tolist()))


@pytest.mark.sample(40)
@pytest.mark.parametrize("seed", range(100))
def test_exact_eliminations_preserve_the_whole_frontier(seed):
    problem = random_problem(seed)
    tracked = track_frontier(problem, cap=None, budget=10**7)
    assert tracked is not None and tracked.is_exact
    assert costs(problem, tracked) == brute_frontier(problem)


def clique(seed: int, num_nodes: int = 5) -> Problem:
    """Every two nodes joined: node and edge elimination alone do not reduce it."""
    rng = np.random.default_rng(seed)
    return Problem(
        time=[rng.integers(0, 9, 3).astype(float) for _ in range(num_nodes)],
        memory=[rng.integers(0, 9, 3) for _ in range(num_nodes)],
        edges=[
            (u, v, rng.integers(0, 9, (3, 3)).astype(float), rng.integers(0, 9, (3, 3)))
            for u in range(num_nodes)
            for v in range(u + 1, num_nodes)
        ],
    )


@pytest.mark.parametrize("seed", range(10))
def test_branch_elimination_is_exact_where_node_elimination_stops(seed):
    problem = clique(seed)
    tracked = track_frontier(problem, cap=None, budget=10**7)
    assert tracked is not None and tracked.is_exact
    assert costs(problem, tracked) == brute_frontier(problem)


@pytest.mark.parametrize("seed", range(10))
def test_heuristic_elimination_gives_real_points_that_are_not_called_exact(seed):
    problem = clique(seed)
    tracked = track_frontier(problem, cap=None, budget=10**7, max_group=1)
    true = brute_frontier(problem)
    assert tracked is not None and not tracked.is_exact and len(tracked.assignments)
    for memory, time in costs(problem, tracked):
        assert min(t for m, t in true if m <= memory) <= time


@pytest.mark.parametrize("seed", range(10))
def test_heuristics_minimise_their_own_weights(seed):
    """Memory alone leads to less memory than time alone, and together they miss fewer points than one does."""
    problem = clique(seed)
    found = {
        heuristic: costs(problem, track_frontier(problem, cap=None, budget=10**7, max_group=1, heuristic=heuristic))
        for heuristic in HEURISTICS
    }
    assert min(m for m, _ in found[0.0, 1.0]) <= min(m for m, _ in found[1.0, 0.0])
    true = brute_frontier(problem)
    reached = [sum(any(m <= memory for m, _ in points) for memory, _ in true) for points in found.values()]
    everything = [point for points in found.values() for point in points]
    assert sum(any(m <= memory for m, _ in everything) for memory, _ in true) == max(reached)


def test_thinned_lists_give_real_points_near_the_exact_ones():
    problem = layered_problem(6)
    exact, thinned = (track_frontier(problem, cap=cap, budget=10**8) for cap in (None, 32))
    assert exact is not None and thinned is not None
    assert exact.is_exact and not thinned.is_exact
    near = costs(problem, thinned)
    for memory, time in costs(problem, exact)[::10]:
        reached = min((t for m, t in near if m <= 1.02 * memory), default=np.inf)
        assert time * (1 - 0.1) <= reached <= time * 1.1


def test_a_spent_budget_gives_nothing():
    assert track_frontier(layered_problem(6), cap=None, budget=100) is None
