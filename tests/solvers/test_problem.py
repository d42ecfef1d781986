import numpy as np
import pytest
from random_problems import random_problem

from jaxplan import ProblemError
from jaxplan.solvers import Problem


def test_arrays_of_the_right_dtype_stay_the_same_objects():
    time, memory, table = np.zeros(2), np.zeros(2, np.int64), np.zeros((2, 2))
    problem = Problem(time=[time, time], memory=[memory, memory], edges=[(0, 1, table)])
    assert problem.time[0] is time and problem.memory[1] is memory and problem.edges[0].time is table


def test_converted_arrays_stay_shared():
    time = [1, 2]
    problem = Problem(time=[time, time], edges=[])
    assert problem.time[0] is problem.time[1] and problem.memory[0] is problem.memory[1]


def test_evaluate_by_hand():
    problem = Problem(
        time=[np.array([1.0, 2.0]), np.array([10.0, 20.0])],
        memory=[np.array([100, 200]), np.array([1000, 2000])],
        edges=[(0, 1, np.full((2, 2, 2), [5.0, 3.0]), np.full((2, 2, 2), [7, 9]))],
    )
    assert problem.evaluate([1, 0]) == (15.0, 1209, (1,))
    assert problem.evaluate([1, 0], [0]) == (17.0, 1207, (0,))


def test_fastest_choice_ties_go_to_less_memory():
    edge = (0, 1, np.array([[[2.0, 1.0, 1.0]]]), np.array([[[0, 9, 4]]]))
    problem = Problem(time=[np.zeros(1), np.zeros(1)], edges=[edge])
    assert problem.evaluate([0, 0]) == (1.0, 4, (2,))


def test_evaluate_many_agrees_with_evaluate():
    problem = random_problem(6)
    rows = np.array(list(np.ndindex(*problem.num_configurations)))
    times, memories, choices = problem.evaluate_many(rows)
    for row, time, memory, picked in zip(rows, times, memories, choices):
        assert problem.evaluate(row) == (time, memory, tuple(picked))


def test_order_of_nodes_does_not_change_a_sum():
    values = [0.1, 0.2, 0.3, 1e16, -1e16]
    one = Problem(time=[np.array([value]) for value in values])
    two = Problem(time=[np.array([value]) for value in values[::-1]])
    assert one.evaluate([0] * 5)[0] == two.evaluate([0] * 5)[0] == pytest.approx(0.6)


good = np.zeros(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time": []}, "no node"),
        ({"time": [good, np.zeros(0)], "names": ["a", "b"]}, "node b has no configuration"),
        ({"time": [np.zeros((2, 2))]}, r"shape \(2, 2\)"),
        ({"time": [np.array([1.0, np.nan])]}, "NaN"),
        ({"time": [np.array([np.inf, np.inf])]}, "infinite everywhere"),
        ({"time": [np.array(["a"])]}, "expected numbers"),
        ({"time": [good], "memory": [np.zeros(3, int)]}, r"memory of node 0 has shape \(3,\)"),
        ({"time": [good], "memory": [np.array([0.5, 1.0])]}, "whole bytes"),
        ({"time": [good], "memory": []}, "0 memories for 1 nodes"),
        ({"time": [good], "names": ["a", "b"]}, "2 names for 1 nodes"),
        ({"time": [good, good], "edges": [(0, 2, np.zeros((2, 2)))]}, "joins nodes 0 and 2"),
        ({"time": [good, good], "edges": [(1, 1, np.zeros((2, 2)))]}, "joins nodes 1 and 1"),
        ({"time": [good, good], "edges": [(0, 1)]}, "2 entries"),
        ({"time": [good, good], "edges": [(0, 1, np.zeros((2, 3)))]}, r"shape \(2, 3\)"),
        ({"time": [good, good], "edges": [(0, 1, np.full((2, 2), np.inf))]}, "infinite everywhere"),
        ({"time": [good, good], "edges": [(0, 1, np.zeros((2, 2)), np.zeros((2, 2, 1)))]}, "its time has"),
        ({"time": [good, good], "edges": [(0, 1, np.array([[0, np.nan], [0, 0]]))]}, "NaN"),
        ({"time": [good], "memory": [np.array([np.nan, 1.0])]}, "whole bytes"),
    ],
)
def test_each_mistake_has_one_clear_error(arguments, message):
    with pytest.raises(ProblemError, match=message):
        Problem(**arguments)


@pytest.mark.parametrize(
    ("assignment", "choices", "message"),
    [
        ([0], None, "1 entries for 2 nodes"),
        ([0, 2], None, "configuration 2 of node 1"),
        ([0, 0], [1], "choice 1 of edge 0"),
        ([0, 0], [], "0 choices for 1 edges"),
    ],
)
def test_assignments_out_of_range(assignment, choices, message):
    problem = Problem(time=[good, good], edges=[(0, 1, np.zeros((2, 2)))])
    with pytest.raises(ProblemError, match=message):
        problem.evaluate(assignment, choices)


def test_arrays_of_equal_content_become_one_object():
    tables = [np.arange(600.0).reshape(20, 30) for _ in range(3)]
    tables[1][7, 11] += 1
    problem = Problem(
        time=[np.zeros(20), np.zeros(30), np.zeros(20)],
        edges=[(0, 1, tables[0]), (0, 1, tables[1]), (2, 1, tables[2])],
    )
    assert problem.time[0] is problem.time[2]
    assert problem.edges[0].time is problem.edges[2].time is tables[0]
    assert problem.edges[1].time is tables[1]
