"""Which equations of a step run inside of a loop over slices of the batch, and in which loop.

A sum over the batch is complete after the loop that adds it up. Values that need complete sums for each example (a mean
that depends on the data, statistics of a normalisation) run in the next loop, which recomputes its operands of
earlier ones. The *stratum* of a value is the number of loops that must be over before it can be computed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from jaxplan.ir.microbatch._flow import UNIFORM, Flow, atom_flow, batch_factor, flow_of, outer_size
from jaxplan.ir.microbatch._pairs import Atom, NotSeparableError, Pair, Paired, inner_jaxprs, not_separable

MOST_LOOPS = 6
"""Loops over the batch at most: each further one computes the forward pass again."""
_ADDED_INSIDE = frozenset({"add", "add_any", "transpose"})
"""Sums of slices before they are added up: two sums become one, in the form in which they are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strata:
    """Where each equation runs.

    Attributes:
      paired: the step.
      loops: per loop, its equations in program order, sums that it makes and values per example that others need.
      between: per stratum, the equations that run once, before the loop of that number; one more after the last.
      whole: equations that make, once and for the whole batch, values that loops read in slices.
    """

    paired: Paired
    loops: tuple[Loop, ...]
    between: tuple[tuple[Pair, ...], ...]
    whole: tuple[Pair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One loop over slices.

    Attributes:
      equations: in program order.
      sums: numbers of the values that slices add to.
      same: numbers of the values that every slice makes alike, such as the counter of an inner loop.
      stacked: numbers of values per example that are needed as a whole.
      sliced: numbers of values of the whole batch that it reads in slices.
    """

    equations: tuple[Pair, ...]
    sums: tuple[int, ...]
    same: tuple[int, ...]
    stacked: tuple[int, ...]
    sliced: tuple[int, ...]


class _Sorter:
    """Sorts the equations of a step into loops and the equations between them."""

    def __init__(self, paired: Paired, batch: frozenset[int]) -> None:
        self.paired, self.batch = paired, batch
        number = len(paired.values)
        self.flow: list[Flow] = [Flow.SAME] * number
        self.stratum = [0] * number
        self.of_data = [False] * number  # computed of the batch that the step was given
        self.maker: dict[int, Pair] = {}
        self.in_loop: dict[int, int] = {}  # position of an equation -> its loop
        self.once: dict[int, int] = {}  # position of an equation -> stratum in which it runs once
        self.whole: set[int] = set()  # positions of equations that make whole values for loops to slice
        self.partial: dict[int, int] = {}  # a sum that a loop makes -> that loop
        self.uses = Counter(t for eqn in paired.equations for t in eqn.operands)
        self.uses.update(t for t in paired.outputs if isinstance(t, int))
        for i, value in enumerate(paired.values):
            if value.dim is not None:
                self.flow[i], self.of_data[i] = Flow.EACH, i in batch

    def sort(self) -> None:
        for position, eqn in enumerate(self.paired.equations):
            self.maker.update(dict.fromkeys(eqn.outputs, eqn))
            if any(self._dim(t) is not None for t in (*eqn.operands, *eqn.outputs)):
                self._place_batched(position, eqn)
            elif not self._is_added_inside(position, eqn):
                self._place_once(position, eqn)

    def _dim(self, t: int) -> int | None:
        return self.paired.values[t].dim

    def _atom(self, atom: Atom) -> Flow:
        """A complete sum is the same for every slice."""
        if not isinstance(atom, int):
            return atom_flow(atom)
        return Flow.SAME if self.flow[atom] is Flow.SUM else self.flow[atom]

    def _place_batched(self, position: int, eqn: Pair) -> None:
        stratum = max((self.stratum[t] for t in eqn.operands), default=0)
        of_data = any(self.of_data[t] for t in eqn.operands)
        is_made = not of_data and not any(self._dim(t) is not None for t in eqn.operands)
        if is_made and eqn.full.primitive.name not in UNIFORM:
            return self._make_whole(position, eqn, stratum)
        try:
            found = flow_of(eqn.full, eqn.small, [self._atom(atom) for atom in eqn.inputs])
        except NotSeparableError:
            if of_data:
                raise
            return self._make_whole(position, eqn, stratum)
        if stratum >= MOST_LOOPS:
            raise not_separable(
                f"examples depend on sums over the batch, which depend on others, more than {MOST_LOOPS} deep", eqn.full
            )
        added = self._added_to_sums(eqn) if Flow.MIXED in found else None
        found, stratum = added or (found, stratum)
        self.in_loop[position] = stratum
        for t, flow in zip(eqn.outputs, found, strict=True):
            self.of_data[t] = of_data
            if self._dim(t) is not None:
                self.flow[t], self.stratum[t] = Flow.EACH, stratum
            elif flow in (Flow.SUM, Flow.ZERO, Flow.SAME):
                is_sum = flow is Flow.SUM
                self.flow[t], self.stratum[t] = (Flow.SUM, stratum + 1) if is_sum else (flow, stratum + 1)
                self.partial[t] = stratum if is_sum else -1 - stratum
            else:
                raise not_separable("it uses a sum over the batch before it is complete", eqn.full)

    def _added_to_sums(self, eqn: Pair) -> tuple[list[Flow], int] | None:
        """The roles of results, and the loop, of an equation that goes on with sums that nothing else reads.

        Gradients that one loop over layers has added up are where the next begins: each slice adds its own there.
        """
        held = [t for t in eqn.operands if self.flow[t] is Flow.SUM and self.partial.get(t, -1) >= 0]
        loops = {self.partial[t] for t in held}
        if len(loops) != 1 or any(self.uses[t] > 1 for t in held):
            return None
        (loop,) = loops
        if any(self.stratum[t] > loop for t in eqn.operands if t not in held):
            return None
        inside = [Flow.SUM if isinstance(atom, int) and atom in held else self._atom(atom) for atom in eqn.inputs]
        return flow_of(eqn.full, eqn.small, inside), loop

    def _make_whole(self, position: int, eqn: Pair, stratum: int) -> None:
        """Values along the batch that are not computed of examples (positions, random bits): made once, as a whole."""
        self.whole.add(position)
        for t in eqn.outputs:
            self.flow[t] = Flow.EACH if self._dim(t) is not None else Flow.SAME
            self.stratum[t] = stratum
        for t in eqn.operands:
            if self._dim(t) is not None and t in self.maker:
                self._also_whole(t)

    def _also_whole(self, t: int) -> None:
        """An operand of a whole value is needed as a whole, wherever else it is computed."""
        eqn = self.maker[t]
        position = self.paired.equations.index(eqn)
        if position not in self.whole:
            self.whole.add(position)
            for other in eqn.operands:
                if self._dim(other) is not None and other in self.maker:
                    self._also_whole(other)

    def _is_added_inside(self, position: int, eqn: Pair) -> bool:
        """Whether it adds or transposes sums that nothing else reads: then slices add up its result instead."""
        if eqn.full.primitive.name not in _ADDED_INSIDE:
            return False
        held = [t for t in eqn.operands if self.flow[t] is Flow.SUM and self.partial.get(t, -1) >= 0]
        if not held or any(self.uses[t] > 1 for t in held) or len({self.partial[t] for t in held}) > 1:
            return False
        operands = [
            Flow.SUM if isinstance(atom, int) and atom in held else self._atom(atom) for atom in eqn.inputs
        ]
        loop = self.partial[held[0]]
        if any(self.stratum[t] > loop for t in eqn.operands if t not in held):
            return False
        found = flow_of(eqn.full, eqn.small, operands)
        size = sum(self.paired.values[t].aval.size for t in held)
        if any(of is not Flow.SUM for of in found) or sum(self.paired.values[t].aval.size for t in eqn.outputs) > size:
            return False
        self.in_loop[position] = loop
        for t in eqn.outputs:
            self.flow[t], self.stratum[t], self.partial[t] = Flow.SUM, loop + 1, loop
        return True

    def _place_once(self, position: int, eqn: Pair) -> None:
        stratum = max((self.stratum[t] for t in eqn.operands), default=0)
        self.once[position] = stratum
        found = flow_of(eqn.full, eqn.small, [self._atom(atom) for atom in eqn.inputs])
        for t, flow in zip(eqn.outputs, found, strict=True):
            self.flow[t], self.stratum[t] = flow, stratum


def strata_of(paired: Paired, batch: frozenset[int]) -> Strata:
    """Sort the equations of a step.

    Args:
      batch: numbers of the inputs that hold examples.

    Raises:
      NotSeparableError: with the line that mixes examples.
    """
    sorter = _Sorter(paired, batch)
    sorter.sort()
    equations = paired.equations
    num_loops = 1 + max(sorter.in_loop.values(), default=-1)
    wanted = _wanted(sorter, num_loops)
    loops = tuple(_loop(sorter, number, wanted) for number in range(num_loops))
    between = tuple(
        tuple(equations[p] for p in sorted(sorter.once) if sorter.once[p] == stratum)
        for stratum in range(num_loops + 1)
    )
    return Strata(
        paired=paired,
        loops=loops,
        between=between,
        whole=tuple(equations[p] for p in sorted(sorter.whole)),
    )


def _wanted(sorter: _Sorter, num_loops: int) -> frozenset[int]:
    """Values that are needed outside of the loop that makes them."""
    equations = sorter.paired.equations
    wanted = {t for t in sorter.paired.outputs if isinstance(t, int)}
    for p in sorter.once:
        wanted.update(equations[p].operands)
    for p, loop in sorter.in_loop.items():
        wanted.update(t for t in equations[p].operands if sorter.partial.get(t, loop) not in (loop, -1 - loop))
    for p in sorter.whole:
        wanted.update(t for t in equations[p].operands if sorter.paired.values[t].dim is None)
    return frozenset(wanted)


def _loop(sorter: _Sorter, number: int, wanted: frozenset[int]) -> Loop:
    """The equations of one loop: those that its results need, of earlier loops too where they are per example."""
    equations, values = sorter.paired.equations, sorter.paired.values
    mine = [p for p in sorted(sorter.in_loop) if sorter.in_loop[p] == number]
    results = [t for p in mine for t in equations[p].outputs if t in wanted]
    made_by = {t: p for p in sorter.in_loop for t in equations[p].outputs}
    needed: set[int] = set()
    waiting = [made_by[t] for t in results]
    sliced: set[int] = set()
    while waiting:
        p = waiting.pop()
        if p in needed:
            continue
        needed.add(p)
        for t in equations[p].operands:
            inside = t in made_by and (values[t].dim is not None or sorter.partial.get(t) in (number, -1 - number))
            if inside:
                waiting.append(made_by[t])
            elif values[t].dim is not None:
                sliced.add(t)
    return Loop(
        equations=tuple(equations[p] for p in sorted(needed)),
        sums=tuple(t for t in results if values[t].dim is None and sorter.partial[t] >= 0),
        same=tuple(t for t in results if values[t].dim is None and sorter.partial[t] < 0),
        stacked=tuple(t for t in results if values[t].dim is not None),
        sliced=tuple(sorted(sliced)),
    )


def batch_outer(strata: Strata, t: int) -> int:
    """Elements outside of the batch in the dimension of a value that carries it."""
    maker = next((eqn for eqn in strata.paired.equations if t in eqn.outputs), None)
    if maker is None or any(True for _ in inner_jaxprs(maker.full.params)):
        return 1
    if batch_factor(maker.full, maker.small) is None:
        return 1
    return outer_size(maker.full, maker.small, maker.outputs.index(t))
