"""Attention over a split sequence by an exchange of heads: each device gets all positions of its share of the heads.

Around attention a device has all heads of its part of the sequence. An all-to-all of each operand turns that round, and
another one of each result back (Jacobs et al., DeepSpeed-Ulysses, https://arxiv.org/abs/2309.14509). Where the heads
do not divide among all devices, the minor-most axes exchange heads and keys are gathered over the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from jaxplan.ir.attention._operator import ONE, VALUE_WIDTH, WIDTH, Attention, Labels

SUM_BYTES = 4
"""Of an element of a sum, at least: float32."""
Shape = tuple[int, ...]


class Exchange(NamedTuple):
    """``label`` of the dimension that is exchanged, and over how many of the axes of the sequence, minor-most."""

    label: int
    num_axes: int


class Move(NamedTuple):
    """What an exchange does to one array; a slice takes no collective.

    Attributes:
      heads, sequence: the dimensions of the array, -1 where it lacks one.
    """

    kind: Literal["all-to-all", "all-gather", "slice"]
    heads: int
    sequence: int


def exchange_of(attention: Attention, shapes: Sequence[Shape], sizes: Sequence[int]) -> Exchange | None:
    """The exchange by which a device receives the fewest bytes; None where that is to gather keys alone.

    Args:
      shapes: of a device's pieces of the operands.
      sizes: of the axes that split the sequence, major to minor.
    """
    best, least = None, _gathered_bytes(attention, shapes, math.prod(sizes))
    if shapes[0][attention.operands[0].index(attention.query)] == 1:
        return None  # one position could not be told from a dimension that is broadcast
    for label in sorted(attention.batch, reverse=True):  # heads come behind examples
        heads = shapes[1][attention.operands[1].index(label)]
        for k in range(1, len(sizes) + 1):
            num, rest = math.prod(sizes[-k:]), math.prod(sizes[:-k])
            received = _gathered_bytes(attention, shapes, rest) + _exchanged_bytes(attention, shapes, label, num)
            if heads % num == 0 and received < least:
                best, least = Exchange(label, k), received
    return best


def exchanged_arrays(attention: Attention, shapes: Sequence[Shape]) -> tuple[list[tuple[Labels, Shape]], ...]:
    """Labels and shapes of the operands and of the results that an exchange moves.

    In the backward pass that is not the result of the forward one, but its product with the cotangent: a number for
    each row.
    """
    sizes = {ONE: 1}
    for labels, shape in zip(attention.operands[:3], shapes):
        sizes.update(zip(labels, shape))
    operands = list(zip(attention.operands, shapes, strict=True))
    if attention.is_backward:
        operands[-3] = attention.rows, tuple(sizes[label] for label in attention.rows)
    return operands, [(labels, tuple(sizes[label] for label in labels)) for labels in attention.results]


def move_of(attention: Attention, labels: Labels, shape: Shape, label: int) -> Move | None:
    """What an exchange of ``label`` does to an array of a device; None: nothing."""
    heads, sequence = (d if d >= 0 and shape[d] > 1 else -1 for d in places_of(attention, labels, label))
    if sequence < 0:
        return None if heads < 0 else Move("slice", heads, sequence)
    return Move("all-gather" if heads < 0 else "all-to-all", heads, sequence)


def places_of(attention: Attention, labels: Labels, label: int) -> tuple[int, int]:
    """The dimension of ``label`` and that of the sequence, -1 where an array lacks one."""
    is_of_keys = attention.key in labels and bool({WIDTH, VALUE_WIDTH} & set(labels))
    sequence = attention.key if is_of_keys else attention.query
    heads, sequence = (labels.index(of) if of in labels else -1 for of in (label, sequence))
    return heads, sequence


def _gathered_bytes(attention: Attention, shapes: Sequence[Shape], num: int) -> float:
    """Bytes that a device receives where keys and values are gathered from so many, and their gradients summed."""
    itemsize = np.dtype(attention.dtype).itemsize
    each = itemsize + (max(SUM_BYTES, itemsize) if attention.is_backward else 0)
    return (num - 1) * each * float(math.prod(shapes[1]) + math.prod(shapes[2]))


def _exchanged_bytes(attention: Attention, shapes: Sequence[Shape], label: int, num: int) -> float:
    total = 0.0
    for labels, shape in (of for side in exchanged_arrays(attention, shapes) for of in side):
        move = move_of(attention, labels, shape, label)
        if move is not None and move.kind != "slice":
            total += math.prod(shape) * (num - 1) / (num if move.kind == "all-to-all" else 1)
    return total * np.dtype(attention.dtype).itemsize
