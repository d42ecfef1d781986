import itertools

import numpy as np
import pytest
from random_problems import random_problem

from jaxplan import ProblemError
from jaxplan.solvers import Triple, frontier, join_triples, solve


def with_triples(seed):
    problem = random_problem(seed, max_nodes=5)
    rng = np.random.default_rng(seed)
    triples = []
    for _ in range(2 if problem.num_nodes >= 3 else 0):
        nodes = tuple(int(n) for n in rng.choice(problem.num_nodes, 3, replace=False))
        shape = tuple(problem.num_configurations[node] for node in nodes)
        time = rng.integers(0, 9, shape).astype(float)
        time.flat[0] = 3.0
        time[rng.random(shape) < 0.1] = np.inf
        time.flat[0] = 3.0
        triples.append(Triple(nodes=nodes, time=time, memory=rng.integers(0, 9, shape)))
    return problem, triples


def costs_of(problem, triples):
    """Return (bytes, seconds) of every assignment and choice."""
    result = []
    choices = [range(edge.num_choices) for edge in problem.edges]
    for labels in itertools.product(*map(range, problem.num_configurations)):
        for picked in itertools.product(*choices):
            time, memory, _ = problem.evaluate(labels, picked)
            for triple in triples:
                cell = tuple(labels[node] for node in triple.nodes)
                time += triple.time[cell]
                memory += int(triple.memory[cell])
            if np.isfinite(time):
                result.append((memory, time))
    return result


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", [s for s in range(40) if random_problem(s, max_nodes=5).num_nodes >= 3][:12])
def test_frontier_and_optimum_equal_brute_force(seed):
    problem, triples = with_triples(seed)
    costs = set(costs_of(problem, triples))
    true = sorted(
        (m, t) for m, t in costs if not any(a <= m and b <= t and (a, b) != (m, t) for a, b in costs)
    )
    joined = join_triples(problem, triples)
    assert [(point.memory, point.time) for point in frontier(joined)] == true
    for solver in ("auto", "pase", "exact"):
        found = solve(joined, solver)
        assert found.time == true[-1][1] and found.gap == 0


def test_factors_that_do_not_fit_are_refused():
    problem = random_problem(6)
    with pytest.raises(ProblemError, match="three different"):
        join_triples(problem, [Triple(nodes=(0, 0, 1), time=np.zeros((1, 1, 1)))])
    with pytest.raises(ProblemError, match="its nodes have"):
        join_triples(problem, [Triple(nodes=(0, 1, 2), time=np.zeros((9, 9, 9)))])
