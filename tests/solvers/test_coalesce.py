import itertools

import numpy as np
import pytest

from jaxplan import ProblemError
from jaxplan.solvers import Problem, coalesce

CLASSES = (0, 1, 0, 2, 1)


def random_problem(seed):
    """Five nodes in three classes of 2, 3 and 4 configurations, every two joined, some by edges with two choices."""
    rng = np.random.default_rng(seed)
    sizes = [(2, 3, 4)[number] for number in CLASSES]
    pairs = itertools.combinations(range(5), 2)
    edges = []
    for u, v in pairs:
        u, v = (u, v) if rng.random() < 0.5 else (v, u)
        choices = () if rng.random() < 0.5 else (2,)
        edges.append((u, v, rng.random((sizes[u], sizes[v], *choices))))
    return Problem(
        time=[rng.random(size) for size in sizes],
        memory=[rng.integers(0, 9, size) for size in sizes],
        edges=edges,
    )


@pytest.mark.parametrize("seed", range(10))
def test_classes_cost_as_much_as_equal_configurations(seed):
    problem = random_problem(seed)
    small = coalesce(problem, CLASSES)
    assert small.num_configurations == (2, 3, 4) and len(small.edges) == 3
    for labels in itertools.product(range(2), range(3), range(4)):
        time, memory, _ = problem.evaluate([labels[number] for number in CLASSES])
        assert small.evaluate(labels)[0] == pytest.approx(time)
        assert small.evaluate(labels)[1] == memory  # edges took none


def test_a_class_has_one_number_of_configurations():
    problem = Problem(time=[np.zeros(2), np.zeros(3)])
    with pytest.raises(ProblemError, match="node 1 has 3 configurations, and another one of its class 2"):
        coalesce(problem, (0, 0))
