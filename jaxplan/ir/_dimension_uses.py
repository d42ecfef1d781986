"""Uses of dimensions in the forward pass: dots, and which operands are parameters or integers of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import jax.numpy as jnp

from jaxplan.core import _compat
from jaxplan.ir._batch import Batch
from jaxplan.ir._dimensions import NamedDimensions
from jaxplan.ir._parameter_reads import ParameterReads
from jaxplan.ir._program import Equation, Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._values import Values

Origin = Literal["free", "integers", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A dot of two operands, by named dimensions; -1 (no name) is left out.

    Attributes:
      equation: its index.
      leaf: position of the operand that is a parameter, None where both are computed.
      mapped: dimensions of both operands and the result.
      summed: dimensions of both operands and not of the result.
      free: per operand, the dimensions that it alone gives to the result.
    """

    equation: int
    leaf: int | None
    mapped: tuple[int, ...]
    summed: tuple[int, ...]
    free: tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class DimensionUses:
    """The forward pass by named dimensions; -1 stands for a dimension without a name."""

    program: Program
    rules: Sequence[OperatorRule]
    values: Values
    named: NamedDimensions
    batch: Batch

    def dims(self, t: int) -> tuple[int, ...]:
        return tuple(self.named.of.get((t, d), -1) for d in range(len(self.program.tensors[t].shape)))

    @cached_property
    def forward(self) -> list[tuple[Equation, OperatorRule]]:
        pairs = zip(self.program.equations, self.rules, strict=True)
        return [(eqn, rule) for eqn, rule in pairs if eqn.phase == "forward"]

    @cached_property
    def _parameters(self) -> ParameterReads:
        return ParameterReads(self.program, self.rules, self.values, self.named, self.batch.dimensions)

    def leaf(self, t: int) -> int | None:
        """The parameter of floats that a tensor holds the elements of; None for everything else."""
        held = self._parameters.held(t)
        return held if held is not None and _is_float(self.program.tensors[held].dtype) else None

    @cached_property
    def origins(self) -> list[Origin]:
        """Per tensor, whether it is computed of constants alone, of these and integers of the data, or of more."""
        ranks: list[Origin] = ["free", "integers", "other"]
        found = [0] * len(self.program.tensors)
        for t in self.program.inputs:
            found[t] = 1 if _is_integer(self.program.tensors[t].dtype) else 2
        for eqn in self.program.equations:
            highest = max((found[t] for t in eqn.operands), default=0)
            for t in eqn.results:
                found[t] = highest
        return [ranks[rank] for rank in found]

    @cached_property
    def dots(self) -> dict[int, Dot]:
        """Dots of two operands in the forward pass, by equation."""
        found = {}
        for eqn, rule in self.forward:
            if rule.family == "contraction" and len(eqn.operands) >= 2:
                found[eqn.index] = self._dot(eqn, rule)
        return found

    def _dot(self, eqn: Equation, rule: OperatorRule) -> Dot:
        sides = []
        for t, dims in zip((*eqn.operands[:2], eqn.results[0]), (*rule.operands[:2], rule.results[0]), strict=True):
            named = self.dims(t)
            sides.append({factors[0]: named[d] for d, factors in enumerate(dims) if factors and named[d] >= 0})
        left, right, result = sides
        both = left.keys() & right.keys()
        leaves = [p for p in (0, 1) if self.leaf(eqn.operands[p]) is not None]
        return Dot(
            equation=eqn.index,
            leaf=leaves[-1] if leaves else None,
            mapped=tuple(left[f] for f in sorted(both) if f in result),
            summed=tuple(left[f] for f in sorted(both) if f not in result),
            free=(
                tuple(left[f] for f in sorted(left) if f not in both),
                tuple(right[f] for f in sorted(right) if f not in both),
            ),
        )


def _is_float(dtype: Any) -> bool:
    return not _compat.is_key_dtype(dtype) and jnp.issubdtype(dtype, jnp.inexact)


def _is_integer(dtype: Any) -> bool:
    return not _compat.is_key_dtype(dtype) and jnp.issubdtype(dtype, jnp.integer)
