"""Gradient barriers: where deferred weight gradients would raise the peak of a plan.

A dot that makes the gradient of a parameter, or a sum that makes one of a scale, may run at any time before the update.
The compiler was seen to defer all of them, and to keep their operands. That is harmless after the peak of a plan and
costs memory before it, so the lowering asks for the gradients there, and only there.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterable, Mapping

from jaxplan.cost import Transfer
from jaxplan.ir import CONTRACTION_FAMILIES, Equation, StepGraph, backward_barriers
from jaxplan.mesh import Sharding
from jaxplan.partition._gradients import Gradients
from jaxplan.partition._lowering import Barrier
from jaxplan.partition._resident import Resident

_Array = int | tuple[int, Sharding]
"""An array in memory: a tensor as it is made, or its copy in another sharding."""

LEAST_HELD = 0.03
"""Of the peak without arguments, held by deferred gradients: a barrier costs a little time, as operators on its two
sides are no longer fused."""
NEAR = 0.1
"""How far below the peak, of it, live arrays and held ones must stay together: the compiler holds more than is counted
here, results of fusions of both sides and other operators that it defers: in a Conformer 10 % of the peak."""
NEAR_IN_TILES = 0.05
"""The same on TPUs: at 0.07 a ConvNeXt kept both sides of a rectifier, 75 MiB of 787."""
A_BLOCK = 8
"""Dots before one where the peak would be higher, about a block of a transformer, get no barrier as well: two barriers
so close made programs larger, a Llama by the probabilities of its attention, 1 GiB. Not so before convolutions."""


def find_barriers(resident: Resident, gradients: Gradients) -> tuple[Barrier, ...]:
    """Dots of the backward pass that run only after all earlier weight gradients.

    None in loops, which begin with all gradients that are complete.
    """
    graph = resident.shardings.graph
    making = _makers(graph, gradients.complete)
    if not making:
        return ()
    search = _BarrierSearch(resident, making)
    above = search.above()
    near = NEAR_IN_TILES if resident.shardings.target.tiles_arrays else NEAR
    matrices = {place for place in above if graph.rules[place].family == "contraction"}
    places: set[int] = set()
    for number, (place, following) in enumerate(search.stretches):
        most, size = search.held(place, following, places)
        is_alone = matrices.isdisjoint(search.dots[number + 1 : number + 1 + A_BLOCK])
        is_near = most > (1 - near) * search.peak and is_alone
        if size > LEAST_HELD * search.peak and (is_near or most > (1 + LEAST_HELD) * search.peak):
            places.add(place)
    equations = graph.program.equations
    return tuple(_barrier(resident, equations[place]) for place in sorted(places))


class _BarrierSearch:
    """Live bytes between each two dots of the backward pass, with those that deferred gradients hold.

    Attributes:
      peak: bytes on a device, arguments excluded, as if no gradient was deferred.
      dots: those of the backward pass that make no gradient of a parameter.
      stretches: each of these with the next, or the end of the program.
    """

    def __init__(self, resident: Resident, making: set[int]) -> None:
        graph = resident.shardings.graph
        self._making, self._curve, self._held = making, resident.curve, _Held(resident, making)
        self.peak = self._curve.max()
        backward = (e for e in graph.program.equations if e.phase == "backward" and e.region < 0)
        self.dots = [e.index for e in backward if _is_dot(graph, e) and e.index not in making]
        self.stretches = list(itertools.pairwise([*self.dots, len(graph.program.equations)]))
        self._loops = [region.start for region in graph.program.regions if region.parent < 0]
        # At each barrier, the gradients made before the one before are complete anyway.
        self._barriers = [-1, -1, *(equations.start for equations in backward_barriers(graph.program))]

    def held(self, place: int, following: int, places: Collection[int]) -> tuple[float, int]:
        """The most bytes between a dot and the next, with held ones, and the held bytes; ``places`` have barriers."""
        passed = [start for start in (*self._loops, *places) if start < place]
        complete = max([*passed, self._barriers[bisect.bisect_right(self._barriers, place) - 2]])
        size = self._held.num_bytes(place, (e for e in self._making if complete < e < place))
        return self._curve[place:following].max() + size, size

    def above(self) -> set[int]:
        """Dots at which deferred gradients alone would raise the peak."""
        found: set[int] = set()
        for place, following in self.stretches:
            if self.held(place, following, found)[0] > (1 + LEAST_HELD) * self.peak:
                found.add(place)
        return found


def find_recompute_barriers(resident: Resident, gradients: Gradients) -> tuple[int, ...]:
    """First equation of each barrier of the backward pass, before recomputed blocks, that waits for all earlier
    gradients and for summands of them.

    Any other waits for the gradients made before the last one, and for no summands.
    """
    graph = resident.shardings.graph
    starts = [equations.start for equations in backward_barriers(graph.program)]
    parts = _makers(graph, gradients.summands)
    making = _makers(graph, gradients.complete) | parts
    if not starts or not making:
        return ()
    curve, held = resident.curve, _Held(resident, making)
    peak, found = curve.max(), list[int]()
    for before, place, following in zip([-1, *starts[:-1]], starts, [*starts[1:], len(curve)], strict=True):
        last = found[-1] if found else -1
        waiting = (e for e in making if (last if e in parts else before) < e < place)
        size = held.num_bytes(place, waiting)
        if size > LEAST_HELD * peak and curve[place:following].max() + size > (1 + LEAST_HELD) * peak:
            found.append(place)
    return tuple(found)


class _Held:
    """Arrays that deferred gradients, ``making``, keep alive."""

    def __init__(self, resident: Resident, making: set[int]) -> None:
        self._shardings, equations = resident.shardings, resident.shardings.graph.program.equations
        self._death = _deaths_without(resident, making)
        self._read = {e: _arrays_read(resident, equations[e]) for e in making}

    def num_bytes(self, place: int, waiting: Iterable[int]) -> int:
        """On one device, at an equation, of arrays that nothing else reads from there on."""
        arrays = {array for e in waiting for array in self._read[e] if self._death.get(array, -1) < place}
        return sum(self._shardings.local_bytes(*(a if isinstance(a, tuple) else (a, None))) for a in arrays)


def _barrier(resident: Resident, eqn: Equation) -> Barrier:
    """A barrier before a dot, and the operand that passes through it.

    The barrier materialises it: probabilities of attention that a dot recomputes were, 1 GiB of a Llama. So it is one
    that is in memory anyway, of the backward pass if there is any, and the smallest such. Of a convolution it is the
    image: a library must see a kernel being reversed.
    """
    shardings = resident.shardings
    graph = shardings.graph

    def cost(position: int) -> tuple[bool, bool, int]:
        t = eqn.operands[position]
        copy, made_by = shardings.copy_of(eqn, t), graph.values.producer[t]
        is_buffer = resident.is_moved(copy) or resident.in_order.materialised[t]
        is_backward = made_by >= 0 and graph.program.equations[made_by].phase == "backward"
        return not is_buffer, not is_backward, shardings.local_bytes(t, copy.target if copy else None)

    operand = min(range(1 if graph.rules[eqn.index].family == "convolution" else 2), key=cost)
    return Barrier(equation=eqn.index, operand=operand, is_resident=resident.is_resident(eqn, operand))


def _is_dot(graph: StepGraph, eqn: Equation) -> bool:
    return graph.rules[eqn.index].family in CONTRACTION_FAMILIES


def _makers(graph: StepGraph, gradients: Iterable[int]) -> set[int]:
    """The dots and sums, outside of loops, that make gradients, or the tensors that are cast or transposed to one."""
    found: set[int] = set()
    for t in gradients:
        stack = [t]
        while stack:
            index = graph.values.producer[stack.pop()]
            if index < 0 or graph.program.equations[index].region >= 0:
                continue
            eqn = graph.program.equations[index]
            if _is_dot(graph, eqn) or graph.rules[index].family == "reduction":
                found.add(index)
            elif graph.rules[index].family in ("elementwise", "shape") and len(eqn.operands) == 1:
                stack.extend(eqn.operands)
    return found


def _deaths_without(resident: Resident, making: set[int]) -> Mapping[_Array, int]:
    """The last equation that reads each array, those of ``making`` not counted; none where nothing else reads it."""
    program, buffers = resident.shardings.graph.program, resident.in_order
    end = len(program.equations)
    death: dict[_Array, int] = dict.fromkeys(program.outputs, end)
    for eqn in reversed(program.equations):
        if eqn.index in making:
            continue
        last = max([eqn.index, *(death.get(r, -1) for r in eqn.results if not buffers.materialised[r])])
        for t in eqn.operands:
            array = _array_held(t, resident.shardings.copy_of(eqn, t))
            death[array] = max(death.get(array, -1), last)
    return death


def _array_held(t: int, copy: Transfer | None) -> _Array:
    """The array in memory for a read: a slice of an array that every device has is cut out where it is read."""
    return (t, copy.target) if copy and copy.collectives else t


def _arrays_read(resident: Resident, eqn: Equation) -> set[_Array]:
    """The arrays in memory, made by the step, that an equation reads, or computes its operands from."""
    graph, copy_of = resident.shardings.graph, resident.shardings.copy_of
    found: set[_Array] = set()
    stack, seen = [_array_held(t, copy_of(eqn, t)) for t in eqn.operands], set[_Array]()
    while stack:
        array = stack.pop()
        if array in seen:
            continue
        seen.add(array)
        t = array[0] if isinstance(array, tuple) else array
        index = graph.values.producer[t]
        if graph.values.free[t] or (index < 0 and array == t):
            continue
        if array != t or resident.in_order.materialised[t]:
            found.add(array)
        else:
            made_by = graph.program.equations[index]
            stack.extend(_array_held(u, copy_of(made_by, u)) for u in made_by.operands)
    return found
