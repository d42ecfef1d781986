"""Advice on a plan, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change that makes a plan faster or leaner.

    Attributes:
      kind: ``padding``, ``link``, ``operator``, ``devices``, ``remat``, ``microbatches``, ``gradients`` or ``overlap``.
      text: one sentence with its figures.
      seconds, memory_bytes: of a step and of a device, new minus old; negative where they save.
      gain: the larger of the two savings, as a share of the plan's time or memory.
    """

    kind: str
    text: str
    seconds: float
    memory_bytes: int
    gain: float

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def advice_text(found: Sequence[Advice]) -> str:
    """One line for each piece of advice."""
    if not found:
        return "advice: none that saves at least 2 % of time or memory"
    return "\n".join(["advice, the largest saving first:", *(f"  {advice}" for advice in found)])
