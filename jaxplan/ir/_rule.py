"""The definition of an operator rule: the factors of an operator's iteration space, and the dimensions they split.

The notation is Shardy's (https://openxla.org/shardy/propagation): ``b i k, b k j -> b i j``, where splitting
one factor splits every dimension that carries it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jaxplan.errors import RuleError
from jaxplan.ir._halo import Window
from jaxplan.ir._user_mesh import UserAxes

FactorKind = Literal["map", "reduce", "whole", "window", "fixed"]
Reducer = Literal["sum", "max", "min", "prod"]
Dimension = tuple[int, ...]
TensorFactors = tuple[Dimension, ...]
Shape = tuple[int, ...]

_LETTERS = "ijklmnopqrstuvwxyzabcdefgh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One index of the iteration space.

    Attributes:
      size: number of values of the index; of a ``window`` factor, a multiple of every number of equal parts.
      kind: ``map`` may be split freely; ``reduce`` may be split and leaves partial results; ``window`` may be
        split if neighbours exchange a halo; ``whole`` may not be split; ``fixed`` is split as the step says.
      reducer: operation that joins the partial results of a ``reduce`` factor, and of a ``window`` that no result
        has (the image of a weight gradient); None for every other kind.
      name: a letter or word for people, may be empty.
      user_axes: of a ``fixed`` factor, the axes of the user's mesh that split it.
    """

    size: int
    kind: FactorKind = "map"
    reducer: Reducer | None = None
    name: str = ""
    user_axes: UserAxes | None = None

    def __post_init__(self) -> None:
        if (self.kind == "fixed") != (self.user_axes is not None):
            raise RuleError(
                f"a {self.kind!r} factor has the axes {self.user_axes!r}: exactly 'fixed' has some"
            )
        if (self.kind == "reduce") != (self.reducer is not None) and self.kind != "window":
            raise RuleError(f"a {self.kind!r} factor has reducer {self.reducer!r}: exactly 'reduce' has one")
        if self.size == 1 or self.size < 0:
            raise RuleError(f"a factor has size {self.size}: a dimension of size 1 carries no factor")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitWindow:
    """A ``window`` factor that may be split: neighbours exchange halos (empty ones of windows side by side).

    Attributes:
      factor: its index.
      window: sizes along the dimension.
      operands: those with extended blocks.
      scatters: windows write to where they read; operand 0 holds their values.
    """

    factor: int
    window: Window
    operands: tuple[int, ...]
    scatters: bool = False

    @property
    def most_parts(self) -> int:
        return self.window.most_parts(scatters=self.scatters)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRule:
    """How an operator may be split.

    Attributes:
      factors: the iteration space.
      operands: per operand and dimension, factor indices, major to minor; ``()`` for a dimension of size 1.
      results: the same, per result.
      family: ``elementwise``, ``contraction``, ``reduction``, ``shape``, ``gather``, ``scatter``, ``scan``,
        ``convolution``, ``window``, ``sort``, ``linalg``, ``rng``, ``source`` (no operand), ``user`` (laid out by the
        step itself), ``unknown``.
      linear: sets of operands in which the operator is jointly linear: when all of one set are partial sums
        over the same devices, and the other operands are not, so are the results. ``add`` has ((0, 1),),
        ``mul`` has ((0,), (1,)).
      indexed: factors of operand 0 that operand 1 addresses: (factor, position in the last dimension of operand 1).
        A device that holds a part shifts the indices by the start of its part, and looks up, or updates, nothing
        for those outside of it; so a plain slice of the operands does not do.
      manual: where it is split, every device applies the operator to its own pieces, because the compiler would
        not split it by itself (an own primitive, a foreign function).
      windows: the window factors that may be split, all others are whole.
    """

    factors: tuple[Factor, ...]
    operands: tuple[TensorFactors, ...]
    results: tuple[TensorFactors, ...]
    family: str
    linear: tuple[tuple[int, ...], ...] = ()
    indexed: tuple[tuple[int, int], ...] = ()
    manual: bool = False
    windows: tuple[SplitWindow, ...] = ()

    def __post_init__(self) -> None:
        in_operands = _factors_of(self.operands, "operand", len(self.factors))
        in_results = _factors_of(self.results, "result", len(self.factors))
        for index, factor in enumerate(self.factors):
            if index not in in_operands and index not in in_results:
                raise RuleError(f"factor {self.factor_name(index)!r} is in no dimension")
            if factor.reducer and index in in_results:
                raise RuleError(f"reduce factor {self.factor_name(index)!r} is in a result: operands only")
            if factor.kind in ("map", "window") and not factor.reducer and index not in in_results:
                raise RuleError(f"{factor.kind} factor {self.factor_name(index)!r} is in no result")
        for index, _ in self.indexed:
            if not any(dim == (index,) for dim in self.operands[0]):
                raise RuleError(f"indexed names factor {index}, which is no dimension of operand 0")
        for index in itertools.chain.from_iterable(self.linear):
            if not 0 <= index < len(self.operands):
                raise RuleError(f"linear names operand {index} of {len(self.operands)}")

    def factor_name(self, index: int) -> str:
        """The name of a factor, or a letter where it has none."""
        if self.factors[index].name:
            return self.factors[index].name
        turn, letter = divmod(index, len(_LETTERS))
        return _LETTERS[letter] + (str(turn) if turn else "")

    def factors_of_kind(self, kind: FactorKind) -> tuple[int, ...]:
        """Indices of the factors of one kind."""
        return tuple(index for index, factor in enumerate(self.factors) if factor.kind == kind)

    def check(self, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]) -> None:
        """Raise RuleError unless every dimension's size is the product of its factors' sizes.

        A dimension with a ``window`` factor may be a multiple of it: operand and result differ there.
        """
        self._check_side("operand", self.operands, in_shapes)
        self._check_side("result", self.results, out_shapes)

    def _check_side(self, what: str, tensors: tuple[TensorFactors, ...], shapes: Sequence[Shape]) -> None:
        if len(tensors) != len(shapes):
            raise RuleError(f"the rule has {len(tensors)} {what}s, the operator has {len(shapes)}")
        for position, (dims, shape) in enumerate(zip(tensors, shapes)):
            if len(dims) != len(shape):
                raise RuleError(f"{what} {position} has rank {len(dims)} in the rule, its shape is {shape}")
            for axis, (indices, size) in enumerate(zip(dims, shape)):
                product = math.prod(self.factors[index].size for index in indices)
                is_window = any(self.factors[index].kind == "window" for index in indices)
                if not (product == size or (is_window and product and size % product == 0)):
                    raise RuleError(
                        f"dimension {axis} of {what} {position} has size {size}, "
                        f"its factors multiply to {product}"
                    )

    def __str__(self) -> str:
        """The rule in factor notation, such as ``i k, k j -> i j {k: sum}``."""
        sides = [", ".join(map(self._tensor_string, side)) for side in (self.operands, self.results)]
        notes = [
            f"{self.factor_name(index)}: {factor.kind if factor.kind == 'window' else factor.reducer or factor.kind}"
            for index, factor in enumerate(self.factors)
            if factor.kind != "map"
        ]
        return f"{sides[0]} -> {sides[1]}".strip() + (f" {{{', '.join(notes)}}}" if notes else "")

    def _tensor_string(self, dims: TensorFactors) -> str:
        if not dims:
            return "()"
        words = [" ".join(map(self.factor_name, indices)) or "1" for indices in dims]
        return " ".join(f"({word})" if len(indices) > 1 else word for word, indices in zip(words, dims))


def _factors_of(tensors: tuple[TensorFactors, ...], what: str, num_factors: int) -> frozenset[int]:
    """The factors that a side of the rule carries; raises RuleError on an unknown or repeated one."""
    for position, dims in enumerate(tensors):
        indices = [index for dim in dims for index in dim]
        if len(set(indices)) < len(indices):
            raise RuleError(f"{what} {position} carries a factor twice: {dims}")
        if any(not 0 <= index < num_factors for index in indices):
            raise RuleError(f"{what} {position} names a factor that is not among the {num_factors}: {dims}")
    return frozenset(index for dims in tensors for dim in dims for index in dim)
