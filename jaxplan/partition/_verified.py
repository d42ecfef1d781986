"""The compiler's figures of a plan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from jaxplan.core._json import typed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Figures of a compiled plan, which then stand for the predicted ones; of one step on one device.

    Attributes:
      memory_bytes: peak by the compiler's memory analysis: arguments + outputs - aliased + temporaries.
      communication_seconds: the collectives that the compiled program has, at the prices of the planner; None where
        only its memory was read.
      rematerialised: the compiler recomputed values because they did not fit; `memory_bytes` is the reduced figure.
    """

    memory_bytes: int
    communication_seconds: float | None = None
    rematerialised: bool = False

    def __post_init__(self) -> None:
        seconds = 0.0 if self.communication_seconds is None else self.communication_seconds
        if not (self.memory_bytes > 0 and 0 <= seconds < math.inf):
            raise ValueError(f"compiled memory must be positive and a time finite, got {self}")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verified:
        """Read the output of `to_json`; raises ValueError for anything else."""
        return typed(cls, data, "verified")
