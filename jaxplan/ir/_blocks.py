"""Repeated blocks of the forward pass: the units that rematerialisation keeps or recomputes.

A block is a run of equations that comes again and again in the forward pass with equal operators, parameters and shapes
(the layers of a transformer, the residual blocks of one stage of a ResNet). Where a block begins within its period is
chosen so that the fewest bytes cross from one to the next: a recomputed block keeps just these.

A step whose loop holds a forward and a backward pass (micro-batches) has its blocks in the body of that loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.ir._grouping import CONTRACTION_FAMILIES
from jaxplan.ir._program import Equation, Program, RematPolicy
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._values import Values, frozen_params

LEAST_INTENSITY = 0.5
"""A contraction is kept when it takes at least this share of the block's mean FLOPs for each element of its result:
attention scores, large and cheap, are not."""
LEAST_EQUATIONS = 2
"""A shorter run of equations is no block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remat:
    """The part of the forward pass that the backward pass recomputes, by repeated blocks in their order.

    Attributes:
      num_all: the first blocks: only their operands are kept.
      num_contractions: the next blocks: results of contractions and convolutions are kept too, and the operators
        between them are recomputed.
      of: number of blocks; the remaining ones keep their residuals.
    """

    num_all: int = 0
    num_contractions: int = 0
    of: int

    def __post_init__(self) -> None:
        if (
            min(self.num_all, self.num_contractions) < 0
            or not 0 < self.num_all + self.num_contractions <= self.of
        ):
            raise ValueError(
                f"expected some of {self.of} blocks, got {self.num_all} and {self.num_contractions}"
            )

    @property
    def policies(self) -> tuple[RematPolicy, ...]:
        """The policy of each block that is recomputed, at least in part."""
        return ("all",) * self.num_all + ("contractions",) * self.num_contractions

    def __str__(self) -> str:
        """Such as ``recomputes 12 of 24 blocks, 12 but contractions``."""
        parts = [f"{self.num_all} of {self.of} blocks"] if self.num_all else []
        if self.num_contractions:
            whole = "" if parts else f" of {self.of} blocks"
            parts.append(f"{self.num_contractions}{whole} but contractions")
        return "recomputes " + ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """A forward and a backward pass: equations ``start`` to ``stop`` (exclusive).

    Attributes:
      region: the loop that has them as its body, -1 outside of all.
      turning: the first equation of the backward pass; ``stop`` when there is none.
    """

    region: int
    start: int
    turning: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Equations ``start`` to ``stop`` (exclusive) of the forward pass.

    Attributes:
      kind: blocks of one kind have equal operators and shapes; kinds are numbered in order of appearance.
      passes: the forward pass that it is a part of, and the backward pass behind that.
    """

    start: int
    stop: int
    kind: int
    passes: Passes


def turning_point(program: Program) -> int:
    """Index of the first backward equation; the number of equations when there is none."""
    return next((e.index for e in program.equations if e.phase == "backward"), len(program.equations))


def find_passes(program: Program) -> tuple[Passes, ...]:
    """Where the step computes forward and backward, in program order: outside of all loops, or in bodies of loops.

    The passes outside are left out where the first backward equation is in such a loop.
    """
    phases: dict[int, set[str]] = {}
    for eqn in program.equations:
        phases.setdefault(eqn.region, set()).add(eqn.phase)
    turning, found, is_inside = turning_point(program), list[Passes](), False
    for region in program.regions:
        if region.kind == "scan" and {"forward", "backward"} <= phases.get(region.index, set()):
            start, stop = region.ranges[0]
            found.append(_passes(program, region.index, start, stop))
            is_inside = is_inside or region.start <= turning < region.stop
    if not is_inside:
        found.append(_passes(program, -1, 0, len(program.equations)))
    return tuple(sorted(found, key=lambda of: of.start))


def _passes(program: Program, region: int, start: int, stop: int) -> Passes:
    backward = (e.index for e in program.equations[start:stop] if e.phase == "backward")
    return Passes(region=region, start=start, turning=next(backward, stop), stop=stop)


def find_blocks(program: Program, rules: Sequence[OperatorRule], values: Values) -> tuple[Block, ...]:
    """The repeated blocks of each forward pass, in program order; none where nothing repeats."""
    found = [(cuts, of) for of in find_passes(program) for cuts in _repeats(program, rules, values, of)]
    return tuple(
        Block(start=start, stop=stop, kind=kind, passes=passes)
        for kind, (cuts, passes) in enumerate(found)
        for start, stop in itertools.pairwise(cuts)
    )


def _repeats(
    program: Program, rules: Sequence[OperatorRule], values: Values, passes: Passes
) -> list[tuple[int, ...]]:
    """Where the blocks of one forward pass begin, and the last one ends; one tuple for each kind, in program order.

    Longest repeats first; then the repeats on both sides of one are looked for in turn.
    """
    turning = passes.turning
    words = _words(program, turning)
    crossing = _crossing_bytes(program, values, passes)
    heavy = np.cumsum([0, *(rule.family in CONTRACTION_FAMILIES for rule in rules[:turning])])
    found: list[tuple[int, ...]] = []
    waiting = [(passes.start, turning)]
    while waiting:
        low, high = waiting.pop()
        repeat = _longest_repeat(words[low:high], heavy[low : high + 1])
        if repeat is None:
            continue
        first, last, period = repeat[0] + low, repeat[1] + low, repeat[2]
        starts = [first + k for k in range(period)]
        costs = [float(np.mean(crossing[start : last + 1 : period])) for start in starts]
        start = starts[int(np.argmin(costs))]
        found.append(tuple(range(start, last + 1, period)))
        waiting += [(low, first), (last, high)]
    return sorted(found)


def _words(program: Program, turning: int) -> np.ndarray:
    """A number for each equation of the forward pass, equal for equal operators on equal shapes; literals may differ (a
    layer's number, folded into its key)."""
    seen, tensors = Memo(), program.tensors

    def shape(t: int) -> Hashable:
        return tensors[t].shape, str(tensors[t].dtype), tensors[t].kind == "literal"

    def word(eqn: Equation) -> Hashable:
        operands, results = tuple(map(shape, eqn.operands)), tuple(map(shape, eqn.results))
        return eqn.name, frozen_params(eqn.params, seen), operands, results, eqn.region >= 0

    words = [seen.setdefault(word(eqn), len(seen)) for eqn in program.equations[:turning]]
    return np.array(words, dtype=np.int64)


def _crossing_bytes(program: Program, values: Values, passes: Passes) -> np.ndarray:
    """Bytes made before each equation of a forward pass and read by it or later ones of that pass, (turning + 1,)."""
    turning = passes.turning
    change = np.zeros(turning + 2)
    for eqn in program.equations[passes.start : turning]:
        for t in eqn.results:
            readers = [c for c in values.consumers[t] if c < turning]
            if readers and not values.free[t]:
                change[eqn.index + 1] += program.tensors[t].num_bytes
                change[max(readers) + 1] -= program.tensors[t].num_bytes
    return np.cumsum(change)[: turning + 1]


def _longest_repeat(words: np.ndarray, heavy: np.ndarray) -> tuple[int, int, int] | None:
    """(first, last, period) of the longest run with ``words[i] == words[i + period]`` that repeats at least once.

    Each period has a contraction or convolution (``heavy`` counts them); of runs of equal length the shortest period.
    """
    best: tuple[int, int, int] | None = None
    for period in range(LEAST_EQUATIONS, len(words) // 2 + 1):
        breaks = np.flatnonzero(words[:-period] != words[period:])
        ends = np.concatenate(([-1], breaks, [len(words) - period]))
        lengths = np.diff(ends) - 1
        longest = int(np.argmax(lengths))
        length, first = int(lengths[longest]), int(ends[longest]) + 1
        if length < period or (best is not None and length + period <= best[1] - best[0]):
            continue
        if heavy[first + period] > heavy[first]:
            best = first, first + length + period, period
    return best
