"""The parameter that an operand holds: as they are stored, or changed without data on the way to the operator.

A kernel may be cast, transposed, sliced out of a stack, normalised by its columns, rounded, masked or orthogonalised
before a dot reads it. The dot is one of a layer all the same: its operand is computed of parameters alone, and keeps
the elements of one. Sums over a parameter (its norm), dots of parameters (a hypernetwork's kernel, queries of learned
latents) and several that are joined hold none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from jaxplan.ir._dimensions import NamedDimensions
from jaxplan.ir._program import REGION_IN, REGION_OUT, Equation, Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._values import VIEW_PRIMITIVES, Values

PASSED_ON = VIEW_PRIMITIVES | {"optimization_barrier", "copy", "stop_gradient"}
"""Primitives that return their operand in another form."""
_STORED_VIEWS = PASSED_ON | {"rev"}
_KEEPS_ELEMENTS = frozenset({"elementwise", "shape", "gather", "scatter", "scan", "sort", "linalg"})


class ParameterReads:
    """Which arguments an operand holds, of those that have no dimension of the batch."""

    def __init__(
        self,
        program: Program,
        rules: Sequence[OperatorRule],
        values: Values,
        named: NamedDimensions,
        batch: Sequence[int],
    ) -> None:
        self._program, self._rules, self._values, self._named = program, rules, values, named
        self._batch = frozenset(batch)
        self._inputs = frozenset(program.inputs)

    def stored(self, t: int) -> int | None:
        """The parameter that a tensor is a view, a cast or a slice per trip of; None for everything else."""
        while t not in self._inputs:
            eqn = self._producer(t)
            if eqn is None or not _is_stored_view(eqn):
                return None
            t = eqn.operands[0]
        return None if self._is_data(t) or not self._program.tensors[t].shape else t

    def held(self, t: int) -> int | None:
        """The parameter that a tensor holds the elements of, changed without data; None for everything else.

        In a step without a batch nothing tells data from parameters, and only views are followed.
        """
        return self._held.get(t)

    @cached_property
    def _held(self) -> dict[int, int]:
        """Of each tensor that holds a parameter, that parameter."""
        found = {t: t for t in self._inputs if self.stored(t) is not None}
        for eqn in self._program.equations:
            if not self._batch and not _is_stored_view(eqn):
                continue
            for t in eqn.results:
                stored = self.stored(t)
                if stored is None and t not in self._of_data:
                    stored = next((found[o] for o in eqn.operands if o in found and self._keeps(eqn, o, t)), None)
                if stored is not None:
                    found[t] = stored
        return found

    def _keeps(self, eqn: Equation, operand: int, result: int) -> bool:
        """Whether a result may hold all elements of an operand, or a slice of it."""
        if eqn.name == "pad":
            return operand == eqn.operands[0]
        if not _is_stored_view(eqn) and self._rules[eqn.index].family not in _KEEPS_ELEMENTS:
            return False
        tensors = self._program.tensors
        return tensors[operand].num_elements >= tensors[result].num_elements

    def _producer(self, t: int) -> Equation | None:
        producer = self._values.producer[t]
        return self._program.equations[producer] if producer >= 0 else None

    def _is_data(self, t: int) -> bool:
        dims = range(len(self._program.tensors[t].shape))
        return any(self._named.of.get((t, d), -1) in self._batch for d in dims)

    @cached_property
    def _of_data(self) -> frozenset[int]:
        """Tensors that are computed of data; the carry of a loop is, where its last trip returns data."""
        found = {t for t in self._inputs if self._is_data(t)}
        while True:
            before = len(found)
            for eqn in self._program.equations:
                if found.isdisjoint(eqn.operands):
                    continue
                found.update(eqn.results)
                if eqn.name == REGION_OUT and eqn.params["role"] == "carry":
                    found.add(eqn.operands[0])
            if len(found) == before:
                return frozenset(found)


def _is_stored_view(eqn: Equation) -> bool:
    is_sliced = eqn.name == REGION_IN and eqn.params["role"] in ("x", "const", "operand")
    return eqn.name in _STORED_VIEWS or is_sliced
