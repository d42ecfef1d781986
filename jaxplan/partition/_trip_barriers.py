"""Trip barriers: where dots of a loop that recomputes, and that nothing waits for, would raise the peak of a plan.

The compiler orders the body of a loop as it likes. A dot with a result that only leaves the trip, or is read late in
it (the gradient of a parameter, or of the values of attention), was seen to run at the end of the trip. Its operands
are live until then, or are computed together with later values that depend on them. So near the peak the lowering asks
for the order of the program, on GPUs: TPUs fuse operators into dots, and a barrier would materialise their operands.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from jaxplan.cost import LEAST_HELD, NEAR, DeferredArrays, is_dot
from jaxplan.ir import Region, StepGraph
from jaxplan.partition._lowering import TripBarrier
from jaxplan.partition._resident import Resident
from jaxplan.xla._facts import walk


def find_trip_barriers(resident: Resident) -> tuple[TripBarrier, ...]:
    """Tensors of loops that are read only after earlier dots of the trip.

    Of loops that recompute: in others the operands of dots were saved in the forward pass, and are live anyway.
    """
    if resident.shardings.target.fuses_operands:
        return ()
    bodies = (_Body.of(resident, region) for region in sorted(resident.shardings.graph.recomputing_loops))
    return tuple(barrier for body in bodies for barrier in _barriers(resident, body))


@dataclass(frozen=True, slots=True)
class _Body:
    """The dots of the backward pass in one loop, those of loops inside of it excluded.

    Attributes:
      region: of the loop.
      dots: ascending.
      needs: of each, the places in ``dots`` of those that it depends on, as bits.
      inner: the first equation of each loop or branch inside.
      arrays: tensors made in the loop, in memory, and read in the sharding in which they are made.
    """

    region: Region
    dots: list[int]
    needs: list[int]
    inner: list[int]
    arrays: frozenset[int]

    @classmethod
    def of(cls, resident: Resident, index: int) -> _Body:
        graph = resident.shardings.graph
        program, region = graph.program, graph.program.regions[index]
        dots, needs, of_tensor = list[int](), list[int](), dict[int, int]()
        for eqn in program.equations[slice(*region.ranges[0])]:
            bits = functools.reduce(operator.or_, (of_tensor.get(t, 0) for t in eqn.operands), 0)
            if eqn.region == index and is_dot(graph, eqn):
                needs.append(bits)
                bits |= 1 << len(dots)
                dots.append(eqn.index)
            of_tensor.update(dict.fromkeys(eqn.results, bits))
        inner = [other.start for other in program.regions if other.parent == index]
        moved = {transfer.tensor for transfer in resident.shardings.transfers}
        made = (t for eqn in program.equations[region.start : region.ranges[0][1]] for t in eqn.results)
        arrays = frozenset(t for t in made if t not in moved and resident.in_order.materialised[t])
        return cls(region, dots, needs, inner, arrays)

    def waiting(self, place: int, complete: int) -> list[int]:
        """Places of the dots before one, from another on, that it does not depend on."""
        return [i for i in range(complete, place) if not self.needs[place] >> i & 1]

    def last_of(self, waiting: Sequence[int]) -> list[int]:
        """Of the dots at these places, those that none of the others depends on."""
        needed = functools.reduce(operator.or_, (self.needs[i] for i in waiting))
        return [self.dots[i] for i in waiting if not needed >> i & 1]


def _barriers(resident: Resident, body: _Body) -> Iterator[TripBarrier]:
    graph, curve, stop = resident.shardings.graph, resident.curve, body.region.ranges[0][1]
    peak, complete = curve.max(), 0
    for number, (dot, end) in enumerate(itertools.pairwise([*body.dots, stop])):
        places = body.waiting(number, complete)
        if not places:
            continue
        waiting = [body.dots[i] for i in places]
        start = waiting[-1] + 1
        if any(start <= inner < dot for inner in body.inner):
            start = dot
        arrays = DeferredArrays(resident.shardings, resident.in_order, waiting, resident.padded)
        size = arrays.num_bytes_in_trip(start, waiting, body.region.start)
        if size <= LEAST_HELD * peak or curve[start:end].max() + size <= (1 - NEAR) * peak:
            continue
        if readers := _last_made(resident, body, start, dot):
            readers |= _read_later(graph, arrays.computed(waiting) & body.arrays, range(start, stop))
            behind = tuple(graph.program.equations[e].results[0] for e in body.last_of(places))
            yield TripBarrier(equation=min(readers.values()), tensors=tuple(sorted(readers)), behind=behind)
            complete = number


def _last_made(resident: Resident, body: _Body, start: int, dot: int) -> dict[int, int]:
    """Of the arrays made before ``start`` and read from there on for a dot, the one that is made last -> the first
    equation that reads it, or a view or cast of it; empty where there is none."""
    graph = resident.shardings.graph
    equations, producer, readers = graph.program.equations, graph.values.producer, dict[int, int]()

    def made_from_start_on(e: int) -> list[int]:
        return [producer[t] for t in equations[e].operands if producer[t] >= start]

    for e in walk([dot], made_from_start_on):
        for t in equations[e].operands:
            source = _stored(resident, t)
            if producer[source] < start and source in body.arrays:
                readers[source] = min(e, readers.get(source, e))
    last = max(readers, key=lambda t: (producer[t], t), default=None)
    return {} if last is None else {last: readers[last]}


def _stored(resident: Resident, t: int) -> int:
    """A tensor, or the one in memory that it is computed from alone."""
    graph = resident.shardings.graph
    while (made := graph.values.producer[t]) >= 0 and not resident.in_order.materialised[t]:
        if len(graph.program.equations[made].operands) != 1:
            break
        (t,) = graph.program.equations[made].operands
    return t


def _read_later(graph: StepGraph, computed: Collection[int], later: range) -> dict[int, int]:
    """Of arrays computed element by element for waiting dots, those that later equations read as well -> the first of
    these. Where they do not pass the barrier, the compiler computes them once more there."""
    readers = {t: [e for e in graph.values.consumers[t] if e in later] for t in computed}
    return {t: min(of) for t, of in readers.items() if of}
