"""A solution of a solver with its prediction, before a plan is built from it."""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.cost import Prediction, Predictor
from jaxplan.solvers import Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A solution and its prediction, and the predictor of it."""

    prediction: Prediction
    solution: Solution
    predictor: Predictor

    @property
    def memory_bytes(self) -> int:
        return self.prediction.memory_bytes

    @property
    def time_seconds(self) -> float:
        return self.prediction.time_seconds
