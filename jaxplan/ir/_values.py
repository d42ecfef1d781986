"""Facts about values that need no sharding: equality (value numbers), view roots, freedom, consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.ir._barriers import backward_barriers
from jaxplan.ir._program import REGION_IN, REGION_OUT, Equation, Program
from jaxplan.ir._rule import OperatorRule

IDENTITY_PRIMITIVES = frozenset(
    {"optimization_barrier", "stop_gradient", "copy", "copy_p", "sharding_constraint"}
)
VIEW_PRIMITIVES = frozenset(
    {"transpose", "reshape", "squeeze", "expand_dims", "convert_element_type", "reduce_precision"}
)


_COSTLY = frozenset({"unknown", "user", "linalg", "opaque", "attention", "sparse"})
"""Families that are computed once for all, whatever they read: a factorisation of a constant matrix has a price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Per tensor, by index.

    Attributes:
      number: value number; equal for tensors that hold the same value (a recomputed activation equals its original).
      merged: the same, but values that an optimization barrier of the backward pass keeps apart differ, and those in
        the bodies of different loops: the compiler merges those that are equal here.
      root: value number of the tensor that it is a view of (transposes, reshapes, casts).
      free: exists in any sharding at no cost (iota, constants, and values computed from them and from scalars).
      producer: index of the producing equation, -1 for inputs, constants and literals.
      consumers: equations that read it, in program order.
    """

    number: tuple[int, ...]
    merged: tuple[int, ...]
    root: tuple[int, ...]
    free: tuple[bool, ...]
    producer: tuple[int, ...]
    consumers: tuple[tuple[int, ...], ...]


class _Twins:
    """Equations of one primitive on equal operands, told apart by their parameters once there are several."""

    def __init__(self, first: Equation) -> None:
        self.first = first
        self._results = Memo()

    def results_like(self, eqn: Equation) -> tuple[int, ...]:
        """The results of the first equation with the parameters of this one."""
        if not self._results:
            self._results[frozen_params(self.first.params, self._results)] = self.first.results
        return self._results.setdefault(frozen_params(eqn.params, self._results), eqn.results)


def analyse_values(program: Program, rules: tuple[OperatorRule, ...]) -> Values:
    """Global value numbering (Alpern, Wegman, Zadeck 1988) in one pass over the equations."""
    tensors = program.tensors
    count = len(tensors)
    number, root = list(range(count)), list(range(count))
    free, producer = [False] * count, [-1] * count
    consumers: list[list[int]] = [[] for _ in range(count)]
    seen: dict[Any, tuple[int, ...]] = {}
    applied: dict[tuple[str, tuple[int, ...]], _Twins] = {}
    stacked: dict[tuple[int, int], int] = {}
    for tensor in tensors:
        if tensor.kind == "literal":
            free[tensor.index] = True
            key = ("literal", str(tensor.dtype), _literal_key(tensor.value))
            number[tensor.index] = root[tensor.index] = seen.setdefault(key, (tensor.index,))[0]
        elif tensor.kind == "constant":
            free[tensor.index] = not tensor.shape
    scalar_inputs = {i for i in program.inputs if not tensors[i].shape}
    for eqn, rule in zip(program.equations, rules, strict=True):
        for t in eqn.operands:
            consumers[t].append(eqn.index)
        operand_numbers = tuple(number[t] for t in eqn.operands)
        is_free = all(free[t] or t in scalar_inputs for t in eqn.operands) and rule.family not in _COSTLY
        if eqn.name in IDENTITY_PRIMITIVES and len(eqn.results) == len(eqn.operands):
            numbers = operand_numbers
        elif eqn.name in (REGION_IN, REGION_OUT):
            numbers = (_boundary_number(eqn, operand_numbers, seen, stacked),)
            is_free = is_free and eqn.params["role"] != "carry"
            if eqn.name == REGION_IN and not tensors[eqn.results[0]].shape:
                scalar_inputs.add(eqn.results[0])  # wherever it is read, it is there
        else:
            numbers = eqn.results
            if not getattr(eqn.origin, "effects", None):
                twins = applied.setdefault((eqn.name, operand_numbers), _Twins(eqn))
                numbers = eqn.results if twins.first is eqn else twins.results_like(eqn)
        for position, t in enumerate(eqn.results):
            producer[t] = eqn.index
            number[t] = numbers[position]
            free[t] = is_free and bool(tensors[t].shape)
            if not tensors[t].shape and is_free:
                scalar_inputs.add(t)
            root[t] = number[t]
        if eqn.name in VIEW_PRIMITIVES:
            root[eqn.results[0]] = root[eqn.operands[0]]
        elif eqn.name in IDENTITY_PRIMITIVES:
            for operand, result in zip(eqn.operands, eqn.results, strict=False):
                root[result] = root[operand]
    return Values(
        number=tuple(number),
        merged=_merged(program, number),
        root=tuple(root),
        free=tuple(free),
        producer=tuple(producer),
        consumers=tuple(map(tuple, consumers)),
    )


def _merged(program: Program, number: Sequence[int]) -> tuple[int, ...]:
    """Value numbers told apart by the last barrier of the backward pass that a value is behind, and by the loop or
    branch that holds it: a slice of a weight is the same in both passes, and each loop gathers its own."""
    barrier = {e: equations.start for equations in backward_barriers(program) for e in equations}
    if not barrier and not program.regions:
        return tuple(number)
    behind, body = [-1] * len(number), [-1] * len(number)
    for eqn in program.equations:
        last = barrier.get(eqn.index, -1)
        if last < 0:
            last = max((behind[t] for t in eqn.operands), default=-1)
        region = eqn.params["region"] if eqn.name == REGION_IN else eqn.region
        for t in eqn.results:
            behind[t], body[t] = last, region
    seen: dict[tuple[int, int, int], int] = {}
    return tuple(seen.setdefault((number[t], behind[t], body[t]), t) for t in range(len(number)))


def _boundary_number(
    eqn: Equation, operands: tuple[int, ...], seen: dict, stacked: dict[tuple[int, int], int]
) -> int:
    """Value number of a value that enters or leaves a region.

    Slices of one operand have the same number in every loop of that length, and a slice of a stacked result has
    that of the stacked value: the trip is the same. A carry is new in every loop.
    """
    role, length, (result,) = eqn.params["role"], eqn.params["length"], eqn.results
    if eqn.name == REGION_OUT:
        if role == "y":
            stacked[result, length] = operands[0]
        return result
    if role == "carry":
        return result
    if role == "x" and (operands[0], length) in stacked:
        return stacked[operands[0], length]
    return seen.setdefault((REGION_IN, role, length, operands[0]), (result,))[0]


def frozen_params(params: Mapping[str, Any], memo: Memo) -> tuple[tuple[str, Any], ...]:
    """Parameters as a hashable part of a key of a memo."""
    return tuple((key, _freeze(params[key], memo)) for key in sorted(params))


def _freeze(value: Any, memo: Memo) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_freeze(v, memo) for v in value)
    if isinstance(value, np.ndarray):
        return (value.shape, str(value.dtype), value.tobytes())
    try:
        hash(value)
    except TypeError:
        return memo.number(value)
    return value


def _literal_key(value: Any) -> Any:
    array = np.asarray(value)
    return (array.shape, array.tobytes())
