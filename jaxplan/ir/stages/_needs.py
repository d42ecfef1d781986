"""The equations that one stage runs, segment by segment, and the values that it gets from elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from jaxplan.errors import UnsupportedError
from jaxplan.ir.microbatch._pairs import Pair
from jaxplan.ir.stages._cut import Cut

PortKind = Literal["input", "slice", "value", "sum", "late", "result", "whole"]
_LATE_EXAMPLES_MSG = (
    "the step cannot run in stages: after its last gradient it computes with values of single examples.\n"
    "  expected: such values to be results, or to be summed over the batch\n"
    "  fix: stages=False"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Port:
    """A value that enters or leaves the program of a stage.

    Attributes:
      kind: ``input`` of the step, by position; ``slice`` of a value that holds the batch; ``value`` of one
        micro-batch, made in a stage and read in another; ``sum`` over the micro-batches; ``late``: made once, after
        the last micro-batch, in a stage, and read in another; ``whole``: made once for all slices; ``result`` of the
        step, by position.
      number: of the value, or position.
    """

    kind: PortKind
    number: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """One stage before its program is made.

    Attributes:
      once, forward, backward: equations by segment, in program order; ``updates``: by level.
      gets: values that come from elsewhere, in order of first use.
      results: positions of the results of the step that it makes.
      sums: values that slices add to.
    """

    stage: int
    once: tuple[Pair, ...]
    forward: tuple[Pair, ...]
    backward: tuple[Pair, ...]
    updates: tuple[tuple[Pair, ...], ...]
    gets: tuple[Port, ...]
    results: tuple[int, ...]
    sums: tuple[int, ...]


def result_stage(cut: Cut, position: int) -> int | None:
    """The stage that makes a result of the step once; None for arguments, constants, and values of micro-batches."""
    t = cut.step.strata.paired.outputs[position]
    if not isinstance(t, int) or cut.step.is_input(t) or cut.step.values[t].constant is not None:
        return None
    if t in cut.step.in_loop and t not in cut.sums:
        return None
    is_cloned = t in cut.step.made_once or (t in cut.made_after and cut.after_stage[cut.made_after[t]] is None)
    successor = cut.step.program.aliases.get(position)
    return cut.owner[successor] if is_cloned and successor is not None else cut.home(t)


def needs_of(cut: Cut) -> list[Needs]:
    """The equations and arguments of each stage.

    Raises:
      UnsupportedError: the update reads values of single examples.
    """
    return [_Collector(cut, stage).run() for stage in range(cut.num_stages)]


class _Collector:
    def __init__(self, cut: Cut, stage: int) -> None:
        self.cut, self.step, self.stage = cut, cut.step, stage
        self.gets: dict[Port, None] = {}
        self.once: dict[int, Pair] = {}  # first result -> equation

    def run(self) -> Needs:
        step, cut = self.step, self.cut
        mine = [e for e, stage in enumerate(cut.loop_stage) if stage == self.stage]
        forward = self._with_free([e for e in mine if not step.is_backward[e]])
        outputs = step.strata.paired.outputs
        results = [o for o in range(len(outputs)) if result_stage(cut, o) == self.stage]
        free_sums = [e for t, s in cut.sums.items() if s == self.stage for e in [step.in_loop[t]]]
        backward = self._with_free(sorted({e for e in mine if step.is_backward[e]} | set(free_sums) - set(mine)))
        updates = self._updates([outputs[o] for o in results])
        for o in results:
            self._once(outputs[o])
        return Needs(
            stage=self.stage,
            once=tuple(self.once[t] for t in sorted(self.once)),
            forward=tuple(step.loop[e] for e in forward),
            backward=tuple(step.loop[e] for e in backward),
            updates=updates,
            gets=tuple(self.gets),
            results=tuple(results),
            sums=tuple(t for t, stage in cut.sums.items() if stage == self.stage),
        )

    def _with_free(self, equations: Iterable[int]) -> list[int]:
        """Equations of the loop with those that each reader computes by itself, in program order."""
        step, found = self.step, set[int]()
        waiting = list(equations)
        while waiting:
            e = waiting.pop()
            if e in found:
                continue
            found.add(e)
            for t in step.loop[e].operands:
                made_by = step.in_loop.get(t)
                if made_by is not None and self.cut.loop_stage[made_by] is None and t in step.free:
                    waiting.append(made_by)
        order = sorted(found)
        for e in order:
            for t in step.loop[e].operands:
                self._read_in_loop(t)
        return order

    def _read_in_loop(self, t: int) -> None:
        step = self.step
        if t in step.in_loop:
            stage = self.cut.loop_stage[step.in_loop[t]]
            if stage is not None and stage != self.stage:
                self.gets[Port("value", t)] = None
            return
        if step.values[t].dim is not None:
            self.gets[Port("slice", t)] = None
            if not step.is_input(t):
                self._once(t)
        else:
            self._once(t)

    def _once(self, t: object) -> None:
        """A value that is known before the first slice: read as an argument, or computed here."""
        if not isinstance(t, int):
            return
        made_by = self.step.made_once.get(t)
        if made_by is not None:
            if made_by.outputs[0] not in self.once:
                self.once[made_by.outputs[0]] = made_by
                for operand in made_by.operands:
                    self._once(operand)
        elif self.step.is_input(t):
            self.gets[Port("input", t)] = None

    def _updates(self, results: Iterable[object]) -> tuple[tuple[Pair, ...], ...]:
        cut = self.cut
        levels: list[set[int]] = [set() for _ in range(cut.num_levels)]
        for e, where in enumerate(cut.after_stage):
            if where is not None and where[0] == self.stage:
                levels[where[1]].add(e)
        for t in results:
            if isinstance(t, int) and t in cut.made_after and cut.after_stage[cut.made_after[t]] is None:
                levels[0].add(cut.made_after[t])
        known: set[int] = set()
        for level in levels:
            waiting = list(level)
            while waiting:
                for t in cut.after[waiting.pop()].operands:
                    made_by = cut.made_after.get(t)
                    if made_by is None or cut.after_stage[made_by] is not None:
                        continue
                    if made_by not in known and made_by not in level:
                        level.add(made_by)
                        waiting.append(made_by)
            known |= level
            for e in sorted(level):
                for t in cut.after[e].operands:
                    self._read_late(t)
        return tuple(tuple(cut.after[e] for e in sorted(level)) for level in levels)

    def _read_late(self, t: int) -> None:
        cut = self.cut
        if t in cut.made_after:
            where = cut.after_stage[cut.made_after[t]]
            if where is not None and where[0] != self.stage:
                self.gets[Port("late", t)] = None
        elif t in cut.sums:
            if cut.sums[t] != self.stage:
                self.gets[Port("late", t)] = None
        elif t in self.step.in_loop:
            raise UnsupportedError(_LATE_EXAMPLES_MSG)
        else:
            self._once(t)




def sent_of(needs: list[Needs], cut: Cut) -> list[tuple[Port, ...]]:
    """Per stage, the values that it makes for others, and the whole values that it slices for itself."""
    step = cut.step
    stacked = {t for t in step.strata.paired.outputs if isinstance(t, int) and t in step.in_loop and t not in cut.sums}
    found: list[dict[Port, None]] = [{} for _ in needs]
    for of in needs:
        for port in of.gets:
            if port.kind in ("value", "late"):
                found[cut.home(port.number)][port] = None
            elif port.kind == "slice" and not step.is_input(port.number):
                found[of.stage][Port("whole", port.number)] = None
    for t in sorted(stacked):
        found[cut.home(t)][Port("value", t)] = None
    return [tuple(of) for of in found]


