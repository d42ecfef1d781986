"""Result of a solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.solvers._point import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """One assignment with its exact costs and a bound on every better one.

    Attributes:
      assignment: (V,) configuration of each node.
      choices: (E,) choice of each edge.
      time: seconds.
      memory: bytes.
      lower_bound: seconds that nothing of at most `memory` bytes (of `solve`: the memory limit) beats.
      gap: (time - lower_bound) / lower_bound, a fraction; zero where the solution is proven optimal.
      solver: name of the solver that found it.
    """

    assignment: tuple[int, ...]
    choices: tuple[int, ...]
    time: float
    memory: int
    lower_bound: float
    gap: float
    solver: str

    def __repr__(self) -> str:
        return f"Solution({self.time:.6g} s, {self.memory} bytes, gap {self.gap:.2%}, {self.solver})"


def relative_gap(time: float, lower_bound: float) -> float:
    """Return how far `time` is above a bound, as a fraction of it; differences of rounding count as zero."""
    difference = time - lower_bound
    if difference <= 1e-9 * abs(time):
        return 0.0
    return difference / lower_bound if lower_bound > 0 else float("inf")


def bound_at(solutions: Sequence[Solution], memory: int) -> float:
    """Return seconds that no assignment of at most `memory` bytes beats, from the solutions of `frontier`."""
    return next((s.lower_bound for s in solutions if s.memory >= memory), solutions[-1].lower_bound)


def solution(point: Point, lower_bound: float, solver: str) -> Solution:
    """Return a point with its bound."""
    bound = min(lower_bound, point.time)
    return Solution(
        assignment=point.assignment,
        choices=point.choices,
        time=point.time,
        memory=point.memory,
        lower_bound=bound,
        gap=relative_gap(point.time, bound),
        solver=solver,
    )
