"""Ctrl-C: results so far are returned, with bounds that hold."""

import numpy as np
import pytest
from random_problems import brute_frontier, random_problem

from jaxplan.solvers import Problem, _frontier, frontier


@pytest.fixture(scope="module")
def ring() -> Problem:
    """Nodes with random costs: a hull of many vertices, gaps between them."""
    rng, size, num = np.random.default_rng(0), 5, 16
    return Problem(
        time=[rng.random(size) for _ in range(num)],
        memory=[rng.integers(0, 1000, size) for _ in range(num)],
        edges=[
            (u, (u + 1) % num, rng.random((size, size)), rng.integers(0, 1000, (size, size))) for u in range(num)
        ],
    )


@pytest.fixture(scope="module")
def whole(ring):
    return frontier(ring)


class Interrupt:
    """Raises on the n-th report of a stage, like Ctrl-C at that moment."""

    def __init__(self, stage: str, number: int) -> None:
        self.stage, self.left = stage, number

    def __call__(self, stage: str, fraction: float) -> None:
        if stage == self.stage:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


@pytest.mark.parametrize(("stage", "number"), [("hull", 1), ("hull", 6), ("moves", 1), ("lists", 1)])
def test_an_interrupt_leaves_a_frontier_with_valid_bounds(stage, number, ring, whole, monkeypatch):
    monkeypatch.setattr(_frontier, "_EXACT_LISTS_CANDIDATES", 0)
    problem, interrupt = ring, Interrupt(stage, number)
    points = frontier(problem, progress=interrupt)
    assert interrupt.left <= 0
    assert (points[0].memory, points[-1].time) == (whole[0].memory, whole[-1].time)  # the ends come first
    for point in points:
        assert problem.evaluate(point.assignment, point.choices)[:2] == (point.time, point.memory)
        best = min((p.time for p in whole if p.memory <= point.memory), default=np.inf)
        assert point.lower_bound <= best * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_bounds_after_an_interrupt_hold_against_brute_force(seed, monkeypatch):
    problem = random_problem(seed, max_nodes=5)
    monkeypatch.setattr(_frontier, "_EXACT_LISTS_CANDIDATES", 0)
    points = frontier(problem, progress=Interrupt("hull", 1))
    true = brute_frontier(problem)
    for point in points:
        assert point.lower_bound <= min(t for m, t in true if m <= point.memory) * (1 + 1e-12)
