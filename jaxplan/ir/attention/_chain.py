"""The way from the dot of queries and keys to the scores that a softmax reads: scales, biases, masks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from jaxplan.ir._program import REGION_IN, Equation, Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir.attention._operator import ONE, Labels, Score
from jaxplan.ir.attention._terms import Terms, constant, multiplied, power, symbol

CASTS = frozenset({"convert_element_type", "copy", "reduce_precision", "stop_gradient"})
_SELECT = "select_n"


@dataclass(kw_only=True)
class Reader:
    """A program, and which equation makes each value.

    Attributes:
      producer: tensor -> the equation that makes it, of one region; ``makers``: of all.
    """

    program: Program
    rules: tuple[OperatorRule, ...]
    producer: dict[int, Equation]
    makers: dict[int, Equation]
    consumers: dict[int, list[Equation]]

    def scalar(self, t: int) -> Terms | None:
        """A number, or one value for all positions, as a factor; None of everything else."""
        tensor, made = self.program.tensors[t], self.producer.get(t)
        if tensor.value is not None and np.size(tensor.value) == 1 and tensor.kind in ("literal", "constant"):
            return constant(float(np.asarray(tensor.value).reshape(()).item()))
        if (
            made is not None
            and (made.name in CASTS or made.name == "broadcast_in_dim")
            and len(made.operands) == 1
        ):
            return self.scalar(made.operands[0])
        return symbol(("scalar", t)) if tensor.shape == () else None

    def root(self, t: int, labels: Labels) -> tuple[int, Labels]:
        """The array that a value is a transposition or a cast of, and its labels."""
        while (made := self.producer.get(t)) is not None and (made.name in CASTS or made.name == "transpose"):
            if made.name == "transpose":
                labels = tuple(labels[list(made.params["permutation"]).index(d)] for d in range(len(labels)))
            t = made.operands[0]
        return t, labels


Value = tuple[int, Labels]
"""A tensor, read along these dimensions: a column of positions may stand for queries and for keys."""


@dataclass(kw_only=True)
class Chain:
    """The equations found so far.

    Attributes:
      product: the result of the dot of queries and keys, and its labels.
      positions: labels of which a position is computed in blocks: of queries and of keys.
      steps: the equations that the attention computes itself, with their operands and their result.
      sides: operands of the attention beside queries, keys and values.
      factor: of the product in the scores, masks among it: the derivative of the scores by the product.
      main: values between the product and the scores, these two among them.
    """

    reader: Reader
    product: Value
    positions: Labels
    steps: dict[Value, tuple[Equation, tuple[Value, ...]]] = field(default_factory=dict)
    sides: list[Value] = field(default_factory=list)
    factor: Terms = field(default_factory=lambda: constant(1.0))
    main: list[int] = field(default_factory=list)

    @property
    def labels(self) -> Labels:
        """Of the scores."""
        return (
            next(labels for t, labels in self.steps if t == self.main[-1]) if self.steps else self.product[1]
        )

    @property
    def equations(self) -> frozenset[int]:
        return frozenset(eqn.index for eqn, _ in self.steps.values())

    def scores(self) -> tuple[Score, ...]:
        """The equations as data; operands number the product 0, sides from 1 on, then results in order."""
        numbers = {value: i for i, value in enumerate((self.product, *self.sides))}
        found: list[Score] = []
        tensors = self.reader.program.tensors
        for result, (eqn, values) in self.steps.items():
            operands = tuple(
                numbers[value] if value in numbers else (tensors[value[0]].value,) for value in values
            )
            found.append(
                Score(primitive=eqn.primitive, params=eqn.params, operands=operands, labels=result[1])
            )
            numbers[result] = len(self.sides) + len(found)
        return tuple(found)


def main_path(reader: Reader, scores: int) -> list[Equation] | None:
    """The equations between a dot and the scores, last one first; None where no dot of that size is behind them."""
    path: list[Equation] = []
    shape, t = sorted(reader.program.tensors[scores].shape), scores
    while (made := reader.producer.get(t)) is not None and made.name != "dot_general":
        following = [o for o in made.operands if _leads_to_dot(reader, o, shape, 12)]
        if len(following) != 1 or made.name not in _LINEAR:
            return None
        path.append(made)
        t = following[0]
    return path if made is not None else None


_LINEAR = frozenset({"mul", "div", "add", "add_any", "sub", "neg", _SELECT, "transpose", *CASTS})


def _leads_to_dot(reader: Reader, t: int, shape: list[int], depth: int) -> bool:
    made = reader.producer.get(t)
    if made is None or sorted(reader.program.tensors[t].shape) != shape or not depth:
        return False
    if made.name == "dot_general":
        return True
    return made.name in _LINEAR and any(_leads_to_dot(reader, o, shape, depth - 1) for o in made.operands)


def chain_of(
    reader: Reader, path: list[Equation], product: int, labels: Labels, positions: Labels
) -> Chain | None:
    """The chain along a path, with all that it reads; None where the product passes through something else."""
    chain = Chain(reader=reader, product=(product, labels), positions=positions)
    chain.main.append(product)
    tensors = reader.program.tensors
    for eqn in reversed(path):
        main, result = (chain.main[-1], labels), eqn.results[0]
        labels = _labels_after(eqn, labels)
        factor = _factor(reader, eqn, main[0])
        if factor is None:
            return None
        chain.factor = multiplied(chain.factor, factor)
        shape = tensors[result].shape
        operands = [
            main if t == main[0] else _side(chain, t, _within(labels, tensors[t].shape, shape))
            for t in eqn.operands
        ]
        chain.steps[result, labels] = eqn, tuple(operands)
        chain.main.append(result)
    return chain


def _within(labels: Labels, inner: tuple[int, ...], shape: tuple[int, ...]) -> Labels:
    """Labels of an operand that is broadcast along dimensions of size 1."""
    return tuple(label if n == m else ONE for label, n, m in zip(labels, inner, shape)) if inner else ()


def _labels_after(eqn: Equation, labels: Labels) -> Labels:
    return tuple(labels[d] for d in eqn.params["permutation"]) if eqn.name == "transpose" else labels


def _factor(reader: Reader, eqn: Equation, main: int) -> Terms | None:
    """The factor of one operand in the result; None where it is not linear in it, or more than a number."""
    if eqn.name in (*CASTS, "transpose", "add", "add_any"):
        return constant(1.0) if eqn.operands.count(main) == 1 else None
    if eqn.name == "neg":
        return constant(-1.0)
    if eqn.name == "sub":
        return constant(1.0 if eqn.operands[0] == main else -1.0) if eqn.operands.count(main) == 1 else None
    if eqn.name == _SELECT:
        return selected(reader, eqn, main)
    other = eqn.operands[0] if eqn.operands[1] == main else eqn.operands[1]
    scale = reader.scalar(other)
    if scale is None or (eqn.name == "div" and eqn.operands[0] != main):
        return None
    return power(scale, -1) if eqn.name == "div" else scale


def selected(reader: Reader, eqn: Equation, main: int) -> Terms | None:
    """The mask of a selection between a value and another, as a factor of the value."""
    which, *cases = eqn.operands
    if cases.count(main) != 1 or len(cases) != 2:
        return None
    made = reader.producer.get(which)
    while made is not None and made.name in ("broadcast_in_dim", "reshape"):
        which = made.operands[0]
        made = reader.producer.get(which)
    return symbol(("mask", which, cases.index(main)))


def _side(chain: Chain, t: int, labels: Labels) -> Value:
    """A value that the scores are made with: computed in blocks where that is element-wise, else an operand."""
    reader, value = chain.reader, (t, labels)
    tensor, made = reader.program.tensors[t], reader.producer.get(t)
    is_number = tensor.kind == "literal" and tensor.shape == ()
    if value in chain.steps or value in chain.sides or is_number:
        return value
    entered = _of_positions(chain, t, labels)
    if entered is not None:
        return entered
    operands = [] if made is None else list(_operand_labels(reader, made, labels))
    if made is None or not (operands or _is_position(chain, made, labels)):
        chain.sides.append(value)
    else:
        chain.steps[value] = made, tuple(_side(chain, operand, of) for operand, of in operands)
    return value


def _is_position(chain: Chain, made: Equation, labels: Labels) -> bool:
    return made.name == "iota" and labels[made.params["dimension"]] in chain.positions


def _of_positions(chain: Chain, t: int, labels: Labels) -> Value | None:
    """A value that a loop reads from outside, made of positions alone, among the chain's steps; else None.

    Example: ``jnp.arange(length)`` above a loop over micro-batches, in which queries and keys are compared by it.
    """
    reader = chain.reader
    made = reader.makers.get(t)
    if made is None or not _enters(made):
        return None
    steps: dict[Value, tuple[Equation, tuple[Value, ...]]] = {}
    while made is not None and _enters(made):
        t = made.operands[0]
        made = reader.makers.get(t)
    if not _add_positions(chain, t, labels, steps):
        return None
    chain.steps |= {value: step for value, step in steps.items() if value not in chain.steps}
    return t, labels


def _enters(made: Equation) -> bool:
    return made.name == REGION_IN and made.params["role"] == "const"


def _add_positions(
    chain: Chain, t: int, labels: Labels, steps: dict[Value, tuple[Equation, tuple[Value, ...]]]
) -> bool:
    """Whether a value is made of positions and literals alone; ``steps``: the equations that make it, in order."""
    tensor, made = chain.reader.program.tensors[t], chain.reader.makers.get(t)
    if (t, labels) in steps or (tensor.kind == "literal" and tensor.shape == ()):
        return True
    if made is None:
        return False
    operands = list(_operand_labels(chain.reader, made, labels))
    if not (operands or _is_position(chain, made, labels)):
        return False
    if not all(_add_positions(chain, operand, of, steps) for operand, of in operands):
        return False
    steps[t, labels] = made, tuple(operands)
    return True


def _operand_labels(reader: Reader, eqn: Equation, labels: Labels) -> Iterator[tuple[int, Labels]]:
    """Operands and their labels; nothing where an equation is no element-wise one, and no view."""
    tensors = reader.program.tensors
    shape = tensors[eqn.results[0]].shape
    if eqn.name == "broadcast_in_dim" and len(eqn.operands) == 1:
        dims, inner = eqn.params["broadcast_dimensions"], tensors[eqn.operands[0]].shape
        yield eqn.operands[0], tuple(labels[d] if n == shape[d] else ONE for n, d in zip(inner, dims))
    elif eqn.name == "transpose":
        order = list(eqn.params["permutation"])
        yield eqn.operands[0], tuple(labels[order.index(d)] for d in range(len(order)))
    elif eqn.name == "reshape":
        inner = tensors[eqn.operands[0]].shape
        kept = [label for label, n in zip(labels, shape) if n > 1]
        if [n for n in inner if n > 1] == [n for n in shape if n > 1]:
            yield eqn.operands[0], tuple(kept.pop(0) if n > 1 else ONE for n in inner)
    elif reader.rules[eqn.index].family == "elementwise" and len(eqn.results) == 1:
        for t in eqn.operands:
            yield t, _within(labels, tensors[t].shape, shape)
