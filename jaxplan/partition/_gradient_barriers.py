"""Gradient barriers: where deferred weight gradients would raise the peak of a plan.

A dot that makes the gradient of a parameter, or a sum that makes one of a scale, may run at any time before the update.
The compiler was seen to defer all of them, and to keep their operands. That is harmless after the peak of a plan and
costs memory before it, so the lowering asks for the gradients there, and only there.
"""

from __future__ import annotations

from collections.abc import Set

from jaxplan.cost import LEAST_HELD, NEAR, DeferredArrays, barrier_places, gradient_makers
from jaxplan.ir import CONTRACTION_FAMILIES, Equation, backward_barriers
from jaxplan.partition._gradients import Gradients
from jaxplan.partition._lowering import Barrier
from jaxplan.partition._resident import Resident

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
    held = DeferredArrays(resident.shardings, resident.in_order, making, resident.padded)
    places = barrier_places(graph, making, resident.curve, held.num_bytes_between, near)
    return tuple(_moved_forward(resident, _barrier(resident, graph.program.equations[p]), making) for p in places)


def _moved_forward(resident: Resident, barrier: Barrier, making: Set[int]) -> Barrier:
    """The same barrier before the first dot that reads its operand, unless a gradient is made between the two.

    The compiler may run that dot before the gradients otherwise: that of the probabilities of attention, 1 GiB of a
    Llama, where only that of the values waited.
    """
    graph = resident.shardings.graph
    equations, t = graph.program.equations, graph.program.equations[barrier.equation].operands[barrier.operand]
    for e in sorted(graph.values.consumers[t]):
        eqn = equations[e]
        is_dot = graph.rules[e].family in CONTRACTION_FAMILIES and eqn.phase == "backward" and eqn.region < 0
        if is_dot and e < barrier.equation and making.isdisjoint(range(e, barrier.equation)):
            operand = eqn.operands.index(t)
            return Barrier(equation=e, operand=operand, is_resident=resident.is_resident(eqn, operand))
    return barrier


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
    held = DeferredArrays(resident.shardings, resident.in_order, making, resident.padded)
    curve = resident.curve
    peak, found = curve.max(), list[int]()
    for before, place, following in zip([-1, *starts[:-1]], starts, [*starts[1:], len(curve)], strict=True):
        last = found[-1] if found else -1
        waiting = (e for e in making if (last if e in parts else before) < e < place)
        size = held.num_bytes(place, waiting)
        if size > LEAST_HELD * peak and curve[place:following].max() + size > (1 + LEAST_HELD) * peak:
            found.append(place)
    return tuple(found)


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
