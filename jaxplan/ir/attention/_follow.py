"""Follows the values that are made of the scores of an attention: each must be one that attention has."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.ir._program import Equation
from jaxplan.ir.attention import _terms as terms
from jaxplan.ir.attention._chain import CASTS, Reader, selected
from jaxplan.ir.attention._found import Found, Side, Unknown, dot_sides, read_sides, with_width
from jaxplan.ir.attention._operator import ONE, VALUE_WIDTH, Labels
from jaxplan.ir.attention._terms import Terms


@dataclass(kw_only=True)
class _Value:
    """A value made of the scores: its labels and its terms; ``None`` for the scores themselves and their maximum."""

    labels: Labels
    terms: Terms | None
    kind: str = "terms"


class Follower:
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
            raise Unknown
        value = self._result(eqn)
        if value is None:
            raise Unknown
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
        found, sides = self.found, dot_sides(self.reader, dot, labels, VALUE_WIDTH)
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
            raise Unknown
        if known is None or dot.index < min(
            eqn.index for eqn in found.dots.values()
        ):  # the operator stands there
            found.cotangent = side

    def _dot(self, dot: Equation) -> None:
        """One of the dots that read weights or the gradient of scores."""
        place = 0 if dot.operands[0] in self.known else 1
        value, other = self.known[dot.operands[place]], dot.operands[1 - place]
        if value.terms is None or other in self.known or len(value.labels) != len(self.shape):
            raise Unknown
        sides = read_sides(self.reader, dot, place, value.labels)
        if sides is None:
            raise Unknown
        other_side, result, over = sides
        self._named(dot, value.terms, other_side, result, over)

    def _named(self, dot: Equation, of: Terms, other: Side, result: Side, over: frozenset[int]) -> None:
        found, root = self.found, self.reader.root
        of_keys = over == {found.key}
        of_queries = over == frozenset(found.queries.labels) - frozenset(found.keys.labels)
        if terms.same(of, terms.WEIGHTS):
            if of_keys and found.dot is None and found.values is None:
                found.values, found.dot = with_width(other, VALUE_WIDTH), dot
                found.result = with_width(result, VALUE_WIDTH)
                return
            if of_queries and "values" not in found.dots:
                self._is_cotangent(with_width(other, VALUE_WIDTH), dot)
                found.dots["values"], found.gradients["values"] = dot, with_width(result, VALUE_WIDTH)
                return
        if terms.same(of, terms.multiplied(terms.SCORE_GRADIENT, found.chain.factor)):
            for name, side, is_over in (
                ("queries", found.keys, of_keys),
                ("keys", found.queries, of_queries),
            ):
                if is_over and name not in found.dots and root(*other) == root(*side):
                    found.dots[name], found.gradients[name] = dot, result
                    return
        raise Unknown


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
