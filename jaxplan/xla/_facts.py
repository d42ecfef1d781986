"""Input of a compiler rule: the step, its target, and the decisions of earlier passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jaxplan.ir import CONTRACTION_FAMILIES, Equation, StepGraph, Tensor
from jaxplan.xla._target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A step as far as the passes have come.

    Attributes:
      turning: index of the first backward equation.
      kernels: per equation, whether it has a kernel of its own; from the first pass on.
      absorbed: equation -> operands that its kernel computes inside of it; from the first pass on.
      inner: the two innermost dimensions of images and of operands of batched dots, where memory is in tiles.
      written: per tensor, whether it is a buffer; a rule sees the effects of the rules before it, and its own.
    """

    graph: StepGraph
    target: Target
    turning: int
    kernels: Sequence[bool] = ()
    absorbed: Mapping[int, frozenset[int]] = field(default_factory=dict)
    inner: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    written: Sequence[bool] = ()

    @property
    def equations(self) -> Sequence[Equation]:
        """Those of the program."""
        return self.graph.program.equations

    @property
    def tensors(self) -> Sequence[Tensor]:
        """Those of the program."""
        return self.graph.program.tensors

    def family(self, equation: int) -> str:
        """The family of an equation's operator rule."""
        return self.graph.rules[equation].family

    def is_dot(self, equation: int) -> bool:
        """Whether an equation is a dot or a convolution."""
        return self.graph.rules[equation].family in CONTRACTION_FAMILIES

    def maker(self, t: int) -> Equation | None:
        """The equation that makes a tensor; None for arguments and constants."""
        made = self.graph.values.producer[t]
        return self.graph.program.equations[made] if made >= 0 else None

    def readers(self, t: int, phase: str | None = None) -> list[Equation]:
        """The equations that read a tensor, in program order; those of one phase alone where it is given."""
        equations = self.graph.program.equations
        found = [equations[c] for c in self.graph.values.consumers[t]]
        return found if phase is None else [e for e in found if e.phase == phase]


def walk(start: Iterable[int], following: Callable[[int], Iterable[int]]) -> Iterator[int]:
    """Each node that is reached, once, depth first; ``following`` is asked of a node when the iterator goes on.

    >>> list(walk([1], {1: [2, 3], 2: [], 3: [2]}.__getitem__))
    [1, 3, 2]
    """
    stack = list(start)
    seen = set(stack)
    while stack:
        node = stack.pop()
        yield node
        for other in following(node):
            if other not in seen:
                seen.add(other)
                stack.append(other)


def is_outer_product(graph: StepGraph, equation: int) -> bool:
    """Whether an equation is a dot with sums of one summand each."""
    eqn = graph.program.equations[equation]
    if eqn.name != "dot_general":
        return False
    (contracting, _), _ = eqn.params["dimension_numbers"]
    shape = graph.program.tensors[eqn.operands[0]].shape
    return math.prod(shape[axis] for axis in contracting) == 1
