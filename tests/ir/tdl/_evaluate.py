"""Descriptions executed one element at a time: their values, and which elements they read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxplan.ir.tdl._expression import Arithmetic, Constant, Element, Expression, Index, Reduction, Variable
from jaxplan.ir.tdl._language import run_description
from jaxplan.ir.tdl._reads import find_reads

_JOIN: dict[str, Callable[..., float]] = {"sum": sum, "prod": math.prod, "max": max, "min": min}


class Evaluator:
    """Evaluates a description on arrays; ``reads`` collects (operand, position) pairs."""

    def __init__(
        self, description: Any, operands: Sequence[np.ndarray], out_shapes: Sequence[tuple[int, ...]]
    ):
        self.operands = operands
        self.described = run_description(description, [x.shape for x in operands], out_shapes, {})
        self.sizes = find_reads(self.described).sizes
        self.reads: set[tuple[int, tuple[int, ...]]] = set()

    def results(self, ranges: dict[str, range] | None = None) -> list[np.ndarray]:
        """The results; ``ranges`` restricts variables by name, elements outside stay NaN."""
        return [self._result(number, ranges or {}) for number in range(len(self.described.bodies))]

    def _result(self, number: int, ranges: dict[str, range]) -> np.ndarray:
        result = np.full(self.described.out_shapes[number], np.nan)
        variables = self.described.variables[number]
        for position in itertools.product(*(self._range(v, ranges) for v in variables)):
            env = dict(zip(variables, position))
            result[position] = self._value(self.described.bodies[number], env, ranges)
        return result

    def _range(self, variable: Variable, ranges: dict[str, range]) -> range:
        return ranges.get(variable.name, range(self.sizes[variable]))

    def _value(self, node: Expression, env: dict[Variable, int], ranges: dict[str, range]) -> Any:
        if isinstance(node, Index):
            return node.constant + sum(factor * env[v] for v, factor in node.terms)
        if isinstance(node, Constant):
            return node.value
        if isinstance(node, Element):
            return self._element(node, env, ranges)
        if isinstance(node, Reduction):
            spaces = itertools.product(*(self._range(v, ranges) for v in node.variables))
            terms = [self._value(node.body, env | dict(zip(node.variables, p)), ranges) for p in spaces]
            return _JOIN[node.reducer](terms)
        assert isinstance(node, Arithmetic) and node.kind != "other"
        values = [self._value(child, env, ranges) for child in node.arguments]
        if node.kind == "add":
            return values[0] + values[1]
        return values[0] / values[1] if node.kind == "divide" else values[0] * values[1]

    def _element(self, node: Element, env: dict[Variable, int], ranges: dict[str, range]) -> Any:
        array = self.operands[node.operand]
        position = tuple(self._value(entry, env, ranges) for entry in node.index if isinstance(entry, Index))
        assert len(position) == array.ndim
        if not all(0 <= p < size for p, size in zip(position, array.shape)):
            assert node.padding is not None, f"reads {position} of {array.shape}"
            return node.padding
        self.reads.add((node.operand, position))
        return array[position]
