"""Cut a step into stages: which equations, arguments and sums belong to which.

A backward equation goes to the latest stage that has all of its forward operands (parameters, activations) and no
later one than the stages that its gradients come from, so that gradients flow from the last stage to the first. The
update of a parameter runs where the parameter is read. Where a parameter is read by several stages (tied embeddings),
it lives in the first of them, the others get a copy in each step, and their gradients are added once, after the last
micro-batch. Scalars of several stages (the norm of all gradients) meet in the last stage, in *levels*: the equations of
one level need results of lower levels of other stages alone.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from jaxplan.ir.microbatch._pairs import Pair
from jaxplan.ir.stages._step import PipelineStep

_ADDITIONS = frozenset({"add", "add_any"})


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """A step in stages.

    Attributes:
      step: the step in micro-batches.
      starts: places in `PipelineStep.forward` where stages begin; the first is 0.
      loop_stage: stage of each equation of the loop; None for those that each reader computes by itself, and for
        those that run once, after the last slice.
      sums: values that slices add to -> the stage that makes them.
      after: equations that run once, after the last slice, in program order.
      after_stage: (stage, level) of each of them; None for those that each reader computes by itself.
      owner: input of the step -> the stage that it lives in.
    """

    step: PipelineStep
    starts: tuple[int, ...]
    loop_stage: tuple[int | None, ...]
    sums: dict[int, int]
    after: tuple[Pair, ...]
    after_stage: tuple[tuple[int, int] | None, ...]
    owner: dict[int, int]

    @property
    def num_stages(self) -> int:
        return len(self.starts)

    @property
    def num_levels(self) -> int:
        """Levels of the update."""
        return 1 + max((where[1] for where in self.after_stage if where is not None), default=0)

    @cached_property
    def made_after(self) -> dict[int, int]:
        """Value -> the equation of `after` that makes it."""
        return {t: e for e, eqn in enumerate(self.after) for t in eqn.outputs}

    def home(self, t: int) -> int:
        """The stage that a result of the step is taken from."""
        if t in self.sums:
            return self.sums[t]
        if t in self.step.in_loop:
            stage = self.loop_stage[self.step.in_loop[t]]
            return self.num_stages - 1 if stage is None else stage
        if t in self.made_after:
            where = self.after_stage[self.made_after[t]]
            return self.num_stages - 1 if where is None else where[0]
        return self.owner.get(t, self.num_stages - 1)


def cut(step: PipelineStep, starts: Sequence[int]) -> Cut:
    """Cut a step.

    Args:
      starts: ascending places in `PipelineStep.forward` where stages begin, the first 0.
    """
    return _Cutter(step, tuple(starts)).run()


class _Cutter:
    """Working state of one cut."""

    def __init__(self, step: PipelineStep, starts: tuple[int, ...]) -> None:
        self.step, self.starts, self.last = step, starts, len(starts) - 1
        self.stage: list[int | None] = [None] * len(step.loop)
        self.available: dict[int, set[int]] = defaultdict(set)  # forward value -> stages that have it
        self.readers: dict[int, set[int]] = defaultdict(set)  # large input -> stages that read it in the loop
        loop = step.strata.loops[0]
        self.sums: dict[int, int] = dict.fromkeys(loop.sums, self.last)
        self.deferred: list[int] = []

    def run(self) -> Cut:
        self._place_forward()
        self._place_backward()
        after = (*(self.step.loop[e] for e in self.deferred), *self.step.strata.between[1])
        owner, stages = _Updates(self, after).run()
        return Cut(
            step=self.step,
            starts=self.starts,
            loop_stage=tuple(self.stage),
            sums=self.sums,
            after=after,
            after_stage=tuple(stages),
            owner=owner,
        )

    def _place_forward(self) -> None:
        step = self.step
        for place, e in enumerate(step.forward):
            stage = bisect.bisect_right(self.starts, place) - 1
            self.stage[e] = stage
            self._read(step.loop[e], stage)
            for t in step.loop[e].outputs:
                self.available[t].add(stage)

    def _read(self, eqn: Pair, stage: int) -> None:
        for t in eqn.operands:
            for i in self.step.roots.get(t, ()):
                self.readers[i].add(stage)
            if t not in self.step.free and t in self.step.in_loop:
                self.available[t].add(stage)

    def _place_backward(self) -> None:
        step, deferred = self.step, set[int]()
        forward = set(step.forward)
        for e, eqn in enumerate(step.loop):
            if e in forward or all(t in step.free for t in eqn.outputs):
                continue
            if self._is_late(eqn, deferred):
                self._defer(e, eqn, deferred)
                continue
            stage = self._backward_stage(eqn)
            self.stage[e] = stage
            self._read(eqn, stage)
            for t in eqn.outputs:
                self.available[t].add(stage)
        for t in self.sums:
            made = self.stage[step.in_loop[t]] if t in step.in_loop else None
            self.sums[t] = self.last if made is None else made

    def _is_late(self, eqn: Pair, deferred: set[int]) -> bool:
        """Whether an equation adds finished gradients of several stages: that is done once, after the last slice."""
        if any(t in deferred for t in eqn.operands):
            return True
        values, step = self.step.values, self.step
        if eqn.full.primitive.name not in _ADDITIONS or any(values[t].dim is not None for t in eqn.operands):
            return False
        stages = {self.stage[step.in_loop[t]] for t in eqn.operands if t in step.in_loop}
        return len(eqn.operands) == 2 and len(stages) > 1 and None not in stages

    def _defer(self, e: int, eqn: Pair, deferred: set[int]) -> None:
        self.deferred.append(e)
        deferred.update(eqn.outputs)
        for t in eqn.outputs:
            self.sums.pop(t, None)
        for t in eqn.operands:
            if t in self.step.in_loop and t not in deferred:
                self.sums[t] = self.last

    def _backward_stage(self, eqn: Pair) -> int:
        step = self.step
        gradients, known = [], list[tuple[int, set[int]]]()
        for t in eqn.operands:
            made_by = step.in_loop.get(t)
            if t in step.free:
                continue
            if made_by is not None and step.is_backward[made_by]:
                gradients.append(self.stage[made_by])
            elif made_by is not None:
                known.append((step.num_bytes(t), self.available[t]))
            elif readers := set[int]().union(*(self.readers[i] for i in step.roots[t])):
                known.append((step.num_bytes(t), readers))
        upper = min((s for s in gradients if s is not None), default=self.last)
        everywhere = set(range(upper + 1)).intersection(*(of for _, of in known))
        if everywhere:
            return max(everywhere)
        reachable = [(size, max(s for s in of if s <= upper)) for size, of in known if min(of) <= upper]
        return max(reachable)[1] if reachable else upper


class _Updates:
    """Places the equations after the last slice, and the inputs of the step."""

    def __init__(self, cutter: _Cutter, after: Sequence[Pair]) -> None:
        self.cutter, self.step, self.after = cutter, cutter.step, after
        self.root: dict[int, int] = {}
        self.free: set[int] = {t for t in self.step.roots if not self.step.roots[t]}
        self.level: dict[int, tuple[int, int]] = {}  # value made after the loop -> (stage, level)

    def run(self) -> tuple[dict[int, int], list[tuple[int, int] | None]]:
        for eqn in self.after:
            large = [t for t in (*eqn.operands, *eqn.outputs) if self._is_large(t)]
            self._join([*large, *(i for t in large for i in self.step.roots.get(t, ()))])
        component = self._component_stages()
        owner = {i: self._owner(i, component) for i in range(len(self.step.program.inputs))}
        return owner, [self._place(eqn, component, owner) for eqn in self.after]

    def _is_large(self, t: int) -> bool:
        return not self.step.is_small(t) and bool(self.step.roots.get(t, True))

    def _find(self, t: int) -> int:
        while self.root.setdefault(t, t) != t:
            t = self.root[t]
        return t

    def _join(self, values: Iterable[int]) -> None:
        values = [self._find(t) for t in values]
        for t in values[1:]:
            self.root[self._find(t)] = self._find(values[0])

    def _component_stages(self) -> dict[int, int]:
        """Root of values that are updated together -> the stage with most bytes of the parameters and gradients."""
        votes: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for t in list(self.root):
            readers = self.cutter.readers.get(t)
            if readers:
                votes[self._find(t)][min(readers)] += 2 * self.step.num_bytes(t)
            elif t in self.cutter.sums:
                votes[self._find(t)][self.cutter.sums[t]] += self.step.num_bytes(t)
        return {root: max(of, key=lambda s: (of[s], -s)) for root, of in votes.items()}

    def _owner(self, i: int, component: dict[int, int]) -> int:
        readers = self.cutter.readers.get(i, set())
        found = component.get(self._find(i)) if i in self.root else None
        if found is not None and (not readers or found in readers):
            return found
        if readers:
            return min(readers)
        return self._reader_of_batch(i) if self.step.values[i].dim is not None else self.cutter.last

    def _reader_of_batch(self, i: int) -> int:
        """The first stage that reads slices of an input, by itself or through values that each reader computes."""
        step, derived = self.step, {i}
        for e, eqn in enumerate(step.loop):
            if any(t in derived for t in eqn.operands):
                stage = self.cutter.stage[e]
                if stage is not None:
                    return stage
                derived.update(eqn.outputs)
        return self.cutter.last

    def _place(self, eqn: Pair, component: dict[int, int], owner: dict[int, int]) -> tuple[int, int] | None:
        bound = [t for t in eqn.operands if t not in self.free]
        if not bound and not eqn.full.effects:
            self.free.update(eqn.outputs)
            return None
        large = [t for t in (*eqn.operands, *eqn.outputs) if self._is_large(t)]
        found = component.get(self._find(large[0])) if large else None
        sources = {self._source(t, owner)[0] for t in bound}
        if found is None:
            found = sources.pop() if len(sources) == 1 else self.cutter.last
        level = 0
        for t in bound:
            stage, at = self._source(t, owner)
            is_ready = stage == found or (t not in self.level and t not in self.cutter.sums)
            level = max(level, at if is_ready else at + 1)
        self.level.update(dict.fromkeys(eqn.outputs, (found, level)))
        return found, level

    def _source(self, t: int, owner: dict[int, int]) -> tuple[int, int]:
        """The stage and level that a value comes from; inputs are copied before the step begins."""
        if t in self.level:
            return self.level[t]
        if t in self.cutter.sums:
            return self.cutter.sums[t], 0
        if t in self.step.in_loop:
            stage = self.cutter.stage[self.step.in_loop[t]]
            return self.cutter.last if stage is None else stage, 0
        return min((owner[i] for i in self.step.roots.get(t, ())), default=self.cutter.last), 0
