"""Finds attention in a program: a dot, scores, a softmax over keys, a dot; and its gradient, by the values computed.

From the maximum over keys on, every value that is made of the scores is followed, and must have a place: it is a
weight, a row sum, a gradient of these, or one of five dots. Where one value has none (dropout of weights, weights that
are returned), the attention stays as it is.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxplan.ir._program import Equation
from jaxplan.ir.attention import _terms as terms
from jaxplan.ir.attention._chain import CASTS, Chain, Reader, chain_of, main_path, selected
from jaxplan.ir.attention._operator import ONE, VALUE_WIDTH, WIDTH, Labels
from jaxplan.ir.attention._terms import Terms


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


class _Unknown(Exception):
    """A value has no place in attention."""


def attention_at(reader: Reader, maximum: Equation) -> Found | None:
    """The attention with this maximum over keys; None where there is none, or only a part of one."""
    try:
        found = _scores_at(reader, maximum)
        return None if found is None else _Follower(reader, found, maximum).follow()
    except _Unknown:
        return None


def _scores_at(reader: Reader, maximum: Equation) -> Found | None:
    """Queries, keys, and how the scores are made of them."""
    axes, scores = tuple(maximum.params["axes"]), maximum.operands[0]
    path = main_path(reader, scores) if len(axes) == 1 else None
    if path is None:
        return None
    product = next((t for eqn in path[-1:] for t in eqn.operands if _is_dot_of(reader, t, scores)), scores)
    dot = reader.producer.get(product)
    if dot is None or dot.name != "dot_general":
        return None
    labels = tuple(range(len(reader.program.tensors[product].shape)))
    axis = axes[0]
    for eqn in path:
        if eqn.name == "transpose":
            axis = eqn.params["permutation"][axis]
    sides = _dot_sides(reader, dot, labels)
    if sides is None or not any(axis in side.labels for side in sides):
        return None
    keys, queries = sides if axis in sides[0].labels else sides[::-1]
    if axis in queries.labels:
        return None
    shape = reader.program.tensors[product].shape
    rows = [label for label in queries.labels if label != WIDTH and label not in keys.labels]
    alike = [label for label in rows if shape[label] == shape[axis]]
    others = [label for label in keys.labels if label not in queries.labels and label != axis]
    if not alike or others or shape[axis] == 1:
        return None
    chain = chain_of(reader, path, product, labels, (axis, alike[-1]))
    return (
        None if chain is None else Found(chain=chain, queries=queries, keys=keys, key=axis, query=alike[-1])
    )


def _is_dot_of(reader: Reader, t: int, scores: int) -> bool:
    made, tensors = reader.producer.get(t), reader.program.tensors
    return (
        made is not None
        and made.name == "dot_general"
        and tensors[t].num_elements == tensors[scores].num_elements
    )


def _dot_sides(reader: Reader, dot: Equation, labels: Labels, width: int = WIDTH) -> tuple[Side, Side] | None:
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


@dataclass(kw_only=True)
class _Value:
    """A value made of the scores: its labels and its terms; ``None`` for the scores themselves and their maximum."""

    labels: Labels
    terms: Terms | None
    kind: str = "terms"


class _Follower:
    """Follows the values of one attention through the program."""

    def __init__(self, reader: Reader, found: Found, maximum: Equation) -> None:
        self.reader, self.found, self.maximum = reader, found, maximum
        self.shape = reader.program.tensors[found.chain.product[0]].shape
        scores = maximum.operands[0]
        labels = found.chain.labels
        self.known: dict[int, _Value] = {scores: _Value(labels=labels, terms=None, kind="scores")}
        self.waiting: list[int] = []
        self.done: set[int] = set(found.chain.equations)
        self.equations: dict[int, Equation] = {}
        self._push(scores)

    def follow(self) -> Found | None:
        while self.waiting:
            index = heapq.heappop(self.waiting)
            if index not in self.done:
                self.done.add(index)
                self._visit(self.equations[index])
        inner = set(self.found.chain.main) | self.known.keys()
        outputs = set(self.reader.program.outputs)
        if inner & outputs or any(
            e.index not in self.done for t in inner for e in self.reader.consumers.get(t, ())
        ):
            return None
        return self.found if self.found.values is not None else None

    def _push(self, t: int) -> None:
        for eqn in self.reader.consumers.get(t, ()):
            self.equations[eqn.index] = eqn
            heapq.heappush(self.waiting, eqn.index)

    def _know(self, t: int, value: _Value) -> None:
        self.known[t] = value
        self._push(t)

    def _visit(self, eqn: Equation) -> None:
        if eqn.name == "dot_general":
            self._dot(eqn)
            return
        if len(eqn.results) != 1:
            raise _Unknown
        value = self._result(eqn)
        if value is None:
            raise _Unknown
        self._know(eqn.results[0], value)

    def _result(self, eqn: Equation) -> _Value | None:
        first, name = self.known.get(eqn.operands[0]), eqn.name
        if name in CASTS:
            return first
        if name in ("transpose", "broadcast_in_dim", "reshape"):
            return None if first is None else self._viewed(eqn, first)
        if name in ("reduce_max", "reduce_sum"):
            return None if first is None else self._reduced(eqn, first)
        if name == "select_n":
            return self._selected(eqn)
        shape = self.reader.program.tensors[eqn.results[0]].shape
        known = [self.known[t] for t in eqn.operands if t in self.known]
        labels = max(
            (value.labels for value in known), key=lambda labels: sum(label != ONE for label in labels)
        )
        labels = self._completed(labels, shape)
        values = [self._read(t, labels) for t in eqn.operands]
        found = [value for value in values if value is not None]
        if len(found) < len(values) or not all(_agree(value.labels, labels) for value in found):
            return None
        kinds = [value.kind for value in found]
        if set(kinds) != {"terms"} or name == "exp":
            return self._centred(name, eqn, kinds, labels)
        result = _arithmetic(eqn, [value.terms for value in found])
        return None if result is None else _Value(labels=labels, terms=result)

    def _centred(self, name: str, eqn: Equation, kinds: Sequence[str], labels: Labels) -> _Value | None:
        """Scores less their maximum, and the exponential of these."""
        if name == "max" and sorted(kinds) == ["maximum", "terms"]:
            other = self.reader.scalar(eqn.operands[kinds.index("terms")])
            is_least = other is not None and list(other.values()) == [-float("inf")]
            return _Value(labels=labels, terms=None, kind="maximum") if is_least else None
        if name == "sub" and kinds == ["scores", "maximum"]:
            return _Value(labels=labels, terms=None, kind="centred")
        if name == "exp" and kinds == ["centred"]:
            return _Value(labels=labels, terms=terms.symbol(terms.EXPONENTIAL))
        return None

    def _viewed(self, eqn: Equation, value: _Value) -> _Value | None:
        shape, labels = self.reader.program.tensors[eqn.results[0]].shape, value.labels
        if eqn.name == "transpose":
            new = tuple(labels[d] for d in eqn.params["permutation"])
        elif eqn.name == "broadcast_in_dim":
            dims = dict(zip(map(int, eqn.params["broadcast_dimensions"]), labels))
            new = tuple(dims.get(d, ONE) for d in range(len(shape)))
            new = self._completed(new, shape)
        else:
            kept = [label for label in labels if label != ONE and self.shape[label] > 1]
            new = tuple(kept.pop(0) if n > 1 and kept else ONE for n in shape)
            if kept or [n for n in shape if n > 1] != [self.shape[label] for label in new if label != ONE]:
                return None
        return _Value(labels=new, terms=value.terms, kind=value.kind)

    def _completed(self, labels: Labels, shape: Sequence[int]) -> Labels:
        """Labels of a value of the shape of the scores, of those of a value that is broadcast to it."""
        if len(shape) != len(self.shape):
            return labels
        left = [label for label in range(len(self.shape)) if label not in labels]
        free = [d for d, label in enumerate(labels) if label == ONE]
        if len(left) == len(free) and [self.shape[label] for label in left] == [shape[d] for d in free]:
            of = dict(zip(free, left))
            return tuple(of.get(d, label) for d, label in enumerate(labels))
        return labels

    def _reduced(self, eqn: Equation, value: _Value) -> _Value | None:
        axes = tuple(eqn.params["axes"])
        over = [value.labels[d] for d in axes]
        rest = tuple(label for d, label in enumerate(value.labels) if d not in axes)
        if all(label == ONE or self.shape[label] == 1 for label in over) and value.kind == "terms":
            return _Value(labels=rest, terms=value.terms, kind=value.kind)
        if over != [self.found.key]:
            return None
        if eqn.name == "reduce_max":
            is_first = value.kind == "scores" and eqn.index == self.maximum.index
            return _Value(labels=rest, terms=None, kind="maximum") if is_first else None
        of_keys = frozenset(
            s for m in self.found.chain.factor for s, _ in m if isinstance(s, tuple) and s[0] == "mask"
        )
        total = None if value.terms is None else terms.row_sum(value.terms, of_keys)
        return None if total is None else _Value(labels=rest, terms=total)

    def _selected(self, eqn: Equation) -> _Value | None:
        """The gradient behind a mask: hidden scores have none."""
        for main, other in (eqn.operands[1:], eqn.operands[:0:-1]):
            value = self.known.get(main)
            if value is None or value.terms is None or self.reader.scalar(other) != {}:
                continue
            mask = selected(self.reader, eqn, main)
            return (
                None
                if mask is None
                else _Value(labels=value.labels, terms=terms.multiplied(value.terms, mask))
            )
        return None

    def _read(self, t: int, labels: Labels) -> _Value | None:
        """An operand, if it is known, or is the gradient of the weights. ``labels``: of its neighbours."""
        if t in self.known:
            return self.known[t]
        scalar = self.reader.scalar(t)
        if scalar is not None:
            return _Value(labels=(), terms=scalar)
        source, of = self.reader.root(t, labels)
        made = self.reader.producer.get(source)
        if made is None or made.name != "dot_general" or not self._is_gradient_of_weights(made, of):
            return None
        value = _Value(labels=labels, terms=terms.symbol(terms.GRADIENT))
        while t != source:
            self._know(t, dataclasses.replace(value, labels=labels))
            view = self.reader.producer[t]
            self.done.add(view.index)
            if view.name == "transpose":
                order = list(view.params["permutation"])
                labels = tuple(labels[order.index(d)] for d in range(len(order)))
            t = view.operands[0]
        self.done.add(made.index)
        self._know(source, dataclasses.replace(value, labels=of))
        return value

    def _is_gradient_of_weights(self, dot: Equation, labels: Labels) -> bool:
        """Whether a dot is of the values and a cotangent, over the width of values."""
        found, sides = self.found, _dot_sides(self.reader, dot, labels, VALUE_WIDTH)
        if sides is None or "weights" in found.dots:
            return False
        values, cotangent = sides if found.key in sides[0].labels else sides[::-1]
        if found.key not in values.labels or found.query in values.labels or found.key in cotangent.labels:
            return False
        if found.values is not None and self.reader.root(*found.values) != self.reader.root(*values):
            return False
        found.values = found.values or values
        self._is_cotangent(cotangent, dot)
        found.dots["weights"] = dot
        return True

    def _is_cotangent(self, side: Side, dot: Equation) -> None:
        """The cotangent of the result, as the first dot reads it."""
        found, known = self.found, self.found.cotangent
        if known is not None and self.reader.root(*known) != self.reader.root(*side):
            raise _Unknown
        if known is None or dot.index < min(
            eqn.index for eqn in found.dots.values()
        ):  # the operator stands there
            found.cotangent = side

    def _dot(self, dot: Equation) -> None:
        """One of the dots that read weights or the gradient of scores."""
        place = 0 if dot.operands[0] in self.known else 1
        value, other = self.known[dot.operands[place]], dot.operands[1 - place]
        if value.terms is None or other in self.known or len(value.labels) != len(self.shape):
            raise _Unknown
        sides = _read_sides(self.reader, dot, place, value.labels)
        if sides is None:
            raise _Unknown
        other_side, result, over = sides
        self._named(dot, value.terms, other_side, result, over)

    def _named(self, dot: Equation, of: Terms, other: Side, result: Side, over: frozenset[int]) -> None:
        found, root = self.found, self.reader.root
        of_keys = over == {found.key}
        of_queries = over == frozenset(found.queries.labels) - frozenset(found.keys.labels)
        if terms.same(of, terms.WEIGHTS):
            if of_keys and found.dot is None and found.values is None:
                found.values, found.dot = _with_width(other, VALUE_WIDTH), dot
                found.result = _with_width(result, VALUE_WIDTH)
                return
            if of_queries and "values" not in found.dots:
                self._is_cotangent(_with_width(other, VALUE_WIDTH), dot)
                found.dots["values"], found.gradients["values"] = dot, _with_width(result, VALUE_WIDTH)
                return
        if terms.same(of, terms.multiplied(terms.SCORE_GRADIENT, found.chain.factor)):
            for name, side, is_over in (
                ("queries", found.keys, of_keys),
                ("keys", found.queries, of_queries),
            ):
                if is_over and name not in found.dots and root(*other) == root(*side):
                    found.dots[name], found.gradients[name] = dot, result
                    return
        raise _Unknown


def _with_width(side: Side, width: int) -> Side:
    return Side(side.tensor, tuple(width if label == WIDTH else label for label in side.labels))


def _read_sides(
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


def _agree(labels: Labels, others: Labels) -> bool:
    """Whether the dimensions of an operand are those of the result, or of size 1."""
    return not labels or all(label in (ONE, other) for label, other in zip(labels, others, strict=True))


def _arithmetic(eqn: Equation, values: Sequence[Terms | None]) -> Terms | None:
    """The result of an equation on sums of products."""
    known = [value for value in values if value is not None]
    if len(known) != len(values):
        return None
    match eqn.name:
        case "mul":
            return terms.multiplied(known[0], known[1])
        case "div":
            inverse = terms.power(known[1], -1)
            return None if inverse is None else terms.multiplied(known[0], inverse)
        case "add" | "add_any":
            return terms.added(known[0], known[1])
        case "sub":
            return terms.added(known[0], known[1], -1.0)
        case "neg":
            return terms.added({}, known[0], -1.0)
        case "integer_pow":
            return terms.power(known[0], eqn.params["y"])
    return None
