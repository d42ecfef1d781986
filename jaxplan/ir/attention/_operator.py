"""The operators that stand for attention: their meaning, how they may be split, and their work."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxplan.core import _compat
from jaxplan.ir._count import Count
from jaxplan.ir._count_registry import register_count
from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import Dimension, OperatorRule
from jaxplan.ir.rules._builder import Factors

FORWARD, BACKWARD = "attention_of_blocks", "attention_of_blocks_gradient"
FORWARD_PRIMITIVE, BACKWARD_PRIMITIVE = _compat.Primitive(FORWARD), _compat.Primitive(BACKWARD)
ATTENTIONS = (FORWARD, BACKWARD)
FORMS = RING, GATHER, HEADS = "ring", "gather", "heads"
"""Where the sequence is split, blocks of keys and values are passed on, or all are gathered, or heads are exchanged."""
Labels = tuple[int, ...]
"""The meaning of each dimension of an array: a position in the scores, `WIDTH`, `VALUE_WIDTH`, or `ONE`."""
ONE, WIDTH, VALUE_WIDTH = -1, -2, -3
_SOFTMAX_OPERATIONS = 20
"""Per score: scale, mask, maximum, difference, exponential (eight), sum, cast, and the same once more as rescaling."""
_PASSES = {FORWARD: 5, BACKWARD: 10}
"""Passes of four bytes over each score: written by its dot, read for the maximum and for the exponential, the weights
written and read; the backward pass has a second array of that size, and two more readers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """An equation between the dot of queries and keys and the softmax: a scale, a bias, a mask.

    Attributes:
      primitive, params: as in the program.
      operands: numbers of earlier values: 0 is the dot's result, then come operands of the attention, then results of
        earlier equations; literals stand as they are, in a tuple of one.
      labels: of the result.
    """

    primitive: Any
    params: Mapping[str, Any]
    operands: tuple[Any, ...]
    labels: Labels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attention:
    """One attention, forward or backward.

    Operands: queries, keys, values, then ``sides`` that the scores are made with; backward, then the result of the
    forward pass, the logarithm of its row sums, and the cotangent of its result. Results: of the forward pass its
    result and these logarithms; of the backward pass the gradients of queries, keys and values.

    Attributes:
      operands, results: labels of each.
      scores: labels of the dot of queries and keys: its positions.
      key, query: labels of the sequence of keys, and of the dimension of queries that is split with it.
      chain: the equations that make the scores, the last of which is read by the softmax.
      dtype: of the dot's result; ``dtypes``: of the results.
      form: where the sequence is split, ``ring`` passes blocks of keys and values on, ``gather`` gathers all of them,
        ``heads`` exchanges heads, or gathers where that moves less.
    """

    operands: tuple[Labels, ...]
    results: tuple[Labels, ...]
    scores: Labels
    key: int
    query: int
    chain: tuple[Score, ...]
    dtype: Any
    dtypes: tuple[Any, ...]
    form: str

    def __str__(self) -> str:
        sides = [" ".join(map(_word, labels)) for labels in (*self.operands, *self.results)]
        steps = [f"{score.primitive.name} {score.operands}" for score in self.chain]
        return f"{self.form} {', '.join(sides)}: {self.dtype} {'; '.join(steps)}"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attention) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        """Equal for the attentions of repeated layers, which are blocks to recompute by that."""
        chain = tuple(
            (
                score.primitive.name,
                tuple((name, _key_of(score.params[name])) for name in sorted(score.params)),
                tuple(i if isinstance(i, int) else _key_of(np.asarray(i[0])) for i in score.operands),
                score.labels,
            )
            for score in self.chain
        )
        dtypes = str(self.dtype), *map(str, self.dtypes)
        return self.operands, self.results, self.scores, self.key, self.query, self.form, dtypes, chain

    @property
    def is_backward(self) -> bool:
        return len(self.results) == len(("queries", "keys", "values"))

    @property
    def num_sides(self) -> int:
        """Number of operands that the scores are made with, beside queries and keys."""
        return len(self.operands) - (6 if self.is_backward else 3)

    @property
    def rows(self) -> Labels:
        """Labels of the rows of scores, that is of all but the keys."""
        return tuple(label for label in self.scores if label != self.key)

    @property
    def batch(self) -> frozenset[int]:
        """Labels of queries and keys alike: examples and heads."""
        return frozenset(self.operands[0]) & frozenset(self.operands[1]) - {WIDTH}


def _key_of(value: Any) -> Any:
    """A parameter or literal of the scores as a part of a key: hashable values as they are, arrays by their content."""
    if isinstance(value, Hashable) and not isinstance(value, np.ndarray | jax.Array):
        return value
    array = np.asarray(value)
    return array.shape, str(array.dtype), array.tobytes()


def _word(label: int) -> str:
    return {ONE: "1", WIDTH: "d", VALUE_WIDTH: "e"}.get(label, f"s{label}")


@register_rule(FORWARD, BACKWARD)
def attention_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Batch and heads are mapped; the sequence is one factor of queries and keys; all else is whole.

    ``b q h d, b q h d, b q h d -> b q h d``: a device has queries and keys of its own part of the sequence, and
    gets the other keys while it computes. Arrays that scores are made with keep all their keys.
    """
    attention: Attention = params["attention"]
    factors, known = Factors(), dict[int, Dimension]()

    def factor(label: int, size: int, *, whole: bool) -> Dimension:
        if label not in known:
            known[label] = factors.whole(size) if whole else factors.add(size)
        return known[label]

    def dims(labels: Labels, shape: tuple[int, ...]) -> tuple[Dimension, ...]:
        has_width = bool({WIDTH, VALUE_WIDTH} & set(labels))
        found: list[Dimension] = []
        for label, size in zip(labels, shape, strict=True):
            if label == attention.key and has_width:  # keys, values and their gradients
                label = attention.query
            is_mapped = label == attention.query or label in attention.batch
            found.append(() if size == 1 else factor(label, size, whole=not is_mapped))
        return tuple(found)

    ins = [dims(labels, aval.shape) for labels, aval in zip(attention.operands, in_avals, strict=True)]
    outs = [dims(labels, aval.shape) for labels, aval in zip(attention.results, out_avals, strict=True)]
    return factors.rule(ins, outs, "attention", manual=True)


def sequence_factor(rule: OperatorRule, attention: Attention) -> int | None:
    """The factor of the sequence; None where it has one element."""
    dim = rule.operands[0][attention.operands[0].index(attention.query)]
    return dim[0] if dim else None


@register_count(FORWARD, kind="two dots, scores in blocks")
def forward_count(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Scores and weighted values of all pairs: masked blocks are computed too."""
    return _count(FORWARD, in_avals, params, 1, 1)


@register_count(BACKWARD, kind="five dots, scores in blocks")
def backward_count(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Scores again, and the gradients of values, weights, queries and keys."""
    return _count(BACKWARD, in_avals, params, 3, 2)


def _count(name: str, in_avals: Avals, params: Params, of_keys: int, of_values: int) -> Count:
    attention: Attention = params["attention"]
    sizes = {label: n for of, aval in zip(attention.operands, in_avals) for label, n in zip(of, aval.shape)}
    scores = math.prod(sizes[label] for label in attention.scores)
    flops = 2.0 * scores * (of_keys * sizes[WIDTH] + of_values * sizes[VALUE_WIDTH])
    return Count(
        matrix=((str(in_avals[0].dtype), flops),),
        vector=(("float32", float(_SOFTMAX_OPERATIONS * scores)),),
        moved=4.0 * _PASSES[name] * scores,
    )
