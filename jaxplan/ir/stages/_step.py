"""A step as a pipeline sees it: one pass over a slice of the batch, and equations that run once, before or after.

The pass is the loop of `jaxplan.ir.microbatch`: its forward equations in program order, which are cut into stages, and
its backward equations, each of which goes where its operands are. Values that need neither state nor the results of a
dot (masks, positions, one-hot labels) are computed anew in each stage that reads them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from jaxplan.core import _compat
from jaxplan.errors import UnsupportedError
from jaxplan.ir._count_registry import operator_count
from jaxplan.ir._program import MicroBatches, Program
from jaxplan.ir._registry import operator_rule
from jaxplan.ir.microbatch import Strata
from jaxplan.ir.microbatch._pairs import Pair, Value, inner_jaxprs

SMALL_ELEMENTS = 8
"""A value of at most so many elements (a counter, a key, a rate) is copied wherever it is read."""
_HEAVY = frozenset({"dot_general", "conv_general_dilated", "ragged_dot", "sort", "custom_call", "ffi_call"})
"""Operators that no second stage recomputes."""
_MOST_CROSSING = 1.25
"""Places that send so many times the bytes of a good one are no ends of blocks."""
_MANY_LOOPS_MSG = (
    "the step cannot run in stages: examples depend on sums over the whole batch (batch norm, a contrastive or a "
    "load-balancing loss), so the batch passes through the model {loops} times.\n"
    "  expected: examples that meet in sums at the end alone, those of the loss and of gradients\n"
    "  fix: stages=False, or compute that part per micro-batch in the model"
)
_NO_BACKWARD_MSG = (
    "the step cannot run in stages: no backward pass was found in it.\n"
    "  expected: a train step, which computes gradients of a loss\n"
    "  fix: stages=False"
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PipelineStep:
    """A step in micro-batches, before it is cut.

    Numbers of values are those of `strata.paired`, the inputs of the step first.

    Attributes:
      program: the step as it was traced.
      microbatches: the slices of its batch.
      strata: its equations, in one loop and around it.
    """

    program: Program
    microbatches: MicroBatches
    strata: Strata

    @property
    def values(self) -> list[Value]:
        return self.strata.paired.values

    @property
    def loop(self) -> tuple[Pair, ...]:
        """The equations of one pass over a slice, in program order."""
        return self.strata.loops[0].equations

    @cached_property
    def once(self) -> tuple[Pair, ...]:
        """The equations that run once, before the first slice."""
        found = [*self.strata.between[0], *self.strata.whole]
        return tuple(sorted(found, key=lambda eqn: eqn.outputs))

    @cached_property
    def made_once(self) -> dict[int, Pair]:
        return {t: eqn for eqn in self.once for t in eqn.outputs}

    @cached_property
    def in_loop(self) -> dict[int, int]:
        """Value -> the equation of the loop that makes it."""
        return {t: e for e, eqn in enumerate(self.loop) for t in eqn.outputs}

    def num_bytes(self, t: int) -> int:
        """Bytes of a value, of one slice where it carries the batch."""
        aval = self.values[t].small
        return math.prod(aval.shape) * _compat.itemsize(aval.dtype)

    def is_small(self, t: int) -> bool:
        return math.prod(self.values[t].aval.shape) <= SMALL_ELEMENTS

    def is_input(self, t: int) -> bool:
        return t < len(self.program.inputs)

    @cached_property
    def roots(self) -> dict[int, frozenset[int]]:
        """Value that is known before the first slice -> the large inputs without a batch that it is computed of."""
        found: dict[int, frozenset[int]] = {}
        for t, value in enumerate(self.values):
            if self.is_input(t):
                found[t] = frozenset() if value.dim is not None or self.is_small(t) else frozenset({t})
            elif value.constant is not None:
                found[t] = frozenset()
        for eqn in self.once:
            of = frozenset().union(*(found[t] for t in eqn.operands))
            found.update(dict.fromkeys(eqn.outputs, of))
        return found

    @cached_property
    def free(self) -> frozenset[int]:
        """Values that every stage can compute by itself: of neither state nor the results of a dot or a loop."""
        found = {t for t, of in self.roots.items() if not of}
        for eqn in self.loop:
            is_light = eqn.full.primitive.name not in _HEAVY and not any(inner_jaxprs(eqn.full.params))
            if is_light and not eqn.full.effects and all(t in found for t in eqn.operands):
                found.update(eqn.outputs)
        return frozenset(found)

    @cached_property
    def is_backward(self) -> tuple[bool, ...]:
        """Per equation of the loop."""
        after: set[int] = set()
        flags = []
        for eqn in self.loop:
            flags.append("transpose(" in eqn.stack or any(t in after for t in eqn.operands))
            if flags[-1]:
                after.update(eqn.outputs)
        return tuple(flags)

    @cached_property
    def forward(self) -> tuple[int, ...]:
        """The forward equations of the loop that are cut into stages."""
        return tuple(
            e
            for e, eqn in enumerate(self.loop)
            if not self.is_backward[e] and not all(t in self.free for t in eqn.outputs)
        )

    @cached_property
    def crossing_bytes(self) -> tuple[int, ...]:
        """Per place in `forward`, and behind the last: bytes of one slice made before it and read from there on."""
        place = {e: p for p, e in enumerate(self.forward)}
        change = [0] * (len(self.forward) + 2)
        last: dict[int, int] = {}
        for p, e in enumerate(self.forward):
            for t in self.loop[e].operands:
                if self.in_loop.get(t) in place:
                    last[t] = p
        for t, p in last.items():
            change[place[self.in_loop[t]] + 1] += self.num_bytes(t)
            change[p + 1] -= self.num_bytes(t)
        total, found = 0, []
        for more in change[:-1]:
            total += more
            found.append(total)
        return tuple(found)

    @cached_property
    def flops(self) -> tuple[float, ...]:
        """Per place in `forward`: FLOPs of one slice."""
        return tuple(_flops(self.loop[e].small) for e in self.forward)


def pipeline_step(program: Program, microbatches: MicroBatches) -> PipelineStep:
    """A step in micro-batches.

    Raises:
      NotSeparableError: examples are not independent; names the line.
      UnsupportedError: they depend on sums over the batch, or there is no backward pass.
    """
    assert program.source is not None
    strata = program.source.strata(microbatches)
    if len(strata.loops) > 1:
        raise UnsupportedError(_MANY_LOOPS_MSG.format(loops=len(strata.loops)))
    step = PipelineStep(program=program, microbatches=microbatches, strata=strata)
    if not any(step.is_backward) or not step.forward:
        raise UnsupportedError(_NO_BACKWARD_MSG)
    return step


def _flops(eqn: Any) -> float:
    """Floating-point operations of an equation, those of loops times their trips."""
    inner = [jaxpr for _, jaxpr in inner_jaxprs(eqn.params)]
    if inner:
        trips = eqn.params.get("length", 1)
        return trips * sum(_flops(of) for jaxpr in inner for of in _equations(jaxpr))
    ins, outs = [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars]
    rule = operator_rule(eqn.primitive.name, ins, outs, eqn.params)
    count = operator_count(eqn.primitive.name, ins, outs, eqn.params, rule)
    return 0.0 if count is None else count.flops


def _equations(jaxpr: Any) -> Iterator[Any]:
    yield from _compat.open_jaxpr(jaxpr)[0].eqns


def cut_places(step: PipelineStep) -> Sequence[int]:
    """Places in `PipelineStep.forward` where a stage may begin.

    Between two dots that is the place where the fewest bytes cross, the last of several; of these, places count that
    send little more than the first quarter of them, in order of bytes, does.
    """
    crossing, best = step.crossing_bytes, list[int]()
    done = 0.0
    for p in range(1, len(step.forward)):
        works = step.loop[step.forward[p - 1]].full.primitive.name in _HEAVY or step.flops[p - 1] > done / 100
        done += step.flops[p - 1]
        if works or not best:
            best.append(p)
        elif crossing[p] <= crossing[best[-1]]:
            best[-1] = p
    if not best:
        return []
    quarter = sorted(crossing[p] for p in best)[len(best) // 4]
    return [p for p in best if crossing[p] <= _MOST_CROSSING * quarter]
