"""Values computed from constants and scalars alone: each device computes the piece that it reads, when it is read.

A causal mask, zeros, and random bits of one key are whole in the step. Nobody needs them so: of a mask for dropout each
device draws its own part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxplan.core._interner import Memo
from jaxplan.ir import CUT, JOIN, Equation, OperatorRule
from jaxplan.mesh import Sharding
from jaxplan.partition._steps import Executor
from jaxplan.partition.manual._splits import Split, minor_factors, sharding_of

RunOnPieces = Callable[[Equation, Sequence[Any], Split, Sequence[tuple[int, ...]]], list[Any]]
"""(equation, local operands, split, local shapes of the results) -> local results."""

_WHOLE_FAMILIES = frozenset({"convolution", "window", "gather", "scatter", "region"})
"""Families of which a piece needs more than the pieces of its operands."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FreeCall:
    """An equation that was not evaluated yet.

    Attributes:
      sources: its operands: whole arrays, scalars, and other free values.
      out_shapes: global shapes of the results.
      run: evaluates it on pieces.
    """

    eqn: Equation
    rule: OperatorRule
    sources: tuple[Any, ...]
    out_shapes: tuple[tuple[int, ...], ...]
    run: RunOnPieces = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FreeValue:
    """One result of a `FreeCall`."""

    call: FreeCall
    position: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.call.out_shapes[self.position]


class FreeValues:
    """Evaluates free values over the mesh of one executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def piece(self, value: FreeValue, sharding: Sharding) -> Any:
        """The device's piece in a sharding."""
        return self._piece(value, sharding, Memo())

    def whole(self, value: FreeValue) -> Any:
        return self._piece(value, Sharding.replicated(len(value.shape)), Memo())

    def _piece(self, value: FreeValue, sharding: Sharding, memo: Memo) -> Any:
        split = self._split(value, sharding)
        if split is None:
            return self._executor.place(self._results(value.call, {}, memo)[value.position], sharding)
        return self._results(value.call, split, memo)[value.position]

    def _split(self, value: FreeValue, sharding: Sharding) -> dict[int, tuple[int, ...]] | None:
        """The factors that a sharding of a result splits; None where the whole is computed first."""
        rule, split = value.call.rule, dict[int, tuple[int, ...]]()
        if value.call.eqn.name in (CUT, JOIN) or rule.manual or rule.family in _WHOLE_FAMILIES:
            return {} if not any(sharding.dims) else None
        minor = minor_factors(rule)
        for factors, axes in zip(rule.results[value.position], sharding.dims, strict=True):
            if not axes:
                continue
            factor = rule.factors[factors[0]] if factors else None
            if factor is None or factor.kind != "map" or factors[0] in minor:
                return None
            if factor.size % self._executor.size(axes):
                return None
            split[factors[0]] = axes
        return split

    def _results(
        self, call: FreeCall, split: Mapping[int, tuple[int, ...]], memo: Memo
    ) -> list[Any]:
        key = (memo.number(call), tuple(sorted(split.items())))
        if key not in memo:
            shardings = [sharding_of(dims, split) for dims in call.rule.operands]
            pieces = [
                self._operand(source, sharding, memo)
                for source, sharding in zip(call.sources, shardings, strict=True)
            ]
            out_shapes = [
                sharding_of(dims, split).local_shape(shape, self._executor.axes)
                for dims, shape in zip(call.rule.results, call.out_shapes, strict=True)
            ]
            memo[key] = call.run(call.eqn, pieces, split, out_shapes)
        return memo[key]

    def _operand(self, source: Any, sharding: Sharding, memo: Memo) -> Any:
        if isinstance(source, FreeValue):
            return self._piece(source, sharding, memo)
        return self._executor.place(source, sharding)
