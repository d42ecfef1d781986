"""The common factors of two shapes with the same elements in the same order."""

from __future__ import annotations

import math
from collections.abc import Iterator

from jaxplan.ir._rule import Dimension, Shape, TensorFactors
from jaxplan.ir.rules._builder import Factors


def reshape_dims(factors: Factors, in_shape: Shape, out_shape: Shape) -> tuple[TensorFactors, TensorFactors]:
    """Dimensions of a reshape's operand and result.

    The shapes are cut into segments of equal products; in each, the greatest common divisor of the leading
    dimensions is a factor of both as long as there is one. The rest of a segment is whole: its elements
    do not line up. ``(6, 4) -> (24,)`` gives ``i j -> (i j)``; ``(4, 3) -> (6, 2)`` gives
    ``(i j) k -> (i l) m`` with only i mapped.
    """
    operand: list[Dimension] = [()] * len(in_shape)
    result: list[Dimension] = [()] * len(out_shape)
    for in_axes, out_axes in _segments(in_shape, out_shape):
        ins = [(axis, in_shape[axis]) for axis in in_axes]
        outs = [(axis, out_shape[axis]) for axis in out_axes]
        while ins and outs and (common := math.gcd(ins[0][1], outs[0][1])) != 1 and common != 0:
            shared = factors.add(common)
            operand[ins[0][0]] += shared
            result[outs[0][0]] += shared
            ins, outs = _divide_first(ins, common), _divide_first(outs, common)
        for axis, size in ins:
            operand[axis] += factors.whole(size)
        for axis, size in outs:
            result[axis] += factors.whole(size)
    return tuple(operand), tuple(result)


def _divide_first(sizes: list[tuple[int, int]], divisor: int) -> list[tuple[int, int]]:
    """The (axis, size) list after its first size has given away a factor."""
    axis, size = sizes[0]
    rest = sizes[1:]
    return rest if size == divisor else [(axis, size // divisor), *rest]


def _segments(in_shape: Shape, out_shape: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Runs of axes with equal products, sizes of 1 left out; one run of all if there are no elements."""
    ins = [axis for axis, size in enumerate(in_shape) if size != 1]
    outs = [axis for axis, size in enumerate(out_shape) if size != 1]
    if 0 in in_shape:
        yield ins, outs
        return
    while ins and outs:
        num_in = num_out = 1
        in_product, out_product = in_shape[ins[0]], out_shape[outs[0]]
        while in_product != out_product:
            if in_product < out_product:
                in_product *= in_shape[ins[num_in]]
                num_in += 1
            else:
                out_product *= out_shape[outs[num_out]]
                num_out += 1
        yield ins[:num_in], outs[:num_out]
        ins, outs = ins[num_in:], outs[num_out:]
