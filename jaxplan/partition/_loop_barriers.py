"""Loop barriers: where dots of a loop of the backward pass that nothing waits for would raise the peak of a plan.

The compiler orders the body of a loop as it likes. A dot whose result only leaves the trip, or is read late in it (the
gradient of a parameter, of the values of attention), was seen to run at its end, and its operands to be live until
then, or to be computed where something else computes the same once more. So near the peak the lowering asks for the
order of the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxplan.cost import LEAST_HELD, NEAR, DeferredArrays, is_dot
from jaxplan.ir import Region, StepGraph
from jaxplan.partition._gradient_barriers import barrier_before
from jaxplan.partition._lowering import Barrier
from jaxplan.partition._resident import Resident


def find_loop_barriers(resident: Resident) -> tuple[Barrier, ...]:
    """Dots of loops of the backward pass that run only after all dots before them in the trip."""
    graph = resident.shardings.graph
    regions = (region for region in graph.program.regions if region.kind == "scan")
    bodies = (_Body.of(graph, region) for region in regions)
    return tuple(barrier for body in bodies if body.dots for barrier in _barriers(resident, body))


@dataclass(frozen=True, slots=True)
class _Body:
    """The dots of the backward pass in one loop, those of loops inside of it excluded.

    Attributes:
      region: of the loop.
      dots: ascending.
      needs: of each, the places in ``dots`` of those that it depends on, as bits.
    """

    region: Region
    dots: list[int]
    needs: list[int]

    @classmethod
    def of(cls, graph: StepGraph, region: Region) -> _Body:
        dots, needs = list[int](), list[int]()
        of_tensor: dict[int, int] = {}
        for start, stop in region.ranges:
            for eqn in graph.program.equations[start:stop]:
                bits = 0
                for t in eqn.operands:
                    bits |= of_tensor.get(t, 0)
                if eqn.region == region.index and eqn.phase == "backward" and is_dot(graph, eqn):
                    needs.append(bits)
                    bits |= 1 << len(dots)
                    dots.append(eqn.index)
                of_tensor.update(dict.fromkeys(eqn.results, bits))
        return cls(region, dots, needs)

    def waiting(self, number: int, complete: int) -> list[int]:
        """The dots before one, from a place in ``dots`` on, that it does not depend on."""
        return [self.dots[i] for i in range(complete, number) if not self.needs[number] >> i & 1]


def _barriers(resident: Resident, body: _Body) -> Iterator[Barrier]:
    curve, dots = resident.curve, body.dots
    peak, complete = curve.max(), 0
    most = np.maximum.reduceat(curve[: body.region.stop], dots)
    for number, place in enumerate(dots):
        waiting = body.waiting(number, complete)
        size = _held(resident, body.region, place, waiting) if waiting else 0
        if size > LEAST_HELD * peak and most[number] + size > (1 - NEAR) * peak:
            barrier = barrier_before(resident, place, frozenset(waiting))
            results = (resident.shardings.graph.program.equations[e].results[0] for e in waiting)
            yield Barrier(
                equation=barrier.equation,
                operand=barrier.operand,
                is_resident=barrier.is_resident,
                behind=tuple(results),
            )
            complete = number


def _held(resident: Resident, region: Region, place: int, waiting: list[int]) -> int:
    """Bytes on a device of the arrays, made in the trip, that waiting dots keep alive at a place in it.

    Those that nothing else reads from there on, and those that are computed element by element: of these the compiler
    keeps what they are computed of besides, for other readers.
    """
    arrays = DeferredArrays(resident.shardings, resident.in_order, waiting, resident.padded)
    return arrays.num_bytes_in_trip(place, waiting, region.start)
