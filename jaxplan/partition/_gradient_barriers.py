"""Gradient barriers: where deferred weight gradients would raise the peak of a plan.

A dot that makes the gradient of a parameter, or a sum that makes one of a scale, may run at any time before the update.
The compiler was seen to defer all of them, and to keep their operands. That is harmless after the peak of a plan and
costs memory before it, so the lowering asks for the gradients there, and only there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jaxplan.cost import LEAST_HELD, NEAR, Transfer, barrier_places, gradient_makers
from jaxplan.ir import Equation, backward_barriers
from jaxplan.mesh import Sharding
from jaxplan.partition._gradients import Gradients
from jaxplan.partition._lowering import Barrier
from jaxplan.partition._resident import Resident

_Array = int | tuple[int, Sharding]
"""An array in memory: a tensor as it is made, or its copy in another sharding."""

NEAR_IN_TILES = 0.05
"""`NEAR` on TPUs: at 0.07 a ConvNeXt kept both sides of a rectifier, 75 MiB of 787."""


def find_barriers(resident: Resident, gradients: Gradients) -> tuple[Barrier, ...]:
    """Dots of the backward pass that run only after all earlier weight gradients.

    None in loops, which begin with all gradients that are complete.
    """
    graph = resident.shardings.graph
    making = gradient_makers(graph, gradients.complete)
    if not making:
        return ()
    near = NEAR_IN_TILES if resident.shardings.target.tiles_arrays else NEAR
    places = barrier_places(graph, making, resident.curve, _Held(resident, making).num_bytes, near)
    return tuple(_barrier(resident, graph.program.equations[place]) for place in places)


def find_recompute_barriers(resident: Resident, gradients: Gradients) -> tuple[int, ...]:
    """First equation of each barrier of the backward pass, before recomputed blocks, that waits for all earlier
    gradients and for summands of them.

    Any other waits for the gradients made before the last one, and for no summands.
    """
    graph = resident.shardings.graph
    starts = [equations.start for equations in backward_barriers(graph.program)]
    parts = gradient_makers(graph, gradients.summands)
    making = gradient_makers(graph, gradients.complete) | parts
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
