"""The program of a stage in segments, each compiled by itself; values that cross from one to a later one are arrays.

A value crosses as it is made, or as the copy in another sharding that the later segment reads, where an earlier one has
made that copy for itself. Copies of values that all micro-batches share (parameters) do not cross: each segment
gathers its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxplan.ir.stages import BACKWARD, FORWARD, segments_of
from jaxplan.mesh import Sharding
from jaxplan.partition._environment import Copy
from jaxplan.partition._lowered_program import LoweredProgram
from jaxplan.partition._operators import Operators
from jaxplan.partition._plan_like import PlanLike
from jaxplan.partition._run import Run
from jaxplan.partition._steps import Executor
from jaxplan.xla import Target


class Item(NamedTuple):
    """A value as it crosses: a tensor as it is made, or one of its copies."""

    tensor: int
    copy: Copy | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """A part of a stage's program.

    Attributes:
      number: see `jaxplan.ir.stages`.
      reads: values that it reads, inputs of the program among them.
      makes: values that later segments read of it.
      outputs: positions of the program's outputs that it makes.
      run: compiled; ``reads`` -> ``(*makes, *outputs)``.
      donated: positions in ``reads`` of buffers that it may reuse.
    """

    number: int
    reads: tuple[Item, ...]
    makes: tuple[Item, ...]
    outputs: tuple[int, ...]
    run: Any
    donated: tuple[int, ...]
    shardings: tuple[NamedSharding, ...]


class StageProgram:
    """The planned program of one stage on its devices.

    Attributes:
      plan: of the stage.
      mesh: its devices.
      lowered: its program with the lowering decisions.
      segments: those that do something, by number.
    """

    def __init__(self, plan: PlanLike, mesh: Any, donate: Sequence[bool]) -> None:
        """``donate``: per input of the program, whether its buffer may be reused."""
        self.plan, self.mesh = plan, mesh
        target = Target.of(plan.topology.chip, plan.topology.num_devices)
        self.lowered = LoweredProgram(plan.require_program(), plan.lowering, target, plan.output_shardings)
        self.program = self.lowered.program
        self._executor = Executor(
            mesh, plan.topology.axes, tiled=target.tiles_arrays, ordered=target.reorders_after_all_to_all
        )
        self.ranges = segments_of(self.program)
        self._tables = Tables(self.lowered, self.ranges)
        self._donate = {t for t, d in zip(self.program.inputs, donate, strict=True) if d}
        self.segments: dict[int, Segment] = {}
        for number in range(len(self.ranges)):
            segment = self._segment(number)
            if segment.makes or segment.outputs:
                self.segments[number] = segment

    def sharding(self, sharding: Sharding) -> NamedSharding:
        """On the devices of the stage; a partial value has its leading dimension."""
        spec = self._executor.spec(sharding) if self.plan.topology.axes else PartitionSpec()
        return NamedSharding(self.mesh, spec)

    def lower(self, segment: Segment) -> Any:
        """`jax.stages.Lowered` of a segment."""
        return segment.run.lower(
            *[
                jax.ShapeDtypeStruct(self._shape(item), self.program.tensors[item.tensor].dtype, sharding=where)
                for item, where in zip(segment.reads, segment.shardings, strict=True)
            ]
        )

    def _shape(self, item: Item) -> tuple[int, ...]:
        """As a global array: a partial value has a leading dimension."""
        sharding = self.lowered.home(item.tensor) if item.copy is None else item.copy[1]
        leading = (self._executor.size(sharding.partial),) if sharding.partial else ()
        return (*leading, *self.program.tensors[item.tensor].shape)

    def _sharding_of(self, item: Item) -> NamedSharding:
        if item.copy is not None:
            return self.sharding(item.copy[1])
        return self.sharding(self.lowered.home(item.tensor))

    def _segment(self, number: int) -> Segment:
        tables = self._tables
        reads, makes, outputs = tables.reads[number], tables.makes(number), tables.outputs[number]
        donated = tuple(
            k
            for k, item in enumerate(reads)
            if item.tensor in self._donate and tables.last_reader(item) == number and item.copy is None
        )
        shardings = tuple(map(self._sharding_of, reads))
        out = [*map(self._sharding_of, makes), *(self.sharding(self.plan.output_shardings[o]) for o in outputs)]
        run = jax.jit(
            functools.partial(self._evaluate, number, reads, makes, outputs),
            in_shardings=shardings,
            out_shardings=tuple(out),
            donate_argnums=donated,
        )
        return Segment(
            number=number, reads=reads, makes=makes, outputs=outputs, run=run, donated=donated, shardings=shardings
        )

    def _evaluate(
        self, number: int, reads: Sequence[Item], makes: Sequence[Item], outputs: Sequence[int], *leaves: Any
    ) -> tuple[Any, ...]:
        lowered, program, executor = self.lowered, self.program, self._executor
        run = Run(lowered, executor, Operators(lowered, executor), {}, {})
        values = run.values
        for item, leaf in zip(reads, leaves, strict=True):
            value = executor.constrain(leaf, lowered.home(item.tensor)) if self._is_pinned(item, leaf) else leaf
            values.replace(item.copy or item.tensor, value)
        values.env.update({t.index: t.value for t in program.tensors if t.kind in ("literal", "constant")})
        start, stop = self.ranges[number]
        run.evaluate(start, stop, -1)
        crossing = [self._taken(values, item) for item in makes]
        end = len(program.equations)  # where copies that are outputs are read
        made = [values.read(program.outputs[o], self.plan.output_shardings[o], end, None) for o in outputs]
        return (*crossing, *made)

    def _is_pinned(self, item: Item, leaf: Any) -> bool:
        return item.copy is None and bool(np.ndim(leaf)) and self.program.tensors[item.tensor].kind == "input"

    def _taken(self, values: Any, item: Item) -> Any:
        if item.copy is None:
            return values.env[item.tensor]
        if item.copy not in values.copies:  # it was made inside of a branch or loop
            resharding = self.lowered.by_read[item.copy[:2]]
            values.copies[item.copy] = values.reshard(values.env[item.tensor], resharding, None)
        return values.copies[item.copy]


class Tables:
    """Which values cross between segments."""

    def __init__(self, lowered: LoweredProgram, ranges: Sequence[tuple[int, int]]) -> None:
        self.lowered, self.program, self.ranges = lowered, lowered.program, ranges
        self.segment_of: dict[int, int] = {}
        for number, (start, stop) in enumerate(ranges):
            self.segment_of.update(dict.fromkeys(range(start, stop), number))
        self.made = {
            t: self.segment_of[eqn.index] for eqn in self.program.equations for t in eqn.results
        }
        self._readings = self._all_readings()
        self.outputs = self._outputs()
        self.reads = [self._reads(number) for number in range(len(ranges))]

    def _all_readings(self) -> dict[int, dict[int, set[Copy | None]]]:
        """Tensor -> segment that reads it -> its copies that are read, None for the tensor as it is made."""
        found: dict[int, dict[int, set[Copy | None]]] = defaultdict(lambda: defaultdict(set))
        for t, segment, copy in self._each_reading():
            if self.program.tensors[t].kind not in ("literal", "constant"):
                found[t][segment].add(copy)
        return found

    def _each_reading(self) -> Iterator[tuple[int, int, Copy | None]]:
        for eqn in self.program.equations:
            shardings = self.lowered.reads(eqn)
            for k, t in enumerate(eqn.operands):
                sharding = None if shardings is None else shardings[k]
                yield t, self.segment_of[eqn.index], self._copy(t, sharding, eqn.index)
        for region in self.program.regions:
            if region.selector is not None and region.start < region.stop:
                yield region.selector, self.segment_of[region.start], None

    def _copy(self, t: int, sharding: Sharding | None, equation: int) -> Copy | None:
        lowered = self.lowered
        if sharding is None or lowered.is_free(t) or lowered.home(t) == sharding:
            return None
        resharding = lowered.by_read.get((t, sharding))
        return None if resharding is None else (t, sharding, resharding.execution_at(equation))

    def _outputs(self) -> list[tuple[int, ...]]:
        """Per segment, the outputs that it makes; inputs that are returned as they are belong to no segment."""
        found: list[list[int]] = [[] for _ in self.ranges]
        for o, t in enumerate(self.program.outputs):
            if t in self.made:
                found[self.made[t]].append(o)
        return [tuple(of) for of in found]

    def _reads(self, number: int) -> tuple[Item, ...]:
        found: dict[Item, None] = {}
        for t, by_segment in self._readings.items():
            if number in by_segment and self.made.get(t, -1) < number:
                found.update(dict.fromkeys(self._items(t, number)))
        return tuple(found)

    def _items(self, t: int, number: int) -> list[Item]:
        """How a segment gets a value: copies that were made before it, and the value itself for all others."""
        is_lasting = self.made.get(t, -1) < FORWARD
        items: dict[Item, None] = {}
        for copy in sorted(self._readings[t][number], key=repr):
            is_made = copy is not None and not copy[2] and not is_lasting and self._is_made_before(copy, number)
            items[Item(t, copy) if is_made else Item(t)] = None
        return list(items)

    def _is_made_before(self, copy: Copy, number: int) -> bool:
        by_segment = self._readings[copy[0]]
        return any(copy in by_segment[s] for s in range(number) if s in by_segment)

    def makes(self, number: int) -> tuple[Item, ...]:
        """Values of one segment that later ones read; sums over micro-batches are outputs."""
        sums = set(self.program.outputs) if number == BACKWARD else set()
        found: dict[Item, None] = {}
        for later in range(number + 1, len(self.ranges)):
            for item in self.reads[later]:
                if self.made.get(item.tensor) == number and item.tensor not in sums:
                    found[item] = None
        return tuple(found)

    def last_reader(self, item: Item) -> int:
        return max((s for s in range(len(self.ranges)) if item in self.reads[s]), default=-1)


