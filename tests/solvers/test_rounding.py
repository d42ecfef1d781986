"""Assignments without a forbidden entry where sweeps meet none."""

import itertools

import numpy as np
import pytest

from jaxplan.solvers import Problem
from jaxplan.solvers._dual import tighten
from jaxplan.solvers._messages import Messages, Network
from jaxplan.solvers._rounding import round_consistently


def colouring(seed, num_nodes=9, colours=3, density=0.5):
    """Nodes that must differ from their neighbours, with random costs."""
    rng = np.random.default_rng(seed)
    unequal = np.where(np.eye(colours, dtype=bool), np.inf, 0.0)
    pairs = [p for p in itertools.combinations(range(num_nodes), 2) if rng.random() < density]
    return Problem(
        time=[rng.random(colours) for _ in range(num_nodes)], edges=[(u, v, unequal) for u, v in pairs]
    )


@pytest.mark.parametrize("seed", range(30))
def test_a_feasible_assignment_is_found(seed):
    problem = colouring(seed)
    every = np.array(list(itertools.product(range(3), repeat=9)))
    times, _, _ = problem.evaluate_many(every)
    network = Network.of(problem, (1.0, 0.0))
    messages = Messages(network)
    messages.sweep()
    found = round_consistently(network, messages)
    assert (found is not None) == bool(np.isfinite(times).any())
    if found is not None:
        assert np.isfinite(problem.evaluate(found)[0])


def test_long_chains_of_equal_nodes_are_decided_together():
    """A hundred nodes that must be equal, each alone for another configuration."""
    rng = np.random.default_rng(0)
    equal = np.where(np.eye(5, dtype=bool), 0.0, np.inf)
    cliques = [(u, v, equal) for u, v in itertools.combinations(range(40), 2)]
    problem = Problem(time=[rng.random(5) for _ in range(40)], edges=cliques)
    found = tighten(problem, (1.0, 0.0))
    assert found.assignment is not None and len(set(found.assignment)) == 1
    assert found.upper == pytest.approx(min(sum(time[k] for time in problem.time) for k in range(5)))
