"""Numbers of values by how they are computed, equal for equal computations of different micro-batches."""

from __future__ import annotations

import re
from collections.abc import Container, Hashable
from typing import Any

import jax
import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.ir._program import REGION_IN, REGION_OUT, Equation, Program
from jaxplan.ir._values import frozen_params


class Signatures:
    """Signatures of the tensors of a program, given its equations in order (hash consing, Ershov 1958)."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._numbers = Memo()
        self._of: dict[int, int] = {}
        self._regions: dict[int, int] = {}  # signature of all that enters and leaves a loop
        for tensor in program.tensors:
            if tensor.kind in ("literal", "constant"):
                self._of[tensor.index] = self._number(("value", str(tensor.dtype), _value(tensor.value, self._numbers)))
            elif tensor.kind != "computed":
                self._of[tensor.index] = self._number(("given", tensor.index))

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def add(self, eqn: Equation, *, is_index: bool = False) -> None:
        """Take in the next equation; ``is_index``: the number of the element that it reads does not count."""
        key = self._key(eqn, is_index=is_index)
        for position, t in enumerate(eqn.results):
            self._of[t] = self._number(("result", key, position))

    def of(self, eqn: Equation) -> int:
        """The signature of the first result of an equation that is not taken in yet."""
        return self._number(("result", self._key(eqn), 0))

    def through(self, eqn: Equation, operand: int, marked: Container[int], summand: int) -> int:
        """The signature of a summand of an operand behind an equation that is linear in the ``marked`` operands."""
        others = tuple(-1 if i in marked else self._of[t] for i, t in enumerate(eqn.operands))
        return self._number(("through", eqn.name, self._params(eqn), operand, others, summand))

    def _key(self, eqn: Equation, *, is_index: bool = False) -> int:
        operands = tuple(self._of[t] for t in eqn.operands)
        if is_index:
            return self._number(("element", operands))
        if eqn.name == REGION_IN:
            return self._number((eqn.name, eqn.params["role"], self._place(eqn), operands))
        if eqn.name == REGION_OUT:
            return self._number(
                (eqn.name, eqn.params["role"], self._place(eqn), self._region(eqn.params["region"]))
            )
        effects = eqn.index if getattr(eqn.origin, "effects", None) else None
        return self._number((eqn.name, self._params(eqn), operands, effects))

    def _params(self, eqn: Equation) -> Hashable:
        """Parameters, programs among them by their text."""
        readable = jax.tree.map(_readable, dict(eqn.params), is_leaf=_is_program)
        return frozen_params(readable, self._numbers)

    def _place(self, eqn: Equation) -> tuple[int, ...]:
        """Which of the entries or exits of its region an equation is, and the region's trips."""
        region = self._program.regions[eqn.params["region"]]
        if eqn.name == REGION_OUT:
            return (region.exits.index(eqn.index),)
        body = next(k for k, entries in enumerate(region.entries) if eqn.index in entries)
        reverse = bool(region.params.get("reverse", False))
        return (body, region.entries[body].index(eqn.index), region.trips, reverse)

    def _region(self, index: int) -> int:
        if index not in self._regions:
            region, equations = self._program.regions[index], self._program.equations
            entries = tuple(
                self._of[t] for body in region.entries for e in body for t in equations[e].results
            )
            exits = tuple(self._of[t] for e in region.exits for t in equations[e].operands)
            ends = tuple(self._of[t] for t in (region.selector, region.predicate) if t is not None)
            self._regions[index] = self._number((region.kind, region.trips, entries, exits, ends))
        return self._regions[index]


def _is_program(value: Any) -> bool:
    return type(value).__name__ in ("Jaxpr", "ClosedJaxpr")


def _readable(value: Any) -> Any:
    is_text = _is_program(value) and not getattr(value, "consts", ())
    return re.sub("0x[0-9a-f]+", "", str(value)) if is_text else value


def _value(value: Any, memo: Memo) -> Hashable:
    array = np.asarray(value)
    return (array.shape, array.tobytes()) if array.size < 64 else memo.number(value)
