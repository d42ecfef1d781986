"""Trip barriers: where dots of a loop of the backward pass that nothing waits for would raise the peak of a plan.

The compiler orders the body of a loop as it likes. A dot whose result only leaves the trip, or is read late in it (the
gradient of a parameter, or of the values of attention), was seen to run at the end of the trip. Its operands are live
until then, or are computed together with what is computed of them later. So near the peak the lowering asks for the
order of the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxplan.cost import LEAST_HELD, NEAR, DeferredArrays, is_dot
from jaxplan.ir import Region, StepGraph
from jaxplan.partition._lowering import TripBarrier
from jaxplan.partition._resident import Resident


def find_trip_barriers(resident: Resident) -> tuple[TripBarrier, ...]:
    """Tensors of loops of the backward pass that are read only after dots before them in the trip."""
    graph = resident.shardings.graph
    bodies = (_Body.of(graph, region) for region in graph.program.regions if region.kind == "scan")
    return tuple(barrier for body in bodies if body.dots for barrier in _barriers(resident, body))


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
            if eqn.region == region.index and eqn.phase == "backward" and is_dot(graph, eqn):
                needs.append(bits)
                bits |= 1 << len(dots)
                dots.append(eqn.index)
            of_tensor.update(dict.fromkeys(eqn.results, bits))
        inner = [other.start for other in graph.program.regions if other.parent == region.index]
        return cls(region, dots, needs, inner)

    def waiting(self, number: int, complete: int) -> list[int]:
        """The dots before one, from a place in ``dots`` on, that it does not depend on."""
        return [self.dots[i] for i in range(complete, number) if not self.needs[number] >> i & 1]


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
        size = _held(resident, body.region, place, waiting)
        if size <= LEAST_HELD * peak or curve[place:end].max() + size <= (1 - NEAR) * peak:
            continue
        passing = _passing(resident, place, dot, body.region)
        if passing is not None:
            equation, t = passing
            yield TripBarrier(equation=equation, tensor=t, behind=tuple(equations[e].results[0] for e in waiting))
            complete = number


def _held(resident: Resident, region: Region, place: int, waiting: Sequence[int]) -> int:
    """Bytes on a device of the arrays, made in the trip, that waiting dots keep alive at a place in it.

    Those that nothing else reads from there on, and those that are computed element by element: the compiler keeps
    what they are computed of besides, for other readers.
    """
    arrays = DeferredArrays(resident.shardings, resident.in_order, waiting, resident.padded)
    return arrays.num_bytes_in_trip(place, waiting, region.start)


def _passing(resident: Resident, place: int, dot: int, region: Region) -> tuple[int, int] | None:
    """Of the tensors that are made before ``place`` and read there for a dot, the one in memory that is made last, with
    the first equation from ``place`` on that reads it."""
    graph, moved = resident.shardings.graph, {transfer.tensor for transfer in resident.shardings.transfers}
    producer, readers, stack = graph.values.producer, dict[int, int](), [dot]
    seen = {dot}
    while stack:
        e = stack.pop()
        for t in graph.program.equations[e].operands:
            made = producer[t]
            if made >= place and made not in seen:
                seen.add(made)
                stack.append(made)
            elif region.start <= made < place and t not in moved and resident.in_order.materialised[t]:
                readers[t] = min(e, readers.get(t, e))
    return max(((producer[t], readers[t], t) for t in readers), default=(0, None, None))[1:] if readers else None
