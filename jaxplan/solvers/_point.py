"""Scored assignments, and which of them nothing beats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from jaxplan.solvers._problem import Problem, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An assignment with its choices, seconds and bytes; ordered by memory, then time, then assignment."""

    assignment: tuple[int, ...]
    choices: tuple[int, ...]
    time: float
    memory: int

    @property
    def order(self) -> tuple[int, float, tuple[int, ...], tuple[int, ...]]:
        return self.memory, self.time, self.assignment, self.choices


def non_dominated(points: Iterable[Point]) -> list[Point]:
    """Return the points that nothing beats, ascending in memory; of equal ones the first in `Point.order`."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: point.order):
        if not kept or point.time < kept[-1].time:
            kept.append(point)
    return kept


def score(
    problem: Problem,
    assignments: np.ndarray,
    choices: np.ndarray | None = None,
    weights: Weights | None = None,
) -> list[Point]:
    """Return the scored points of (N, V) assignments with (N, E) choices, see `Problem.evaluate_many`."""
    times, memories, picked = problem.evaluate_many(assignments, choices, weights)
    rows = zip(assignments.tolist(), picked.tolist(), times.tolist(), memories.tolist())
    return [Point(assignment=tuple(a), choices=tuple(c), time=t, memory=m) for a, c, t, m in rows]
