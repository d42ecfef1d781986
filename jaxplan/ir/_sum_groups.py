"""Groups of sums: gradients added up, carries that only accumulate, and the views on the way."""

from __future__ import annotations

import jax.numpy as jnp

from jaxplan.ir._coarsening import GroupPass
from jaxplan.ir._program import REGION_OUT, Equation
from jaxplan.ir._values import VIEW_PRIMITIVES

_SCALING_PRIMITIVES = frozenset({"mul", "div", "neg"})
_LINEAR_CHAIN_PRIMITIVES = VIEW_PRIMITIVES | {"slice", "neg"}


class SumGroups(GroupPass):
    """Ways into a group of kind ``sum``; carries are joined with their successors."""

    def run(self) -> None:
        self._carries()
        self._linear_splits()
        self._sum_groups()

    def _carries(self) -> None:
        """A carry enters and leaves a loop in one sharding; one that only accumulates may be a partial sum in it."""
        for eqn in self.program.equations:
            if eqn.name != REGION_OUT or eqn.params["role"] != "carry":
                continue
            entry = self.producer(eqn.operands[0])
            assert entry is not None
            self.union.join(entry.index, eqn.index)
            self.partner[entry.index], self.partner[eqn.index] = eqn.index, entry.index
            added = self._accumulation(entry, eqn)
            for part in (entry, eqn, *added) if added else ():
                self.kind[part.index] = "sum"
                self.union.join(entry.index, part.index)

    def _accumulation(self, entry: Equation, leave: Equation) -> list[Equation]:
        """The additions by which a carry that starts at zero takes up values in each trip, and the equations before."""
        return self._taken_up(entry, leave) if self.is_zero(entry.operands[0]) else []

    def _taken_up(self, entry: Equation, leave: Equation) -> list[Equation]:
        """The same of a carry that starts at any value."""
        carry, out = leave.operands
        added = self._added(carry, out) if self.program.tensors[carry].shape else []
        readers = {e.index for e in added if carry in e.operands}
        if set(self.values.consumers[carry]) != {*readers, leave.index} or len(readers) != 1:
            return []
        return added if self.values.consumers[out] == (leave.index,) else []

    def _added(self, carry: int, out: int) -> list[Equation]:
        """The additions from a carry to its successor, those of loops on the way too, and the equations before."""
        eqn = self.producer(out)
        if eqn is None or (out != carry and len(self.values.consumers[out]) != 1):
            return []
        if eqn.name == REGION_OUT and eqn.params["role"] == "carry":
            entry = self.producer(eqn.operands[0])
            assert entry is not None
            inner, (start,) = self._taken_up(entry, eqn), entry.operands
            before = [] if start == carry else self._added(carry, start)
            return [entry, eqn, *inner, *before] if inner and (before or start == carry) else []
        if self._is_order(eqn):
            before = self._added(carry, eqn.operands[eqn.results.index(out)])
            return [eqn, *before] if before else []
        if eqn.name not in ("add", "add_any") or eqn.operands[0] == eqn.operands[1]:
            return []
        for first, summand in (eqn.operands, eqn.operands[::-1]):
            before = [] if first == carry else self._added(carry, first)
            if before or first == carry:
                return [eqn, *self._linear_chain(summand), *before]
        return []

    def _linear_chain(self, t: int) -> list[Equation]:
        """The casts, slices, views and factors between a contraction and the sum that alone takes them up.

        They may hold partial sums too. Views of the contraction itself stay with it.
        """
        chain: list[Equation] = []
        while len(self.values.consumers[t]) == 1:
            eqn = self.producer(t)
            if eqn is None:
                break
            before = eqn.operands[0] if self._passes_sums(eqn) else self._scaled(eqn)
            if before is None:
                break
            chain.append(eqn)
            t = before
        source = self.producer(t)
        if source is not None and self.is_contraction(source):
            while chain and chain[-1].name in VIEW_PRIMITIVES and self.hands_on(chain[-1]):
                chain.pop()
        return chain

    def _passes_sums(self, eqn: Equation) -> bool:
        """Whether a partial sum passes through as it is: a view, or a sum over dimensions of size 1."""
        adds_nothing = eqn.name == "reduce_sum" and (
            self.program.tensors[eqn.operands[0]].num_elements == self.program.tensors[eqn.results[0]].num_elements
        )
        return (adds_nothing or eqn.name in _LINEAR_CHAIN_PRIMITIVES) and bool(self.rules[eqn.index].linear)

    def _linear_splits(self) -> None:
        """Values taken apart only to be added up piece by piece (gates of a recurrent cell) may be partial sums."""
        for eqn in self.program.equations:
            readers = [c for t in eqn.results for c in self.values.consumers[t]]
            is_linear = eqn.name == "split" and self.rules[eqn.index].linear
            if is_linear and readers and all(self.kind.get(c) == "sum" for c in readers):
                for part in (eqn, *self._linear_chain(eqn.operands[0])):
                    self.kind[part.index] = "sum"
                    self.union.join(eqn.index, part.index)

    def _sum_groups(self) -> None:
        """Chains of additions behind the forward pass with results of contractions as their only summands.

        Those of the update add up gradients of micro-batches, each times a number perhaps, or carries that accumulate
        such results.
        """
        summands: set[int] = set()
        scaled: set[int] = set()  # factors of summands, and views of these
        firsts: set[int] = set()  # a gradient added to zeros: by itself it is that gradient
        for eqn in self.program.equations:
            result = eqn.results[0] if eqn.results else -1
            is_view = eqn.name in VIEW_PRIMITIVES and eqn.operands[0] in summands and self.hands_on(eqn)
            is_handed_on = self._is_order(eqn) and eqn.operands[0] in summands
            is_accumulated = eqn.name == REGION_OUT and self.kind.get(eqn.index) == "sum"
            is_made = (self.is_contraction(eqn) and not self.values.free[result]) or is_accumulated
            source = self.producer(eqn.operands[0]) if is_view else None
            is_scaled = self._is_scaled(eqn, summands) or (source is not None and source.index in scaled)
            if is_scaled:
                scaled.add(eqn.index)
            if is_view or is_handed_on or is_made or is_scaled:
                summands.add(result)
            elif self._adds_gradients(eqn) and all(t in summands or self.is_zero(t) for t in eqn.operands):
                summands.add(result)
                if any(map(self.is_zero, eqn.operands)):
                    firsts.add(eqn.index)
                    continue
                self.kind[eqn.index] = "sum"
                self._join_summands(eqn, firsts, scaled)

    def _join_summands(self, eqn: Equation, firsts: set[int], scaled: set[int]) -> None:
        """Sums that a sum takes up are of its group, and barriers and factors on the way to its summands."""
        for t in eqn.operands:
            producer = self.producer(t)
            if producer is None or self.values.free[t]:
                continue
            is_first = producer.index in firsts and self.kind.get(producer.index) != "sum"
            is_on_the_way = is_first or self._is_order(producer) or producer.index in scaled
            if is_on_the_way or self.kind.get(producer.index) == "sum":
                self.kind[producer.index] = "sum"
                self.union.join(producer.index, eqn.index)
            if is_on_the_way:
                self._join_summands(producer, firsts, scaled)

    def _is_scaled(self, eqn: Equation, summands: set[int]) -> bool:
        """Whether an equation multiplies a summand by a number, divides it by one, or widens it, for one reader."""
        t = eqn.operands[0] if self._widens(eqn) else self._scaled(eqn)
        return t in summands and eqn.phase != "forward" and len(self.values.consumers[eqn.results[0]]) == 1

    def _scaled(self, eqn: Equation) -> int | None:
        """The operand that an equation multiplies by a number or divides by one; None: it does not."""
        if eqn.name not in _SCALING_PRIMITIVES:
            return None
        numbers = [t for t in eqn.operands if self.values.free[t] and not self.program.tensors[t].shape]
        others = [t for t in eqn.operands if t not in numbers]
        is_first = others == [eqn.operands[0]] or eqn.name == "mul"
        return others[0] if len(others) == 1 and is_first else None

    def _widens(self, eqn: Equation) -> bool:
        """Whether an equation casts to a wider floating-point number."""
        if eqn.name != "convert_element_type":
            return False
        narrow, wide = (self.program.tensors[t].dtype for t in (eqn.operands[0], eqn.results[0]))
        is_real = jnp.issubdtype(narrow, jnp.floating) and jnp.issubdtype(wide, jnp.floating)
        return is_real and narrow.itemsize < wide.itemsize

    @staticmethod
    def _is_order(eqn: Equation) -> bool:
        """Whether a barrier makes the next micro-batch wait (`jaxplan.ir._micro_batch_order`)."""
        return eqn.name == "optimization_barrier" and eqn.phase == "update"

    def _adds_gradients(self, eqn: Equation) -> bool:
        if eqn.name == "add_any":
            return True
        return eqn.name == "add" and eqn.phase == "update" and bool(self.program.tensors[eqn.results[0]].shape)
