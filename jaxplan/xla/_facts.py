"""Input of a compiler rule: the step, its target, and the decisions of earlier passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from jaxplan.ir import CONTRACTION_FAMILIES, Equation, StepGraph, Tensor
from jaxplan.xla._effects import Defer, WaitBeside
from jaxplan.xla._storage import Order
from jaxplan.xla._target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A step as far as the passes have come.

    Attributes:
      turning: index of the first backward equation.
      kernels: per equation, whether it has a kernel of its own; from the first pass on.
      absorbed: equation -> operands that its kernel computes inside of it; from the first pass on.
      merged, rectifiers: equations with the effects `Merge` and `Rectify`.
      is_tiled: whether arrays lie in memory in tiles.
      inner: the two innermost dimensions of images and of operands of batched dots, where memory is in tiles.
      tokens: tensors whose innermost dimensions are a default (`jaxplan.xla._effects.Innermost`).
      written: per tensor, whether it is a buffer; a rule sees the effects of the rules before it, and its own.
      deferred: weight gradients that run later than the program has them.
      in_order: whether every dot runs where the program has it.
      recomputed: per equation, whether the backward pass recomputes it.
      read_end: per equation, the one whose fusion really reads its operands; one more, for outputs of the program.
      death: per tensor, the last equation that reads it; a rule sees the effects of the rules before it, and its own.
      beside: tensors with the effect `WaitBeside`, the last of each.
      rewritten: tensors and orders of dimensions with the effect `Rewrite`.
      shared: tables that several rules make of the step.
    """

    graph: StepGraph
    target: Target
    turning: int
    kernels: Sequence[bool] = ()
    absorbed: Mapping[int, frozenset[int]] = field(default_factory=dict)
    merged: frozenset[int] = frozenset()
    rectifiers: frozenset[int] = frozenset()
    is_tiled: bool = False
    inner: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    tokens: frozenset[int] = frozenset()
    written: Sequence[bool] = ()
    deferred: Mapping[int, Defer] = field(default_factory=dict)
    in_order: bool = False
    recomputed: Sequence[bool] = ()
    read_end: Sequence[int] = ()
    death: Sequence[int] = ()
    beside: Mapping[int, WaitBeside] = field(default_factory=dict)
    rewritten: AbstractSet[tuple[int, Order]] = frozenset()
    shared: dict[Hashable, Any] = field(default_factory=dict)

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
