"""Where products that make gradients, put off, would raise the peak of a program.

A product that makes the gradient of a parameter, or a sum that makes one of a scale, may come at any time before the
update. The compiler was seen to put off all of them, and to keep what they read. That is harmless after the peak of a
plan and costs memory before it, so the lowering asks for the gradients there, and only there.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from jaxplan.cost import Transfer
from jaxplan.ir import CONTRACTION_FAMILIES, Equation, StepGraph, backward_barriers
from jaxplan.mesh import ChipSpec, Sharding
from jaxplan.xla import Buffers, Target, analyse_buffers, is_gradient

_Array = int | tuple[int, Sharding]
"""What is held: a tensor as it is made, or its copy in another layout."""

LEAST_HELD = 0.03
"""Of the peak without arguments, held by what waits: a barrier costs a little time, as what is on its two sides is no
longer fused."""
NEAR = 0.1
"""How far below the peak, of it, what is alive and what waits must stay together: the compiler holds more than is
counted here, what fusions of both sides write and what it puts off besides: in a Conformer 10 % of the peak."""
NEAR_IN_TILES = 0.05
"""The same on TPUs: at 0.07 a ConvNeXt kept both sides of a rectifier, 75 MiB of 787."""
A_BLOCK = 8
"""Products before one where the peak would be higher, about a block of a transformer, do not wait as well: two barriers
so close made programs larger, a Llama by the probabilities of its attention, 1 GiB. Not so before convolutions."""


def places_of_due_products(
    graph: StepGraph,
    chip: ChipSpec,
    local_bytes: Callable[[int, Sharding | None], int],
    copy_of: Callable[[Equation, int], Transfer | None],
    transfers: Collection[Transfer],
    gradients: Iterable[int],
) -> dict[int, int]:
    """Products of the backward pass before which the gradients are to be there that were made before them.

    Args:
      local_bytes: tensor index, layout (None: that in which it is made) -> bytes of it on one device.
      copy_of: equation, operand -> what brings the operand to the layout in which the equation reads it, if anything.
      transfers: all of these.
      gradients: gradients of parameters, where they are stored or brought there.

    Returns:
      Equation -> the position of the operand that is to wait (`_waiting_operand`). None in loops, which begin with all
      gradients that are there.
    """
    making = _products(graph, gradients)
    if not making:
        return {}
    buffers = analyse_buffers(graph, Target.of(chip), in_order=True)
    curve = bytes_alive(graph, buffers, local_bytes, transfers)
    peak = curve.max()
    held = _Held(graph, buffers, making, local_bytes, copy_of)
    backward = (e for e in graph.program.equations if e.phase == "backward" and e.region < 0)
    others = [e.index for e in backward if _is_product(graph, e) and e.index not in making]
    loops = [region.start for region in graph.program.regions if region.parent < 0]
    # At each barrier, what was made before the one before is there anyway.
    barriers = [-1, -1, *(equations.start for equations in backward_barriers(graph.program))]

    def alive(place: int, following: int, places: Collection[int]) -> tuple[float, int]:
        """The most bytes between a product and the next, with what waits, and the bytes that wait."""
        passed = [start for start in (*loops, *places) if start < place]
        there = max([*passed, barriers[bisect.bisect_right(barriers, place) - 2]])
        size = held.num_bytes(place, (e for e in making if there < e < place))
        return curve[place:following].max() + size, size

    stretches = list(itertools.pairwise([*others, len(graph.program.equations)]))
    above: set[int] = set()
    for place, following in stretches:
        if alive(place, following, above)[0] > (1 + LEAST_HELD) * peak:
            above.add(place)
    near = NEAR_IN_TILES if chip.is_tiled else NEAR
    matrices = {place for place in above if graph.rules[place].family == "contraction"}
    places: set[int] = set()
    for number, (place, following) in enumerate(stretches):
        most, size = alive(place, following, places)
        is_near = most > (1 - near) * peak and matrices.isdisjoint(others[number + 1 : number + 1 + A_BLOCK])
        if size > LEAST_HELD * peak and (is_near or most > (1 + LEAST_HELD) * peak):
            places.add(place)
    equations = graph.program.equations
    return {p: _waiting_operand(graph, buffers, equations[p], local_bytes, copy_of) for p in sorted(places)}


def barriers_that_wait(
    graph: StepGraph,
    chip: ChipSpec,
    local_bytes: Callable[[int, Sharding | None], int],
    copy_of: Callable[[Equation, int], Transfer | None],
    transfers: Collection[Transfer],
    gradients: Collection[int],
    summands: Collection[int],
) -> frozenset[int]:
    """Barriers of the backward pass before which all gradients are to be there, and parts of them, that were made so
    far: a barrier waits for those made before the last one as it is, and for no parts.

    Args:
      summands: parts of gradients that are added up before they are reduced; the others are as above.

    Returns:
      The first equation of each.
    """
    starts = [equations.start for equations in backward_barriers(graph.program)]
    parts = _products(graph, summands)
    making = _products(graph, gradients) | parts
    if not starts or not making:
        return frozenset()
    buffers = analyse_buffers(graph, Target.of(chip), in_order=True)
    curve = bytes_alive(graph, buffers, local_bytes, transfers)
    held, peak = _Held(graph, buffers, making, local_bytes, copy_of), curve.max()
    found: list[int] = []
    for before, place, following in zip([-1, *starts[:-1]], starts, [*starts[1:], len(curve)], strict=True):
        settled = found[-1] if found else -1
        waiting = (e for e in making if (settled if e in parts else before) < e < place)
        size = held.num_bytes(place, waiting)
        if size > LEAST_HELD * peak and curve[place:following].max() + size > (1 + LEAST_HELD) * peak:
            found.append(place)
    return frozenset(found)


class _Held:
    """What products that make gradients, ``making``, hold while they wait."""

    def __init__(
        self,
        graph: StepGraph,
        buffers: Buffers,
        making: set[int],
        local_bytes: Callable[[int, Sharding | None], int],
        copy_of: Callable[[Equation, int], Transfer | None],
    ) -> None:
        self._local_bytes = local_bytes
        self._death = _deaths_without(graph, buffers, making, copy_of)
        self._read = {e: _arrays_read(graph, buffers, graph.program.equations[e], copy_of) for e in making}

    def num_bytes(self, place: int, waiting: Iterable[int]) -> int:
        """On one device, at an equation, of arrays that nothing else reads from there on."""
        arrays = {array for e in waiting for array in self._read[e] if self._death.get(array, -1) < place}
        return sum(self._local_bytes(*(a if isinstance(a, tuple) else (a, None))) for a in arrays)


def _waiting_operand(
    graph: StepGraph,
    buffers: Buffers,
    eqn: Equation,
    local_bytes: Callable[[int, Sharding | None], int],
    copy_of: Callable[[Equation, int], Transfer | None],
) -> int:
    """The position of the operand through which a product waits.

    What waits is written: probabilities of attention that a product computes again were, 1 GiB of a Llama. So it is one
    that is in memory anyway, of the backward pass if there is any, and the smallest such. Of a convolution it is the
    image: a library must see a kernel being reversed.
    """

    def cost(position: int) -> tuple[bool, bool, int]:
        t = eqn.operands[position]
        copy, made_by = copy_of(eqn, t), graph.values.producer[t]
        is_there = bool(copy and copy.collectives) or buffers.materialised[t]
        is_backward = made_by >= 0 and graph.program.equations[made_by].phase == "backward"
        return not is_there, not is_backward, local_bytes(t, copy.target if copy else None)

    positions = range(1 if graph.rules[eqn.index].family == "convolution" else 2)
    return min(positions, key=cost)


def _is_product(graph: StepGraph, eqn: Equation) -> bool:
    return graph.rules[eqn.index].family in CONTRACTION_FAMILIES


def _products(graph: StepGraph, gradients: Iterable[int]) -> set[int]:
    """The products and sums, outside of loops, that make gradients, or what is cast or transposed to one."""
    found: set[int] = set()
    for t in gradients:
        stack = [t]
        while stack:
            index = graph.values.producer[stack.pop()]
            if index < 0 or graph.program.equations[index].region >= 0:
                continue
            eqn = graph.program.equations[index]
            if _is_product(graph, eqn) or graph.rules[index].family == "reduction":
                found.add(index)
            elif graph.rules[index].family in ("elementwise", "shape") and len(eqn.operands) == 1:
                stack.extend(eqn.operands)
    return found


def bytes_alive(
    graph: StepGraph,
    buffers: Buffers,
    local_bytes: Callable[[int, Sharding | None], int],
    transfers: Collection[Transfer],
) -> np.ndarray:
    """Bytes that are alive at each equation, inputs not included."""
    end = len(graph.program.equations)
    changes = np.zeros(end + 2)

    def add(first: int, last: int, size: int) -> None:
        changes[first] += size
        changes[min(max(first, last), end) + 1] -= size

    moved = _moved(graph, transfers)
    for tensor in graph.program.tensors:
        t = tensor.index
        if buffers.materialised[t] and buffers.birth[t] >= 0 and tensor.shape:
            add(buffers.birth[t], min(buffers.death[t], moved.get(t, end)), local_bytes(t, None))
    for transfer in transfers:
        for span in transfer.spans:
            last = max(buffers.read_end[reader] for reader in span.readers)
            add(span.first, last, local_bytes(transfer.tensor, transfer.target))
    return np.cumsum(changes)[: end + 1]


def _moved(graph: StepGraph, transfers: Collection[Transfer]) -> dict[int, int]:
    """Activations of which every reader reads a copy (sums that are taken at once) -> when the last copy is made.

    Gradients of parameters wait for others to be reduced with, so they count until they are read.
    """
    readers: dict[int, set[int]] = defaultdict(set)
    made: dict[int, int] = {}
    for transfer in transfers:
        for span in transfer.spans:
            readers[transfer.tensor].update(span.readers)
            made[transfer.tensor] = max(made.get(transfer.tensor, -1), span.first)
    shown = set(graph.program.outputs)
    return {
        t: at
        for t, at in made.items()
        if t not in shown and readers[t].issuperset(graph.values.consumers[t]) and not is_gradient(graph, t)
    }


def _deaths_without(
    graph: StepGraph,
    buffers: Buffers,
    making: set[int],
    copy_of: Callable[[Equation, int], Transfer | None],
) -> Mapping[_Array, int]:
    """The last equation that reads each array, those of ``making`` not counted; none of what nothing else reads."""
    end = len(graph.program.equations)
    death: dict[_Array, int] = dict.fromkeys(graph.program.outputs, end)
    for eqn in reversed(graph.program.equations):
        if eqn.index in making:
            continue
        last = max([eqn.index, *(death.get(r, -1) for r in eqn.results if not buffers.materialised[r])])
        for t in eqn.operands:
            array = _array_held(eqn, t, copy_of)
            death[array] = max(death.get(array, -1), last)
    return death


def array_read(eqn: Equation, t: int, copy_of: Callable[[Equation, int], Transfer | None]) -> _Array:
    copy = copy_of(eqn, t)
    return (t, copy.target) if copy else t


def _array_held(eqn: Equation, t: int, copy_of: Callable[[Equation, int], Transfer | None]) -> _Array:
    """What is in memory for a read: a slice of what every device has is cut out where it is read."""
    copy = copy_of(eqn, t)
    return (t, copy.target) if copy and copy.collectives else t


def _arrays_read(
    graph: StepGraph, buffers: Buffers, eqn: Equation, copy_of: Callable[[Equation, int], Transfer | None]
) -> set[_Array]:
    """What is in memory, made by the step, that an equation reads, or computes its operands of."""
    found: set[_Array] = set()
    stack, seen = [_array_held(eqn, t, copy_of) for t in eqn.operands], set()
    while stack:
        array = stack.pop()
        if array in seen:
            continue
        seen.add(array)
        t = array[0] if isinstance(array, tuple) else array
        index = graph.values.producer[t]
        if graph.values.free[t] or (index < 0 and array == t):
            continue
        if array != t or buffers.materialised[t]:
            found.add(array)
        else:
            made_by = graph.program.equations[index]
            stack.extend(_array_held(made_by, u, copy_of) for u in made_by.operands)
    return found
