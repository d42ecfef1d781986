"""Which inputs each value depends on, and which values of a step evolve: state does, a batch does not.

State meets other inputs on its way to its successor: gradients, actions, the next token. A batch that a step returns
normalised or augmented is computed of itself and of random numbers alone, while the loss reads it with the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import jax.numpy as jnp

from jaxplan.core import _compat
from jaxplan.ir._program import REGION_IN, REGION_OUT, Equation, Tensor
from jaxplan.ir._registry import operator_rule


class Dependence:
    """Input positions as bits of an integer, per tensor; the carry of a loop depends on what its last trip returns."""

    def __init__(self, tensors: Sequence[Tensor], equations: Sequence[Equation], inputs: Sequence[int]) -> None:
        self._tensors, self._equations, self._inputs = tensors, equations, inputs

    @cached_property
    def _all(self) -> dict[int, int]:
        return self._propagated(lambda eqn, t: True)

    @cached_property
    def _without_broadcasts(self) -> dict[int, int]:
        """Inputs that reach a value as an array of its own, not repeated along other dimensions: no bias."""
        return self._propagated(lambda eqn, t: not self._is_repeated(eqn, t))

    def _is_repeated(self, eqn: Equation, t: int) -> bool:
        size = self._tensors[eqn.results[0]].num_elements if eqn.results else 0
        if self._tensors[t].num_elements >= size:
            return False
        return eqn.name == "broadcast_in_dim" or self._is_elementwise(eqn)

    def _is_elementwise(self, eqn: Equation) -> bool:
        avals = [self._tensors[t] for t in eqn.operands], [self._tensors[t] for t in eqn.results]
        return operator_rule(eqn.name, *avals, eqn.params).family == "elementwise"

    def _propagated(self, passes: Callable[[Equation, int], bool]) -> dict[int, int]:
        found = {t: 1 << i for i, t in enumerate(self._inputs)}
        entries = {e.results[0]: e.operands[0] for e in self._equations if e.name == REGION_IN}
        while True:
            grown = False
            for eqn in self._equations:
                bits = 0
                for t in eqn.operands:
                    bits |= found.get(t, 0) if passes(eqn, t) else 0
                if eqn.name == REGION_OUT and eqn.params["role"] == "carry":  # the next trip reads it
                    inner = eqn.operands[0]
                    grown |= inner in entries and bool(bits & ~found.get(inner, 0))
                    found[inner] = found.get(inner, 0) | bits
                for t in eqn.results:
                    found[t] = found.get(t, 0) | bits
            if not grown:
                return found

    def of(self, tensor: int) -> int:
        """Inputs that a value depends on."""
        return self._all.get(tensor, 0)

    def is_returned_data(self, leaves: Iterable[int], places: Iterable[int], outputs: Iterable[int]) -> bool:
        """Whether a subtree is data, although it comes back changed at its place.

        Its arrays are computed of itself, scalars and random keys alone, while other outputs are computed of it and of
        other arrays.

        Args:
          leaves: its input positions.
          places: the tensors that are returned in their places.
          outputs: the tensors of all results.
        """
        own, placed = _bits(leaves), set(places)
        arrays = _bits(i for i, t in enumerate(self._inputs) if self._is_numbers(t)) & ~own
        if not any(self._is_numbers(self._inputs[i]) for i in _positions(own)):
            return False
        if any(self.of(t) & arrays for t in placed):
            return False
        return any(self.of(t) & own and self.of(t) & arrays for t in outputs if t not in placed)

    def is_coupled(self, leaves: Sequence[int], places: Sequence[int]) -> bool:
        """Whether two arrays of a subtree are each computed of the other, as positions and velocities are.

        Args:
          leaves: its input positions.
          places: the tensors that are returned in their places.
        """
        depends = {
            i: self.of(t)
            for i, t in zip(leaves, places, strict=True)
            if self._is_numbers(self._inputs[i])
        }
        own = _bits(depends)
        return any(
            depends[j] >> i & 1 for i, bits in depends.items() for j in _positions(bits & own) if i != j
        )

    def meets_data(self, leaf: int, output: int, data: Iterable[int]) -> bool:
        """Whether an output depends on an input that meets other data on the way, element by element or side by side.

        So a hidden state meets the next token in ``h @ w + x @ u`` and in ``concatenate([h, x]) @ w``.
        """
        own, others = 1 << leaf, _bits(data) & ~(1 << leaf)
        if not self.of(output) & own or not self.of(output) & others:
            return False
        leads = self._leading_to(output)
        return any(self._is_meeting(eqn, own, others) for eqn in self._equations if leads & set(eqn.results))

    def _is_meeting(self, eqn: Equation, own: int, others: int) -> bool:
        if len(eqn.operands) < 2 or not (eqn.name == "concatenate" or self._is_elementwise(eqn)):
            return False
        has = [
            0 if self._is_repeated(eqn, t) else self._without_broadcasts.get(t, 0) for t in eqn.operands
        ]
        return any(
            own & mine and others & theirs & ~mine and not self.of(u) & own
            for mine in has
            for u, theirs in zip(eqn.operands, has, strict=True)
        )

    def _leading_to(self, output: int) -> set[int]:
        leads = {output}
        for eqn in reversed(self._equations):
            if leads & set(eqn.results):
                leads.update(eqn.operands)
        return leads

    def _is_numbers(self, t: int) -> bool:
        """Whether an input is an array of numbers: no scalar, random key or count."""
        tensor = self._tensors[t]
        if not tensor.shape or _compat.is_key_dtype(tensor.dtype):
            return False
        return bool(jnp.issubdtype(tensor.dtype, jnp.inexact))


def _bits(positions: Iterable[int]) -> int:
    return sum(1 << i for i in set(positions))


def _positions(bits: int) -> list[int]:
    return [i for i in range(bits.bit_length()) if bits >> i & 1]
