"""One attention that was found in a program, and the operands and results of its dots by their labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from jaxplan.ir._program import Equation
from jaxplan.ir.attention._chain import Chain, Reader
from jaxplan.ir.attention._operator import WIDTH, Labels


class Side(NamedTuple):
    """A value that a dot reads or makes, and its labels."""

    tensor: int
    labels: Labels


@dataclass(kw_only=True)
class Found:
    """One attention.

    Attributes:
      queries, keys, values: operands of the forward pass; ``result`` and its dot.
      key, query: labels of the two sequences.
      cotangent: that of the result; the gradients are those that the program computes, and their dots.
    """

    chain: Chain
    queries: Side
    keys: Side
    key: int
    query: int
    values: Side | None = None
    result: Side | None = None
    dot: Equation | None = None
    cotangent: Side | None = None
    gradients: dict[str, Side] = field(default_factory=dict)
    dots: dict[str, Equation] = field(default_factory=dict)


class Unknown(Exception):
    """A value has no place in attention."""


def dot_sides(reader: Reader, dot: Equation, labels: Labels, width: int = WIDTH) -> tuple[Side, Side] | None:
    """The operands of a dot of which the labels of the result are known; it sums over one dimension, ``width``."""
    (contracted, batch), sides = dot.params["dimension_numbers"], []
    if len(contracted[0]) != 1:
        return None
    free = iter(labels[len(batch[0]) :])
    for t, over, mapped in zip(dot.operands, contracted, batch):
        of = dict(zip(mapped, labels)) | {over[0]: width}
        rank = len(reader.program.tensors[t].shape)
        sides.append(Side(t, tuple(of[d] if d in of else next(free) for d in range(rank))))
    return sides[0], sides[1]


def with_width(side: Side, width: int) -> Side:
    return Side(side.tensor, tuple(width if label == WIDTH else label for label in side.labels))


def read_sides(
    reader: Reader, dot: Equation, place: int, labels: Labels
) -> tuple[Side, Side, frozenset[int]] | None:
    """The other operand and the result of a dot with an operand of known labels, and the labels that it sums over."""
    contracted, batch = dot.params["dimension_numbers"]
    other = dot.operands[1 - place]
    of = dict(zip(batch[1 - place], (labels[d] for d in batch[place])))
    of |= dict(zip(contracted[1 - place], (labels[d] for d in contracted[place])))
    rank = len(reader.program.tensors[other].shape)
    left = [d for d in range(rank) if d not in of]
    if len(left) != 1:
        return None
    of[left[0]] = WIDTH
    over = frozenset(labels[d] for d in contracted[place])
    free = [labels[d] for d in range(len(labels)) if d not in batch[place] and d not in contracted[place]]
    halves = [free, [WIDTH]] if place == 0 else [[WIDTH], free]
    result = (*(labels[d] for d in batch[place]), *halves[0], *halves[1])
    return Side(other, tuple(of[d] for d in range(rank))), Side(dot.results[0], result), over
