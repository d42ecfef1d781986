"""A program and its lowering decisions, indexed for evaluation."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence

from jaxplan.ir import Equation, Region, StepGraph, Waiting
from jaxplan.mesh import Sharding
from jaxplan.partition._lowering import (
    Barrier,
    GatherGuard,
    Lowering,
    MergeGuard,
    Order,
    Resharding,
    Unpooling,
)
from jaxplan.partition._masks import masks_of_loops
from jaxplan.xla import Target


class LoweredProgram:
    """The tables of an evaluation.

    Attributes:
      graph, program: the step; only its equations, their rules and its values are read, no groups.
      lowering: the decisions.
      target: the compiler that the program is compiled by.
      output_shardings: of the outputs.
      by_read: (tensor, sharding) -> the resharding that brings the one to the other.
      waiting: values that wait on the host -> the equation of the barrier behind which they come back.
      barriers_of_waiting: the same the other way round.
      could_wait: these, and those that wait on the device: when one is made, the copy of the one before is done.
      could_be_on_host: parameters on the host, and the values that may be read from there.
      repeated: tensors with a copy that is gathered again in the backward pass.
      waiting_alike: (the first dot that reads a padded tensor, that tensor) -> later dots that read it, with a copy
        that is gathered again behind it: the gather is behind it for all of them, so that the tensor is padded once.
    """

    def __init__(
        self, graph: StepGraph, lowering: Lowering, target: Target, output_shardings: Sequence[Sharding]
    ) -> None:
        self.graph, self.program, self.values = graph, graph.program, graph.values
        self.lowering, self.target, self.output_shardings = lowering, target, tuple(output_shardings)
        schedule = lowering.schedule
        self.by_read: dict[tuple[int, Sharding], Resharding] = {
            (r.tensor, r.target): r for r in lowering.reshardings
        }
        self.repeated = frozenset(r.tensor for r in lowering.reshardings if r.repeated)
        self.waiting_alike = self._waiting_alike()
        self.orders: dict[int, Order] = {order.equation: order for order in schedule.orders}
        self.barriers: dict[int, Barrier] = {barrier.equation: barrier for barrier in schedule.barriers}
        self.trip_barriers = {barrier.equation: barrier for barrier in schedule.trip_barriers}
        self.recompute_barriers = frozenset(schedule.recompute_barriers)
        self.gather_guards: dict[int, GatherGuard] = {g.equation: g for g in lowering.gather_guards}
        self.merge_guards: dict[int, MergeGuard] = {g.equation: g for g in lowering.merge_guards}
        self.unpoolings: dict[int, Unpooling] = {how.equation: how for how in lowering.unpoolings}
        self.waiting = {w.tensor: w.barrier for w in graph.waiting_on_host if self._waits_as_it_is(w)}
        self.barriers_of_waiting = {barrier: t for t, barrier in self.waiting.items()}
        self.could_wait = frozenset(w.tensor for of in graph.waiting for w in of) if self.waiting else frozenset()
        self.could_be_on_host = frozenset(graph.parameters_on_host)
        self._alike = {self.source_of(r) for r in lowering.reshardings if r.is_shared}

    @functools.cached_property
    def summed(self) -> dict[int, Resharding]:
        """Partial sum -> its resharding, of those that are executed once."""
        return {r.tensor: r for r in self.lowering.reshardings if r.source.partial and len(r.spans) == 1}

    def _waiting_alike(self) -> dict[tuple[int, int], list[tuple[int, Resharding]]]:
        found: dict[tuple[int, int], list[tuple[int, Resharding]]] = defaultdict(list)
        equations = self.program.equations
        again = [r for r in self.lowering.reshardings if r.repeated and r.spans[-1].first < len(equations)]
        for resharding in again if self.lowering.padded else ():
            reader = resharding.spans[-1].first
            for t in self.lowering.padded.intersection(equations[reader].operands):
                first = min(self.values.consumers[t])
                is_together = equations[first].region == equations[reader].region
                if is_together and self.values.producer[resharding.tensor] < first < reader:
                    found[first, t].append((reader, resharding))
        return found

    def _waits_as_it_is(self, waiting: Waiting) -> bool:
        """Whether a value is read behind its barrier in the sharding in which it is made."""
        t, reads = waiting.tensor, self.lowering.reads.get(waiting.barrier)
        return reads is not None and self.is_placed(t) and reads[0] == self.home(t)

    def family(self, eqn: Equation) -> str:
        return self.graph.rules[eqn.index].family

    def home(self, t: int) -> Sharding:
        """Sharding in which a tensor is made or comes in."""
        return self.lowering.home(t, len(self.program.tensors[t].shape))

    def is_placed(self, t: int) -> bool:
        """Whether a tensor has a sharding of the plan; others are replicated without a constraint."""
        return self.lowering.homes[t] is not None

    def is_free(self, t: int) -> bool:
        """Whether a tensor is in any sharding for nothing: it is computed from constants alone, or is not placed."""
        return self.values.free[t] or not self.is_placed(t)

    def is_computed_freely(self, eqn: Equation) -> bool:
        """Whether an equation reads constants and scalars alone, and makes arrays."""
        return bool(eqn.results) and all(self.values.free[t] for t in eqn.results)

    def reads(self, eqn: Equation) -> tuple[Sharding, ...] | None:
        """The sharding in which an equation reads each operand; None: whole arrays."""
        return self.lowering.reads.get(eqn.index)

    def read(self, eqn: Equation, t: int) -> Sharding | None:
        """The sharding in which an equation reads one of its operands; None: the whole array."""
        shardings = self.reads(eqn)
        return None if shardings is None else shardings[eqn.operands.index(t)]

    def source_of(self, resharding: Resharding) -> tuple[int, Sharding]:
        """The value that travels, equal for copies of one, and the sharding in which it starts."""
        return self.values.merged[resharding.carried], resharding.source

    def begins_alike(self, resharding: Resharding) -> bool:
        """Whether another resharding of the same value may have taken its first steps."""
        return self.source_of(resharding) in self._alike and len(resharding.spans) == 1

    @functools.cached_property
    def region_at(self) -> dict[tuple[int, int], Region]:
        """(region around it, first equation) -> region."""
        regions = self.program.regions
        return {(region.parent, region.start): region for region in regions if region.start < region.stop}

    @functools.cached_property
    def masks(self) -> dict[int, tuple[int, ...]]:
        """As `masks_of_loops`."""
        return masks_of_loops(self.program, self.values)

    @functools.cached_property
    def last_use(self) -> dict[int, list[int]]:
        """Equation index -> tensors that nothing reads after it; literals stay."""
        program, result = self.program, defaultdict(list)
        outputs, again = set(program.outputs), dict[int, int]()
        for e, how in self.unpoolings.items():
            again.update((t, max(e, again.get(t, e))) for t in (*how.free, *(t for _, t in how.arrays)))
        for e, equations in self.masks.items():
            read = {t for made in equations for t in program.equations[made].operands}
            again.update((t, max(e, again.get(t, e))) for t in read)
        for t, consumers in enumerate(self.values.consumers):
            if consumers and t not in outputs and program.tensors[t].kind != "literal":
                result[max(consumers[-1], again.get(t, -1))].append(t)
        return result
