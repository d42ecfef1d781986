"""Small helpers with which rules of any rank are put together."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from jaxplan.ir._halo import Window
from jaxplan.ir._registry import Aval, Avals
from jaxplan.ir._rule import (
    Dimension,
    Factor,
    FactorKind,
    OperatorRule,
    Reducer,
    Shape,
    SplitWindow,
    TensorFactors,
)


class Factors:
    """The factors of a rule under construction; a dimension of size 1 gets none."""

    def __init__(self) -> None:
        self._factors: list[Factor] = []
        self._windows: list[SplitWindow] = []

    def add_window(
        self,
        window: Window,
        operands: tuple[int, ...] = (0,),
        *,
        reducer: Reducer | None = None,
        scatters: bool = False,
    ) -> Dimension:
        """A new window factor; none where it cannot be cut into two parts."""
        if window.most_parts(scatters=scatters) < 2:
            return ()
        parts = math.gcd(window.in_size, window.out_size)
        self._factors.append(Factor(size=parts, kind="window", reducer=reducer))
        index = len(self._factors) - 1
        split = SplitWindow(factor=index, window=window, operands=operands, scatters=scatters)
        self._windows.append(split)
        return (index,)

    def add(self, size: int, kind: FactorKind = "map", reducer: Reducer | None = None) -> Dimension:
        """A new factor, as the dimension that holds just it."""
        if size == 1:
            return ()
        self._factors.append(Factor(size=size, kind=kind, reducer=reducer))
        return (len(self._factors) - 1,)

    def on_pieces(self, dimension: Dimension, window: Window) -> None:
        """Let devices slide a window over their own parts of a mapped dimension: it reaches no other's."""
        if dimension:
            self._windows.append(SplitWindow(factor=dimension[0], window=window, operands=(0,)))

    def size(self, dimension: Dimension) -> int:
        """Elements of a dimension made here."""
        return math.prod(self._factors[index].size for index in dimension)

    def whole(self, size: int) -> Dimension:
        """A new factor that may not be split."""
        return self.add(size, "whole")

    def add_all(self, shape: Iterable[int]) -> TensorFactors:
        """A new map factor per dimension."""
        return tuple([self.add(size) for size in shape])

    def add_except(self, shape: Shape, axes: Iterable[int]) -> TensorFactors:
        """A new factor per dimension, whole on ``axes`` and map elsewhere."""
        whole = {index_of(axis, len(shape)) for axis in axes}
        return tuple([self.add(size, "whole" if axis in whole else "map") for axis, size in enumerate(shape)])

    def rule(
        self,
        operands: Iterable[TensorFactors],
        results: Iterable[TensorFactors],
        family: str,
        linear: tuple[tuple[int, ...], ...] = (),
        indexed: tuple[tuple[int, int], ...] = (),
        manual: bool = False,
    ) -> OperatorRule:
        """The finished rule."""
        return OperatorRule(
            factors=tuple(self._factors),
            operands=tuple(operands),
            results=tuple(results),
            family=family,
            linear=linear,
            indexed=indexed,
            manual=manual,
            windows=tuple(self._windows),
        )


def index_of(axis: int, rank: int) -> int:
    """A dimension number that may be negative, or a NumPy integer, as an index."""
    axis = operator.index(axis)
    return axis + rank if axis < 0 else axis


def one_to_one_rule(
    in_avals: Avals, out_avals: Avals, *, whole_axes: Iterable[int] = (), family: str
) -> OperatorRule:
    """Tensors of one shape share every dimension; ``whole_axes`` are not split, scalars carry nothing."""
    shape = out_avals[0].shape
    factors = Factors()
    dims = factors.add_except(shape, whole_axes)
    return factors.rule(
        [broadcast_dims(aval.shape, dims) for aval in in_avals],
        [broadcast_dims(aval.shape, dims) for aval in out_avals],
        family,
    )


def broadcast_dims(shape: Shape, dims: TensorFactors) -> TensorFactors:
    """The dimensions of a tensor that is a scalar or has the shape of ``dims``, with some sizes 1."""
    if not shape:
        return ()
    return tuple([() if size == 1 else dim for size, dim in zip(shape, dims)])


def leading_dims_rule(
    in_avals: Avals,
    out_avals: Avals,
    *,
    num_leading: int,
    family: str,
    linear: Any = (),
    manual: bool = False,
) -> OperatorRule:
    """The first ``num_leading`` dimensions are one batch of all tensors, every other dimension is whole.

    With none of them there may be no results: a callback that prints has none.
    """
    factors = Factors()
    batch = factors.add_all(out_avals[0].shape[:num_leading]) if num_leading else ()

    def dims(aval: Aval) -> TensorFactors:
        rest = aval.shape[num_leading:]
        return batch[: len(aval.shape)] + tuple([factors.whole(size) for size in rest])

    operands, results = [dims(aval) for aval in in_avals], [dims(aval) for aval in out_avals]
    return factors.rule(operands, results, family, linear, manual=manual)


def resized_dims(factors: Factors, in_shape: Shape, out_shape: Shape) -> tuple[TensorFactors, TensorFactors]:
    """Dimensions of operand and result of one rank: shared where sizes agree, else whole on both sides."""
    operand, result = [], []
    for in_size, out_size in zip(in_shape, out_shape):
        if in_size == out_size:
            shared = factors.add(in_size)
            operand.append(shared)
            result.append(shared)
        else:
            operand.append(factors.whole(in_size))
            result.append(factors.whole(out_size))
    return tuple(operand), tuple(result)


def axes_param(params: Mapping[str, Any], *names: str) -> tuple[int, ...]:
    """The first of the named parameters that is given, as a tuple of dimension numbers."""
    for name in names:
        if name in params:
            value = params[name]
            return tuple(value) if isinstance(value, (tuple, list)) else (value,)
    raise KeyError(f"none of the parameters {names} is among {sorted(params)}")
