"""Where products that make gradients, put off, would raise the peak of a program.

A product that makes the gradient of a parameter may come at any time before the update. The compiler was seen to put
off all of them, and to keep what they read. That is harmless after the peak of a plan and costs memory before it, so
the lowering asks for the gradients there, and only there.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from jaxplan.cost import Buffers, analyse_buffers
from jaxplan.ir import CONTRACTION_FAMILIES, Equation, StepGraph
from jaxplan.mesh import ChipSpec

LEAST_RISE = 0.03
"""Of the peak without arguments: a barrier costs a little time, as what is on its two sides is no longer fused."""


def places_of_due_products(
    graph: StepGraph,
    chip: ChipSpec,
    local_bytes: Callable[[int], int],
    gradients: Iterable[int],
    turns: Iterable[int] = (),
) -> frozenset[int]:
    """Products of the backward pass before which the gradients are to be there that were made before them.

    Args:
      local_bytes: tensor index -> bytes of it on one device.
      gradients: tensors that are brought to where their parameter is stored.
      turns: equations before which those gradients are there anyway that were made before the last of such equations.

    Returns:
      Equation indices. None where a barrier would make a buffer of what a product computes inside of it, and none in
      loops, which begin with all gradients that are there.
    """
    making = _products(graph, gradients)
    if chip.fuses_products or not making:
        return frozenset()
    buffers = analyse_buffers(graph, chip)
    curve = _curve(graph, buffers, local_bytes)
    death = _deaths_without(graph, buffers, making)
    read = {e: _buffers_read(graph, buffers, graph.program.equations[e].operands) for e in making}
    others = [
        e.index
        for e in graph.program.equations
        if e.phase == "backward" and e.region < 0 and _is_product(graph, e) and e.index not in making
    ]
    places: set[int] = set()
    loops = [region.start for region in graph.program.regions if region.parent < 0]
    turns = [-1, -1, *sorted([*turns, *_backward_barriers(graph)])]
    for place, following in itertools.pairwise([*others, len(graph.program.equations)]):
        passed = [start for start in (*loops, *places) if start < place]
        there = max([*passed, turns[bisect.bisect_right(turns, place) - 2]])
        waiting = [e for e in making if there < e < place]
        held = {t for e in waiting for t in read[e] if death[t] < place}
        if curve[place:following].max() + sum(map(local_bytes, held)) > (1 + LEAST_RISE) * curve.max():
            places.add(place)
    return frozenset(places)


def _backward_barriers(graph: StepGraph) -> list[int]:
    """The first equation of each barrier of the backward pass."""
    found: dict[int, int] = {}
    for eqn in graph.program.equations:
        if eqn.name == "optimization_barrier" and eqn.phase == "backward":
            found.setdefault(id(eqn.origin), eqn.index)
    return list(found.values())


def _is_product(graph: StepGraph, eqn: Equation) -> bool:
    return graph.rules[eqn.index].family in CONTRACTION_FAMILIES


def _products(graph: StepGraph, gradients: Iterable[int]) -> set[int]:
    """The products, outside of loops, that make gradients, or what is cast, transposed or added up to one."""
    found: set[int] = set()
    for t in gradients:
        stack = [t]
        while stack:
            index = graph.values.producer[stack.pop()]
            if index < 0 or graph.program.equations[index].region >= 0:
                continue
            eqn = graph.program.equations[index]
            if _is_product(graph, eqn):
                found.add(index)
            elif graph.rules[index].family in ("elementwise", "shape") and len(eqn.operands) == 1:
                stack.extend(eqn.operands)
    return found


def _curve(graph: StepGraph, buffers: Buffers, local_bytes: Callable[[int], int]) -> np.ndarray:
    """Bytes that are alive at each equation, inputs not included."""
    end = len(graph.program.equations)
    changes = np.zeros(end + 2)
    for tensor in graph.program.tensors:
        t = tensor.index
        if buffers.materialised[t] and buffers.birth[t] >= 0 and tensor.shape:
            size = local_bytes(t)
            changes[buffers.birth[t]] += size
            changes[min(max(buffers.death[t], buffers.birth[t]), end) + 1] -= size
    return np.cumsum(changes)[: end + 1]


def _deaths_without(graph: StepGraph, buffers: Buffers, making: set[int]) -> Sequence[int]:
    """The last equation that reads each tensor, those of ``making`` not counted."""
    death = [-1] * len(graph.program.tensors)
    for t in graph.program.outputs:
        death[t] = len(graph.program.equations)
    for eqn in reversed(graph.program.equations):
        if eqn.index in making:
            continue
        inner = [death[r] for r in eqn.results if not buffers.materialised[r]]
        last = max([eqn.index, *inner])
        for t in eqn.operands:
            death[t] = max(death[t], last)
    return death


def _buffers_read(graph: StepGraph, buffers: Buffers, operands: Iterable[int]) -> set[int]:
    """The buffers, made by the step, that operands are, or are computed of."""
    found: set[int] = set()
    stack, seen = list(operands), set()
    while stack:
        t = stack.pop()
        index = graph.values.producer[t]
        if t in seen or index < 0 or graph.values.free[t]:
            continue
        seen.add(t)
        if buffers.materialised[t]:
            found.add(t)
        else:
            stack.extend(graph.program.equations[index].operands)
    return found
