"""Slices and interleaving on TPUs: what is sliced is written, and the slices are read out of it.

`jax.lax.associative_scan` takes every second element at every level, and puts results between others: a sum of two
arrays padded with zeros between their elements. Compiled TPU programs write both arrays, and what they are made of.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxplan.ir import Equation, StepGraph
from jaxplan.xla._target import Target
from jaxplan.xla.rules.tpu.fusion import INTERLEAVED, SLICED_BUFFERS

_SLICES = frozenset({"slice", "split", "unstack"})
_NEARLY_ALL = 7 / 8


def pads_between(eqn: Equation) -> bool:
    """Whether an equation puts values between the elements of its operand."""
    return eqn.name == "pad" and any(between > 0 for _, _, between in eqn.params["padding_config"])


def takes_every_other(eqn: Equation) -> bool:
    """Whether an equation takes one of every so many elements of its operand."""
    return eqn.name == "slice" and any(n > 1 for n in eqn.params["strides"] or ())


def woven(graph: StepGraph, target: Target) -> set[int]:
    """Sums of two arrays that are padded between their elements, of which slices are read: each slice is computed of
    the two."""
    if not INTERLEAVED.applies_to(target):
        return set()
    equations, producer, found = graph.program.equations, graph.values.producer, set()
    for eqn in equations:
        made = [producer[t] for t in eqn.operands]
        if len(made) == 2 and all(e >= 0 and pads_between(equations[e]) for e in made):
            found.update(t for t in eqn.results if any(equations[c].name in _SLICES for c in graph.values.consumers[t]))
    return found


def kept_for_slices(graph: StepGraph, target: Target, turning: int, materialised: Sequence[bool]) -> set[int]:
    """Buffers of the forward pass out of which the backward pass reads slices: no slice is saved beside them.

    Of a buffer that slices take apart not all that they read has to be needed; of others nearly all has to.
    """
    if not SLICED_BUFFERS.applies_to(target):
        return set()
    tensors, equations, consumers = graph.program.tensors, graph.program.equations, graph.values.consumers
    sums, found = woven(graph, target), set()
    for eqn in equations[:turning]:
        for t in eqn.results:
            slices = [equations[c] for c in set(consumers[t]) if c < turning and equations[c].name in _SLICES]
            saved = [r for e in slices for r in e.results if any(c >= turning for c in consumers[r])]
            size = sum(tensors[r].num_bytes for r in saved)
            if saved and t in sums:
                found.update(eqn.operands)
            elif saved and materialised[t] and (
                any(map(takes_every_other, slices)) or size >= _NEARLY_ALL * tensors[t].num_bytes
            ):
                found.add(t)
    return found
