"""Dots of block-scaled operands (microscaling formats): one scale per block of the contracted dimension."""

from __future__ import annotations

from typing import Any

from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import Dimension, OperatorRule, Shape, TensorFactors
from jaxplan.ir.rules._builder import Factors

# Batch, rows and contraction of both operands of `scaled_matmul`; its result is batch, rows, rows.
_MATMUL_NUMBERS = (((2,), (2,)), ((0,), (0,)))


@register_rule("scaled_dot")
def scaled_dot_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b i (k w), b j (k w), b i k, b j k -> b i j`` with k, the number of blocks, reduced and w whole.

    Operands: left, right, scales of the left, scales of the right. Linear in each of them.
    """
    return _scaled_rule([aval.shape for aval in in_avals], params["dimension_numbers"])


@register_rule("scaled_matmul", "scaled_matmul_wrapper")
def scaled_matmul_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """cuDNN's: the contracted dimension is the last one of both operands."""
    return _scaled_rule([aval.shape for aval in in_avals], _MATMUL_NUMBERS)


def _scaled_rule(shapes: list[Shape], numbers: Any) -> OperatorRule:
    (contracted, batch), factors = numbers, Factors()
    sides: list[dict[int, Dimension]] = [{}, {}]
    for left, right in zip(*batch, strict=True):
        sides[0][left] = sides[1][right] = factors.add(shapes[0][left])
    for left, right in zip(*contracted, strict=True):
        sides[0][left] = sides[1][right] = _blocks(factors, shapes, left, right)
    for side, shape in zip(sides, shapes):
        side.update({axis: factors.add(size) for axis, size in enumerate(shape) if axis not in side})
    tensors = [tuple(side[axis] for axis in range(len(shape))) for side, shape in zip(sides, shapes)]
    scales = [_scale_dims(factors, dims, shape) for dims, shape in zip(tensors, shapes[2:])]
    kept = [
        [dim for axis, dim in enumerate(dims) if axis not in (*used, *both)]
        for dims, used, both in zip(tensors, contracted, batch)
    ]
    result = (*(tensors[0][axis] for axis in batch[0]), *kept[0], *kept[1])
    return factors.rule([*tensors, *scales], [result], "contraction", ((0,), (1,)))


def _blocks(factors: Factors, shapes: list[Shape], left: int, right: int) -> Dimension:
    """A contracted dimension: blocks, reduced, times the elements of a block; in one piece where blocks differ."""
    size, counts = shapes[0][left], {shapes[2][left], shapes[3][right]} - {1}
    if len(counts) > 1 or (counts and size % max(counts)):
        return factors.whole(size)
    num_blocks = counts.pop() if counts else size
    return factors.add(num_blocks, "reduce", "sum") + factors.whole(size // num_blocks)


def _scale_dims(factors: Factors, dims: TensorFactors, shape: Shape) -> TensorFactors:
    """Scales share the factors of their operand, of a contracted dimension the first one only."""
    return tuple(
        () if size == 1 else dim[:1] if factors.size(dim[:1]) == size else factors.whole(size)
        for dim, size in zip(dims, shape)
    )
