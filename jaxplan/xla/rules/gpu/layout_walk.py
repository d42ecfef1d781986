"""Layouts of values between dots in GPU programs, and the transpositions between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.ir import Equation, StepGraph
from jaxplan.xla._facts import Facts
from jaxplan.xla._storage import Exchange, Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The result of a dot that is transposed where it meets something else.

    Attributes:
      at: the equation where they meet.
      itemsize: bytes of an element of the written array.
      exchange: how it is transposed.
    """

    at: int
    itemsize: int
    exchange: Exchange


def exchange(tensor: int, source: Order, target: Order) -> Exchange:
    """The transposition of a tensor from one order to another; dimensions that stay neighbours are one."""
    runs: list[Order] = []
    for d in source:
        if runs and target[: target.index(d)][-1:] == runs[-1][-1:]:
            runs[-1] = (*runs[-1], d)
        else:
            runs.append((d,))
    before, after = runs[-1], next(run for run in runs if run[-1] == target[-1])
    if before == after:
        before = after = ()
    return Exchange(tensor=tensor, before=before, after=after)


class LayoutWalk:
    """Orders of all values, in program order.

    Attributes:
      wanted: buffer -> order of its dimensions -> dots that read it in that order.
      fixed: results of dots that come in one order -> that order.
      joined: results of dots that are transposed where they meet something else.
      order: layout of results of dots that have one, and of values computed from them.
    """

    def __init__(self, graph: StepGraph, materialised: Sequence[bool], swaps_operands: bool) -> None:
        """``swaps_operands``: as in `Target`."""
        self.wanted: dict[int, dict[Order, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.fixed: dict[int, Order] = {}
        self.joined: dict[int, Joined] = {}
        self.order: dict[int, Order] = {}
        self._graph, self._materialised, self._swaps = graph, materialised, swaps_operands
        self._base: dict[int, tuple[int, Order]] = {}  # the buffer that a view is of, and its dimensions
        self._dot: dict[int, int] = {}  # the result of a dot that a value was computed from alone
        for eqn in graph.program.equations:
            self._visit(eqn)

    def _visit(self, eqn: Equation) -> None:
        family = self._graph.rules[eqn.index].family
        if eqn.name == "dot_general":
            self._visit_dot(eqn)
        elif eqn.name == "transpose":
            self._transpose(eqn)
        elif family == "elementwise" and len(eqn.results) == 1:
            self._visit_elementwise(eqn)

    def _visit_dot(self, eqn: Equation) -> None:
        contracted, batch = eqn.params["dimension_numbers"]
        tensors, (result,) = self._graph.program.tensors, eqn.results
        is_fixed = is_reshaped = False
        is_swapped = self._swaps and self._is_swapped(eqn)
        for side, t in enumerate(eqn.operands):
            shape = tensors[t].shape
            inner, outer = large(shape, contracted[side]), large(shape, batch[side])
            free = large(shape, [d for d in range(len(shape)) if d not in (*contracted[side], *batch[side])])
            order = None
            if max(len(inner), len(free)) > 1:
                order = (*outer, *inner, *free) if side != is_swapped else (*outer, *free, *inner)
            elif _loses_dimensions(shape, batch[side]) and outer == tuple(range(len(outer))):
                order = tuple(sorted((*outer, *inner, *free)))
            if outer and order is not None:
                self._read(t, order, eqn.index)
            is_fixed |= bool(outer) and len(free) > 1
            is_reshaped |= bool(outer) and _loses_dimensions(shape, batch[side])
        if is_fixed or is_reshaped:
            self.order[result] = large(tensors[result].shape, range(len(tensors[result].shape)))
            self._dot[result] = result
        if is_fixed:
            self.fixed[result] = self.order[result]

    def _read(self, t: int, order: Order, dot: int) -> None:
        """Note the order in which a dot reads an operand, in the dimensions of the buffer that it is a view of."""
        base, dims = self._base.get(t, (t, tuple(range(len(self._graph.program.tensors[t].shape)))))
        if self._materialised[base] and self._graph.values.producer[base] >= 0:
            self.wanted[base][tuple(dims[d] for d in order)].append(dot)

    def _is_swapped(self, dot: Equation) -> bool:
        """Whether both operands have one free dimension, and only a transposition of these two reads the result."""
        rank = len(self._graph.program.tensors[dot.results[0]].shape)
        swapped = (*range(rank - 2), rank - 1, rank - 2)
        readers = [self._graph.program.equations[e] for e in self._graph.values.consumers[dot.results[0]]]
        num_batch = len(dot.params["dimension_numbers"][1][0])
        return rank == num_batch + 2 and [tuple(e.params.get("permutation", ())) for e in readers] == [
            swapped
        ]

    def _transpose(self, eqn: Equation) -> None:
        (operand,), (result,) = eqn.operands, eqn.results
        moved = tuple(eqn.params["permutation"])
        if operand in self.order:
            self.order[result] = tuple(moved.index(d) for d in self.order[operand])
        if operand in self._dot:
            self._dot[result] = self._dot[operand]
        base, dims = self._base.get(operand, (operand, tuple(range(len(moved)))))
        if not self._materialised[result]:
            self._base[result] = base, tuple(dims[d] for d in moved)

    def _visit_elementwise(self, eqn: Equation) -> None:
        tensors, (result,) = self._graph.program.tensors, eqn.results
        whole = [t for t in eqn.operands if tensors[t].shape == tensors[result].shape and t in self.order]
        if not whole:
            return
        # The earliest layout stays: a value that is saved for the backward pass is not transposed again.
        first = min(whole, key=lambda t: self._made(t))
        order = self.order[result] = self.order[first]
        for t in whole:
            if self.order[t] != order and t in self._dot and order != tuple(sorted(order)):
                known = self.joined.get(self._dot[t])
                self.joined[self._dot[t]] = Joined(
                    at=known.at if known else eqn.index,
                    itemsize=max(known.itemsize if known else 0, tensors[t].itemsize),
                    exchange=known.exchange if known else exchange(t, self.order[t], order),
                )
        if first in self._dot and len({self._dot.get(t) for t in whole}) == 1:
            self._dot[result] = self._dot[first]

    def _made(self, t: int) -> int:
        return self._graph.values.producer[self._dot.get(t, t)]


def _loses_dimensions(shape: Sequence[int], batch: Sequence[int]) -> bool:
    """Whether a free or contracted dimension has one element: the compiler removes it in front of the dot, and restores
    it behind, by reshapes that read and write the order of the program."""
    return any(size == 1 and d not in batch for d, size in enumerate(shape))


def large(shape: Sequence[int], dims: Sequence[int]) -> Order:
    """Those of more than one element: the others are no dimensions to the compiler."""
    return tuple(d for d in dims if shape[d] > 1)


def layouts_of(facts: Facts) -> LayoutWalk:
    """The layouts of a step, found once for all rules."""
    if LayoutWalk not in facts.shared:
        facts.shared[LayoutWalk] = LayoutWalk(facts.graph, facts.written, facts.target.swaps_operands)
    return facts.shared[LayoutWalk]
