"""What a solver found, predicted, before it is worth making a plan of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from jaxplan.cost import Prediction, Predictor
from jaxplan.solvers import Solution


class Priced(Protocol):
    """A plan, or what may become one: seconds of a step and bytes on a device."""

    @property
    def memory_bytes(self) -> int: ...
    @property
    def time_seconds(self) -> float: ...


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


_P = TypeVar("_P", bound=Priced)


def undominated(plans: Iterable[_P], limit: int | None = None) -> list[_P]:
    """The plans that fit and that none beats, by ascending memory; of equals, the first given."""
    fitting = [p for p in plans if limit is None or p.memory_bytes <= limit]
    best: list[_P] = []
    for plan in sorted(fitting, key=lambda p: (p.memory_bytes, p.time_seconds)):
        if not best or plan.time_seconds < best[-1].time_seconds:
            best.append(plan)
    return best
