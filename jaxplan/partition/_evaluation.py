"""The environment of an evaluation, as the helpers of `jaxplan.partition._run.Run` see it."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any, Protocol

from jaxplan.ir import Equation, Program
from jaxplan.mesh import Sharding
from jaxplan.partition._steps import Executor

Place = tuple[MutableMapping[Any, Any], Any]
"""Where a value is held: the mapping and its key."""


class Evaluation(Protocol):
    """One evaluation of a program, or of the body of a loop.

    Attributes:
      program, executor: what is evaluated, and the mesh that it is evaluated on.
      env: tensor -> its value in the layout in which it is made.
      copies: (tensor, layout, execution of its transfer) -> a resharded value.
    """

    program: Program
    executor: Executor
    env: MutableMapping[int, Any]
    copies: MutableMapping[Any, Any]

    def child(self) -> Evaluation:
        """An evaluation that sees this one's values and keeps its own."""
        ...

    def evaluate(self, start: int, stop: int, region: int) -> None:
        """Evaluate a range of equations in the body of a region."""
        ...

    def evaluate_again(self, indices: Sequence[int]) -> None: ...
    def evaluate_early(self, index: int) -> None: ...
    def equations(self, indices: Sequence[int]) -> list[Equation]: ...
    def dtype(self, t: int) -> Any: ...
    def home(self, t: int) -> Sharding:
        """The layout in which a tensor is made."""
        ...

    def pin(self, t: int, value: Any) -> Any:
        """A value in the layout in which its group makes it."""
        ...

    def read_replicated(self, t: int, equation: int) -> Any: ...
    def read_operand(self, eqn: Equation, position: int, tie: Place | None = None) -> Any: ...
    def tie(self, tensors: Sequence[int]) -> Place | None:
        """The value that a repeated copy waits for."""
        ...

    def place_of(self, eqn: Equation, t: int) -> Place:
        """Where an operand is held, in the layout in which an equation reads it."""
        ...

    def settle(self, values: Sequence[Any]) -> list[Any]:
        """Values that are available only once all gradients made so far are."""
        ...
