"""Micro-batches of a loop of Python run one after the other, as those of a loop do.

The compiler sees independent micro-batches and one sum of their gradients at the end. It was seen to run the forward
passes of several first, and to make the gradients of all before it adds them up. So here the equations are sorted by
the last micro-batch that they are computed of, each sum as early as its summands allow, and a barrier stands in front
of every micro-batch but the first: its part of the batch waits for all values that are kept of the earlier ones.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jax

from jaxplan.core import _compat
from jaxplan.ir._arrangement import is_element
from jaxplan.ir._micro_batches import CUT
from jaxplan.ir._program import Equation, Phase, Program, Region, Tensor

_VIEWS = frozenset({CUT, "reshape", "transpose", "squeeze", "expand_dims"})


def one_after_another(program: Program) -> Program:
    """The program with the micro-batches that are read by their numbers in order; itself where there are none."""
    cuts = {eqn.results[0] for eqn in program.equations if eqn.name == CUT}
    elements = [eqn for eqn in program.equations if is_element(program, eqn) and eqn.operands[0] in cuts]
    for level in sorted({eqn.region for eqn in elements}, reverse=True):
        here = [eqn for eqn in elements if eqn.region == level]
        if len({program.tensors[eqn.operands[0]].shape[0] for eqn in here}) == 1:
            return _ordered(program, level, {eqn.index: int(eqn.params["start_indices"][0]) for eqn in here})
    return program


def _ordered(program: Program, level: int, numbers: Mapping[int, int]) -> Program:
    """Micro-batches of one body in order.

    Args:
      level: the region of the body, -1 for the step itself.
      numbers: equation that reads a micro-batch -> its number.
    """
    inside = range(len(program.equations)) if level < 0 else _body(program, level, next(iter(numbers)))
    units = _units(program, level, inside)
    turns = {number: turn for turn, number in enumerate(_turns(program, inside, numbers))}
    stages, kept = _stages(program, units, {e: turns[number] for e, number in numbers.items()})
    order = _Order(program=program, inside=inside, readers=frozenset(numbers), kept=kept)
    order.put(range(inside.start))
    for stage in range(len(turns)):
        now = [unit for unit, of in zip(units, stages, strict=True) if of == stage]
        later = [unit for unit, of in zip(units, stages, strict=True) if of >= stage]
        readers = [unit.start for unit in now if unit.start in numbers] if stage else []
        if readers:
            order.wait(readers, later)
        for unit in now:
            if unit.start not in readers:
                order.put(unit)
    order.put(range(inside.stop, len(program.equations)))
    return order.done()


def _turns(program: Program, inside: range, numbers: Mapping[int, int]) -> list[int]:
    """The micro-batches in the order in which their largest results are added up: no more than one waits beside the
    sum. A differentiated sum of losses adds up gradients from the last one on."""
    of: dict[int, frozenset[int]] = {}  # tensor -> micro-batches that it is computed of
    sums: dict[int, list[frozenset[int]]] = {}  # bytes -> those of results of several
    for eqn in (program.equations[e] for e in inside):
        own = frozenset([numbers[eqn.index]] if eqn.index in numbers else ())
        operands = [of[t] for t in eqn.operands if t in of]
        of.update(dict.fromkeys(eqn.results, own.union(*operands)))
        if eqn.results and len(of[eqn.results[0]]) > max(map(len, operands), default=1):
            sums.setdefault(program.tensors[eqn.results[0]].num_bytes, []).append(of[eqn.results[0]])
    read = list(dict.fromkeys(numbers[e] for e in sorted(numbers)))
    added = [number for found in sums[max(sums)] for number in read if number in found] if sums else []
    return list(dict.fromkeys([*added, *read]))


def _body(program: Program, level: int, equation: int) -> range:
    return next(range(a, b) for a, b in program.regions[level].ranges if a <= equation < b)


def _units(program: Program, level: int, inside: range) -> list[range]:
    """The equations of a body; those of a loop or branch inside of it stay together."""
    inner = {r.start: r.stop for r in program.regions if r.parent == level and r.start in inside}
    units: list[range] = []
    e = inside.start
    while e < inside.stop:
        units.append(range(e, inner.get(e, e + 1)))
        e = units[-1].stop
    return units


def _stages(
    program: Program, units: Sequence[range], turns: Mapping[int, int]
) -> tuple[list[int], frozenset[int]]:
    """Per unit the turn of the last micro-batch that it is computed of; of those that are computed of none, the
    first turn at which they are read. And the tensors that are computed of any."""
    of: dict[int, int] = {}  # tensor -> turn
    stages: list[int] = []
    read_by = [_read(program, unit) for unit in units]
    for unit, operands in zip(units, read_by, strict=True):
        turn = max([*(turns.get(e, -1) for e in unit), *(of.get(t, -1) for t in operands)])
        of.update((t, turn) for e in unit for t in program.equations[e].results)
        stages.append(turn)
    last, wanted = max(turns.values()), dict[int, int]()  # tensor -> first turn at which it is read
    for i in reversed(range(len(units))):
        eqns = [program.equations[e] for e in units[i]]
        if stages[i] < 0:
            has_effect = any(getattr(eqn.origin, "effects", None) for eqn in eqns)
            read = [wanted.get(t, last) for eqn in eqns for t in eqn.results]
            stages[i] = 0 if has_effect else min(read, default=last)
        for t in read_by[i]:
            wanted[t] = min(wanted.get(t, last), stages[i])
    return stages, frozenset(t for t, turn in of.items() if turn >= 0)


def _read(program: Program, unit: range) -> list[int]:
    """The tensors that equations read, and those that pick their branches."""
    picked = [r.selector for r in program.regions if r.selector is not None and r.start in unit]
    return [*(t for e in unit for t in program.equations[e].operands), *picked]


@dataclass(kw_only=True)
class _Order:
    """The equations of a program in a new order.

    Attributes:
      inside: the equations of the body that is ordered.
      readers: equations that read micro-batches by their numbers.
      kept: values that are computed of micro-batches.
      names: tensor -> the equal one behind the last barrier.
      places: equation -> its new place.
    """

    program: Program
    inside: range
    readers: frozenset[int]
    kept: frozenset[int]
    tensors: list[Tensor] = field(init=False)
    makers: dict[int, Equation] = field(init=False)
    equations: list[Equation] = field(default_factory=list)
    names: dict[int, int] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = list(self.program.tensors)
        self.makers = {t: eqn for eqn in self.program.equations for t in eqn.results}

    def put(self, unit: range) -> None:
        for e in unit:
            eqn = self.program.equations[e]
            operands = tuple([self.names.get(t, t) for t in eqn.operands])
            self.places[e] = len(self.equations)
            self.equations.append(eqn.at(len(self.equations), operands, eqn.results))

    def wait(self, readers: Sequence[int], later: Sequence[range]) -> None:
        """A barrier in front of equations: the micro-batches that ``readers`` read wait for all that is kept of those
        before. An argument waits itself, as it is in memory anyway; of others only the part that is read."""
        program = self.program
        views = {e: self._views(e) for e in readers}
        made = {t for e in self.places for t in program.equations[e].results} & self.kept
        for e in readers:
            if not views[e]:
                self.put(range(e, e + 1))
        waiting = [views[e][0].operands[0] if views[e] else program.equations[e].results[0] for e in readers]
        behind = [*later, range(self.inside.stop, len(program.equations))]
        reads = dict.fromkeys(t for unit in behind for e in unit for t in program.equations[e].operands)
        origin = _compat.fresh_equation(program.equations[readers[0]].origin)
        for t in dict.fromkeys(waiting):
            self.names.pop(t, None)  # the array itself, so that no barrier waits for a part of another
            self._pass(t, origin, "forward")
        for t in reads:
            if t in made and t not in waiting:
                self._pass(t, origin, "update")
        for eqn in dict.fromkeys(eqn.index for e in readers for eqn in views[e]):
            self._again(program.equations[eqn])
        for e in readers:
            if views[e]:
                self.put(range(e, e + 1))

    def _views(self, e: int) -> list[Equation]:
        """The equations from an argument to the micro-batches that an equation reads; none where others than views
        are among them."""
        found: list[Equation] = []
        t = self.program.equations[e].operands[0]
        while t not in self.program.given:
            made_by = self.makers.get(t)
            if made_by is None or made_by.name not in _VIEWS:
                return []
            found.insert(0, made_by)
            t = made_by.operands[0]
        return found

    def _again(self, eqn: Equation) -> None:
        """A view of an argument, behind a barrier."""
        operands = tuple([self.names.get(t, t) for t in eqn.operands])
        result = self._like(eqn.results[0])
        self.equations.append(eqn.at(len(self.equations), operands, (result,)))
        self.names[eqn.results[0]] = result

    def _like(self, t: int) -> int:
        """A new tensor like another."""
        index = len(self.tensors)
        self.tensors.append(dataclasses.replace(self.program.tensors[t], index=index, kind="computed", path=""))
        return index

    def _pass(self, t: int, origin: object, phase: Phase) -> None:
        """One equation of a barrier."""
        result = self._like(t)
        reader = self.program.equations[min(self.readers)]
        self.equations.append(
            Equation(
                index=len(self.equations),
                primitive=jax.lax.optimization_barrier_p,
                params={},
                operands=(self.names.get(t, t),),
                results=(result,),
                name_stack=reader.name_stack,
                phase=phase,
                origin=origin,
                region=reader.region,
            )
        )
        self.names[t] = result

    def done(self) -> Program:
        added = len(self.equations) - len(self.program.equations)

        def end(stop: int, is_inside: bool) -> int:
            """The place behind the last equation of a range."""
            return self.places[stop - 1] + 1 if is_inside else stop if stop <= self.inside.start else stop + added

        regions: list[Region] = []
        for region in self.program.regions:
            is_inside = self.inside.start <= region.start and region.stop <= self.inside.stop
            regions.append(
                dataclasses.replace(
                    region,
                    start=self.places[region.start],
                    stop=end(region.stop, is_inside),
                    entries=tuple(tuple(self.places[e] for e in body) for body in region.entries),
                    exits=tuple(self.places[e] for e in region.exits),
                    ranges=tuple((self.places[a], end(b, is_inside)) for a, b in region.ranges),
                )
            )
        return dataclasses.replace(
            self.program,
            tensors=tuple(self.tensors),
            equations=tuple(self.equations),
            regions=tuple(regions),
            fingerprint=hashlib.sha256(f"{self.program.fingerprint} in order".encode()).hexdigest(),
        )
