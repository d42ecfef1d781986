"""Predictions in which communication runs beside compute, as the simulator has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxplan.cost._model import CostModel
from jaxplan.cost._prediction import Prediction, Predictor
from jaxplan.cost._transfers import Transfer
from jaxplan.simulate._makespan import Makespans
from jaxplan.simulate._simulated_plan import PlanSimulator


class OverlappedPredictor(Predictor):
    """Predicts the time of a plan as the makespan of its simulation (FlexFlow, section 5)."""

    def __init__(self, model: CostModel) -> None:
        super().__init__(model)
        self._makespans = Makespans(PlanSimulator(self))

    def predict(
        self, assignment: Sequence[int], choices: Sequence[int]
    ) -> tuple[Prediction, tuple[Transfer, ...]]:
        """Cost of a solution, less the communication that compute hides, and the transfers that it executes."""
        prediction, transfers = self.predict_in_turn(assignment, choices)
        return self.hidden(prediction, assignment, choices), transfers

    def predict_in_turn(
        self, assignment: Sequence[int], choices: Sequence[int]
    ) -> tuple[Prediction, tuple[Transfer, ...]]:
        """The same without simulation: communication after compute."""
        return super().predict(assignment, choices)

    def least_seconds(self, prediction: Prediction) -> float:
        """Seconds that the simulation of a solution, predicted in turn, never goes below: the longer stream, and of the
        other what contention takes."""
        longer = max(prediction.compute_seconds, prediction.communication_seconds - prediction.hidden_seconds)
        in_turn = prediction.time_seconds + prediction.hidden_seconds
        return longer + self.model.topology.chip.efficiency.contention * (in_turn - longer)

    def hidden(self, prediction: Prediction, assignment: Sequence[int], choices: Sequence[int]) -> Prediction:
        """A solution predicted in turn, less the communication that compute hides. Kernels beside a collective are
        slower on GPUs, which takes a share of the gain (`Efficiency.contention`)."""
        in_turn = prediction.time_seconds + prediction.hidden_seconds
        hidden = in_turn - self._makespans.of(assignment, choices)
        hidden *= 1.0 - self.model.topology.chip.efficiency.contention
        bounded = min(max(0.0, hidden), prediction.communication_seconds)
        return dataclasses.replace(prediction, hidden_seconds=bounded, overlapped=True)


def overlapped_bound(models: Sequence[tuple[CostModel, float]], additive_seconds: float) -> float:
    """Seconds that no simulated step beats, its compute and communication costing at least so much one after the other.

    A step takes at least its compute, and at least half of the sum, since one of both is as long as that; compute is at
    least that of the fastest configuration of each group. Of the rest of the sum the share `Efficiency.contention` is
    paid all the same. Each of these holds of a weighted sum of steps too.

    Args:
      models: each step on the machine, and its weight.
      additive_seconds: a bound of the additive problem, see `jaxplan.solvers.Solution`.
    """
    compute = sum(weight * float(of.min()) for model, weight in models for of in model.compute)
    longer = max(min(compute, additive_seconds), additive_seconds / 2)
    return longer + models[0][0].topology.chip.efficiency.contention * (additive_seconds - longer)


def predictor_of(model: CostModel) -> Predictor:
    """The predictor for plans of a cost model: with overlap where its costs have overlap."""
    return OverlappedPredictor(model) if model.overlapped else Predictor(model)
