import itertools

import numpy as np
import pytest
from random_problems import random_problem

from jaxplan.solvers import Problem
from jaxplan.solvers._hull import lower_hull
from jaxplan.solvers._minimise import minimiser
from jaxplan.solvers._moves import points_between
from jaxplan.solvers._order import neighbours
from jaxplan.solvers._parts import differing_parts
from jaxplan.solvers._point import score


def independent_layers(num_layers: int) -> Problem:
    """Each layer takes 3 s and 10 bytes or 1 s and 30 bytes; a spine of one configuration joins them."""
    time, memory = np.array([3.0, 1.0]), np.array([10, 30])
    spine_time, spine_memory = np.zeros(1), np.zeros(1, int)
    nodes = [(spine_time, spine_memory)]
    table = np.zeros((1, 2))
    link = np.zeros((1, 1))
    edges = []
    for _ in range(num_layers):
        nodes += [(time, memory), (spine_time, spine_memory)]
        last = len(nodes) - 1
        edges += [(last - 2, last - 1, table), (last - 2, last, link)]
    return Problem(time=[t for t, _ in nodes], memory=[m for _, m in nodes], edges=edges)


def test_equal_layers_give_a_point_for_every_number_of_them():
    problem = independent_layers(24)
    hull = lower_hull(problem, minimiser(problem)[0])
    assert [(point.memory, point.time) for point in hull.points] == [(240, 72.0), (720, 24.0)]
    between = points_between(problem, hull.points, 256)
    assert sorted((point.memory, point.time) for point in between) == [
        (240 + 20 * k, 72.0 - 2 * k) for k in range(1, 24)
    ]


def test_a_long_part_is_cut_along_the_graph():
    """A chain that changes its layout throughout; a change of layout on the way costs half a second."""
    table = np.array([[0.0, 0.5], [0.5, 0.0]])
    node = (np.array([2.0, 1.0]), np.array([1, 2]))
    order = [3, 0, 4, 1, 5, 2]
    problem = Problem(
        time=[node[0]] * 6,
        memory=[node[1]] * 6,
        edges=[(u, v, table) for u, v in itertools.pairwise(order)],
    )
    hull = lower_hull(problem, minimiser(problem)[0])
    assert [len(part) for part in differing_parts(problem, neighbours(problem), *hull.points)] == [6]
    between = points_between(problem, hull.points, 256)
    best = {point.memory: point.time for point in between}
    assert best == {6 + k: 12.0 - k + 0.5 for k in range(1, 6)}


def test_an_edge_with_another_choice_only_is_a_part():
    choice = (np.array([[[2.0, 1.0]]]), np.array([[[0, 5]]]))
    problem = Problem(
        time=[np.zeros(1)] * 3, edges=[(0, 1, *choice), (1, 2, *choice)], memory=[np.zeros(1, int)] * 3
    )
    hull = lower_hull(problem, minimiser(problem)[0])
    assert differing_parts(problem, neighbours(problem), *hull.points) == [(3,), (4,)]
    assert [(point.memory, point.time) for point in points_between(problem, hull.points, 8)] == [(5, 3.0)]


@pytest.mark.parametrize("seed", range(60))
def test_points_score_as_they_say_and_switching_parts_adds_up(seed):
    problem = random_problem(seed)
    hull = lower_hull(problem, minimiser(problem)[0])
    for point in points_between(problem, hull.points, 256):
        assert problem.evaluate(point.assignment, point.choices)[:2] == (point.time, point.memory)
    for lean, fast in zip(hull.points, hull.points[1:]):
        parts = differing_parts(problem, neighbours(problem), lean, fast)
        switched = [_switch(problem, lean, fast, part) for part in parts]
        assert sum(point.memory - lean.memory for point in switched) == fast.memory - lean.memory
        assert sum(point.time - lean.time for point in switched) == pytest.approx(fast.time - lean.time)


def _switch(problem, lean, fast, part):
    """Return `lean` with one part as in `fast`."""
    rows = np.array(lean.assignment)
    choices = np.array(lean.choices)
    for index in part:
        if index < problem.num_nodes:
            rows[index] = fast.assignment[index]
        else:
            choices[index - problem.num_nodes] = fast.choices[index - problem.num_nodes]
    for index, edge in enumerate(problem.edges):
        if {edge.source, edge.target} & set(part):
            choices[index] = fast.choices[index]
    return score(problem, rows[None], choices[None])[0]
