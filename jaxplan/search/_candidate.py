"""What a solver found, predicted, before it is worth making a plan of it."""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.cost import Prediction, Predictor
from jaxplan.solvers import Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A solution and its prediction, and what predicted it."""

    prediction: Prediction
    solution: Solution
    predictor: Predictor

    @property
    def memory_bytes(self) -> int:
        return self.prediction.memory_bytes

    @property
    def time_seconds(self) -> float:
        return self.prediction.time_seconds
