"""Trip barriers: where dots of a loop that recomputes, and that nothing waits for, would raise the peak of a plan.

The compiler orders the body of a loop as it likes. A dot whose result only leaves the trip, or is read late in it (the
gradient of a parameter, or of the values of attention), was seen to run at the end of the trip. Its operands are live
until then, or are computed together with what is computed of them later. So near the peak the lowering asks for the
order of the program, on GPUs: TPUs fuse operators into dots, and a barrier would materialise their operands.
"""

from __future__ import annotations

import functools
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

    Of loops that recompute, that is: otherwise what the dots read was saved in the forward pass, and is live anyway.
    """
    if resident.shardings.target.fuses_operands:
        return ()
    graph = resident.shardings.graph
    bodies = (_Body.of(graph, graph.program.regions[region]) for region in sorted(graph.recomputing_loops))
    return tuple(barrier for body in bodies for barrier in _barriers(resident, body))


@dataclass(frozen=True, slots=True)
class _Body:
    """The dots of the backward pass in one loop, those of loops inside of it excluded.

    Attributes:
      region: of the loop.
      dots: ascending.
      needs: of each, the places in ``dots`` of those that it depends on, as bits.
      inner: the first equation of each loop or branch inside.
    """

    region: Region
    dots: list[int]
    needs: list[int]
    inner: list[int]

    @classmethod
    def of(cls, graph: StepGraph, region: Region) -> _Body:
        dots, needs, of_tensor = list[int](), list[int](), dict[int, int]()
        for eqn in graph.program.equations[slice(*region.ranges[0])]:
            bits = 0
            for t in eqn.operands:
                bits |= of_tensor.get(t, 0)
            if eqn.region == region.index and is_dot(graph, eqn):
                needs.append(bits)
                bits |= 1 << len(dots)
                dots.append(eqn.index)
            of_tensor.update(dict.fromkeys(eqn.results, bits))
        inner = [other.start for other in graph.program.regions if other.parent == region.index]
        return cls(region, dots, needs, inner)

    def waiting(self, number: int, complete: int) -> list[int]:
        """The dots before one, from a place in ``dots`` on, that it does not depend on."""
        return [self.dots[i] for i in range(complete, number) if not self.needs[number] >> i & 1]

    def last_of(self, waiting: Sequence[int]) -> list[int]:
        """Of these dots, those that none of the others depends on."""
        needed = functools.reduce(operator.or_, (self.needs[self.dots.index(e)] for e in waiting))
        return [e for e in waiting if not needed >> self.dots.index(e) & 1]


def _barriers(resident: Resident, body: _Body) -> Iterator[TripBarrier]:
    equations, curve = resident.shardings.graph.program.equations, resident.curve
    peak, complete = curve.max(), 0
    ends = [*body.dots[1:], body.region.ranges[0][1]]
    for number, (dot, end) in enumerate(zip(body.dots, ends, strict=True)):
        if not (waiting := body.waiting(number, complete)):
            continue
        place = waiting[-1] + 1
        if any(place <= start < dot for start in body.inner):
            place = dot
        arrays = DeferredArrays(resident.shardings, resident.in_order, waiting, resident.padded)
        size = arrays.num_bytes_in_trip(place, waiting, body.region.start)
        if size <= LEAST_HELD * peak or curve[place:end].max() + size <= (1 - NEAR) * peak:
            continue
        readers = _last_made(resident, place, dot, body.region)
        if readers:
            readers |= _read_later(resident, place, arrays.computed(waiting), body.region)
            behind = tuple(equations[e].results[0] for e in body.last_of(waiting))
            yield TripBarrier(equation=min(readers.values()), tensors=tuple(sorted(readers)), behind=behind)
            complete = number


def _last_made(resident: Resident, place: int, dot: int, region: Region) -> dict[int, int]:
    """Of the tensors made before ``place`` and read there for a dot, the one in memory that is made last -> the first
    equation from ``place`` on that reads it, or a view or cast of it; empty where there is none."""
    graph = resident.shardings.graph
    equations, producer, readers = graph.program.equations, graph.values.producer, dict[int, int]()

    def made_from_place_on(e: int) -> list[int]:
        return [producer[t] for t in equations[e].operands if producer[t] >= place]

    for e in walk([dot], made_from_place_on):
        for t in equations[e].operands:
            source = t
            while (made := producer[source]) >= region.start and not resident.in_order.materialised[source]:
                if len(equations[made].operands) != 1:
                    break
                (source,) = equations[made].operands
            if producer[source] < place and _is_array_of(resident, source, region):
                readers[source] = min(e, readers.get(source, e))
    return dict([max(readers.items(), key=lambda item: (producer[item[0]], item[0]))]) if readers else {}


def _read_later(resident: Resident, place: int, computed: Collection[int], region: Region) -> dict[int, int]:
    """Of tensors computed element by element for waiting dots, those that are read from ``place`` on as well -> the
    first equation that does. Where they do not pass the barrier, the compiler computes them once more there."""
    consumers, found = resident.shardings.graph.values.consumers, dict[int, int]()
    for t in computed:
        later = [e for e in consumers[t] if place <= e < region.ranges[0][1]]
        if later and _is_array_of(resident, t, region):
            found[t] = min(later)
    return found


def _is_array_of(resident: Resident, t: int, region: Region) -> bool:
    """Whether a tensor is made in a loop, in memory, and read in the sharding in which it is made."""
    moved = any(transfer.tensor == t for transfer in resident.shardings.transfers)
    is_inside = resident.shardings.graph.values.producer[t] >= region.start
    return is_inside and not moved and resident.in_order.materialised[t]
