"""An evaluation of a program, as the functions that evaluate loops, poolings and ordered dots see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jaxplan.ir import Equation
from jaxplan.partition._environment import Environment, Place
from jaxplan.partition._gradient_ties import GradientTies
from jaxplan.partition._lowered_program import LoweredProgram


class Evaluation(Protocol):
    """One evaluation of a program, or of the body of a loop in it.

    Attributes:
      lowered: the program and its lowering decisions.
      values: tensors and their copies.
      gradients: those that were made and that nothing waits for yet.
    """

    lowered: LoweredProgram
    values: Environment
    gradients: GradientTies

    def evaluate(self, start: int, stop: int, region: int) -> None:
        """Evaluate a range of equations in the body of ``region`` (-1: outside of all)."""
        ...

    def evaluate_early(self, index: int) -> None:
        """Evaluate an equation before its turn, which is then skipped."""
        ...

    def evaluate_again(self, indices: Sequence[int]) -> None:
        """Evaluate equations once more, in order."""
        ...

    def child(self) -> Evaluation:
        """An evaluation that sees this one's values and keeps its own."""
        ...

    def tie(self, tensors: Sequence[int]) -> Place | None:
        """The value that a copy gathered again waits for, to be read beside ``tensors``; None: there is none."""
        ...

    def equations(self, indices: Sequence[int]) -> list[Equation]:
        """Equations by their indices."""
        ...
