import itertools

import numpy as np
import pytest
from random_problems import brute_frontier

from jaxplan import InfeasibleError, ProblemError
from jaxplan.solvers import Problem, _one_mesh, frontier, one_mesh, solve
from jaxplan.solvers._one_mesh import meshes

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


def obeying(problem, meanings):
    """Return (bytes, seconds) of every assignment that obeys both restrictions."""
    costs = []
    for labels in itertools.product(*map(range, problem.num_configurations)):
        splits = {}
        rows = [meanings[node][label] for node, label in enumerate(labels)]
        same = all(splits.setdefault(name, axes) == axes for row in rows for name, axes in row.items())
        groups = {axes for axes in splits.values() if axes}
        if same and all(not set(a) & set(b) for a, b in itertools.combinations(groups, 2)):
            time, memory, _ = problem.evaluate(labels)
            costs.append((memory, time))
    return costs


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", range(20))
def test_frontier_equals_that_of_all_consistent_strategies(seed):
    problem, meanings = random_model(seed)
    costs = obeying(problem, meanings)
    true = sorted(
        (m, t) for m, t in set(costs) if not any(a <= m and b <= t and (a, b) != (m, t) for a, b in costs)
    )
    joint = frontier(one_mesh(problem, meanings))
    points = frontier(problem, "one_mesh", meanings=meanings)
    assert [(point.memory, point.time) for point in points] == true
    assert [(point.memory, point.time) for point in joint] == true
    for point in (*joint, *points):
        assert problem.evaluate(point.assignment[: problem.num_nodes])[:2] == (point.time, point.memory)
    for memory, time in true:
        assert solve(problem, "one_mesh", memory, meanings=meanings).time == time
    least = true[0][0]
    with pytest.raises(InfeasibleError) as caught:
        solve(problem, "one_mesh", least - 1, meanings=meanings)
    assert caught.value.smallest_memory_bytes == least


def test_bounds_are_those_of_the_free_problem():
    problem, meanings = random_model(3)
    free = brute_frontier(problem)[-1][1]
    found = solve(problem, "one_mesh", meanings=meanings)
    assert found.lower_bound == free and found.gap == pytest.approx(found.time / free - 1)


@pytest.mark.parametrize("seed", range(4))
def test_many_dimensions_are_answered(seed):
    """Eighty operators of three dimensions each, one shared by all and one by each two that follow each other."""
    rng = np.random.default_rng(seed)
    meanings = [meanings_of(("batch", f"d{k}", f"d{k + 1}")) for k in range(80)]
    size = len(meanings[0])
    problem = Problem(
        time=[rng.random(size) for _ in meanings],
        memory=[rng.integers(0, 50, size) for _ in meanings],
        edges=[(k, k + 1, rng.random((size, size))) for k in range(79)],
    )
    whole = [rows.index(dict.fromkeys(rows[0], ())) for rows in meanings]
    found = solve(problem, "one_mesh", meanings=meanings)
    assert found.lower_bound <= found.time <= problem.evaluate(whole)[0]
    assert solve(one_mesh(problem, meanings)).time == pytest.approx(found.time)


def test_meshes_are_whole_sets_of_disjoint_groups():
    groups = {("a",), ("b",), ("c",), ("a", "b"), ("b", "c")}
    found = {frozenset(mesh) for mesh in meshes(groups)}
    subsets = [set(some) for n in range(6) for some in itertools.combinations(groups, n)]
    disjoint = [s for s in subsets if sum(map(len, s)) == len({axis for group in s for axis in group})]
    assert found == {frozenset(s) for s in disjoint if not any(s < other for other in disjoint)}


def test_more_meshes_than_are_solved_still_leave_an_answer(monkeypatch):
    """Of three meshes the one with most configurations is kept; whole dimensions are possible on all."""
    monkeypatch.setattr(_one_mesh, "MOST_MESHES", 1)
    problem, meanings = random_model(1)
    found = solve(problem, "one_mesh", meanings=meanings)
    best = min(time for _, time in obeying(problem, meanings))
    assert best <= found.time < np.inf


def test_forbidden_configurations_are_left_out():
    problem = Problem(time=[np.array([1.0, 2.0, 3.0])])
    meanings = [[None, {"batch": ("a",)}, {"batch": ()}]]
    assert solve(problem, "one_mesh", meanings=meanings).assignment == (1,)
    assert solve(one_mesh(problem, meanings)).time == 2.0


def test_meanings_of_another_problem_are_refused():
    problem, meanings = random_model(0)
    with pytest.raises(ProblemError, match="one mapping for each configuration"):
        one_mesh(problem, meanings[:2])
    with pytest.raises(ProblemError, match="needs the meaning of configurations"):
        solve(problem, "one_mesh")
