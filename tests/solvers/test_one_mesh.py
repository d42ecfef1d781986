import itertools

import numpy as np
import pytest
from random_problems import brute_frontier

from jaxplan import ProblemError
from jaxplan.solvers import Problem, frontier, one_mesh

# Two dimensions of the mesh, a and b, or one of both.
OPTIONS = [(), ("a",), ("b",), ("a", "b")]


def meanings_of(dims):
    """Return the ways to split some named dimensions without using an axis twice."""
    rows = []
    for axes in itertools.product(OPTIONS, repeat=len(dims)):
        used = [axis for group in axes for axis in group]
        if len(used) == len(set(used)):
            rows.append(dict(zip(dims, axes)))
    return rows


def random_model(seed):
    rng = np.random.default_rng(seed)
    meanings = [meanings_of(dims) for dims in (("batch", "inner"), ("batch", "outer"), ("inner", "outer"))]
    sizes = [len(rows) for rows in meanings]
    problem = Problem(
        time=[rng.integers(0, 50, size).astype(float) for size in sizes],
        memory=[rng.integers(0, 50, size) for size in sizes],
        edges=[(u, v, rng.integers(0, 50, (sizes[u], sizes[v])).astype(float)) for u, v in ((0, 1), (1, 2))],
    )
    return problem, meanings


@pytest.mark.parametrize("seed", range(8))
def test_frontier_equals_that_of_all_consistent_strategies(seed):
    problem, meanings = random_model(seed)
    costs = []
    for labels in itertools.product(*map(range, problem.num_configurations)):
        splits = {}
        rows = [meanings[node][label] for node, label in enumerate(labels)]
        same = all(splits.setdefault(name, axes) == axes for row in rows for name, axes in row.items())
        groups = {axes for axes in splits.values() if axes}
        one = all(not set(a) & set(b) for a, b in itertools.combinations(groups, 2))
        if same and one:
            time, memory, _ = problem.evaluate(labels)
            costs.append((memory, time))
    true = [
        (m, t) for m, t in set(costs) if not any(a <= m and b <= t and (a, b) != (m, t) for a, b in costs)
    ]
    points = frontier(one_mesh(problem, meanings))
    assert [(point.memory, point.time) for point in points] == sorted(true)
    for point in points:
        assert problem.evaluate(point.assignment[: problem.num_nodes])[:2] == (point.time, point.memory)


def test_restrictions_cost_something():
    problem, meanings = random_model(3)
    free = brute_frontier(problem)
    assert frontier(one_mesh(problem, meanings))[-1].time >= free[-1][1]


def test_meanings_of_another_problem_are_refused():
    problem, meanings = random_model(0)
    with pytest.raises(ProblemError, match="one mapping for each configuration"):
        one_mesh(problem, meanings[:2])
