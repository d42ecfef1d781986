"""Slices and interleaving on TPUs: the sliced array is materialised, and the slices are read out of it.

`jax.lax.associative_scan` takes every second element at every level, and puts results between others: a sum of two
arrays padded with zeros between their elements. Compiled TPU programs write both arrays, and their sources.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.ir import Equation
from jaxplan.xla._effects import Fuse, Kernel, Save, Write
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import CompilerRule, Observed, zoo

_SLICES = frozenset({"slice", "split", "unstack"})
_NEARLY_ALL = 7 / 8


def pads_between(eqn: Equation) -> bool:
    """Whether an equation puts values between the elements of its operand."""
    return eqn.name == "pad" and any(between > 0 for _, _, between in eqn.params["padding_config"])


def takes_every_other(eqn: Equation) -> bool:
    """Whether an equation takes one of every so many elements of its operand."""
    return eqn.name == "slice" and any(n > 1 for n in eqn.params["strides"] or ())


def interleaved(facts: Facts) -> set[int]:
    """Sums of two arrays that are padded between their elements, of which slices are read: each slice is computed of
    the two."""
    if not INTERLEAVED.applies_to(facts.target):
        return set()
    graph = facts.graph
    equations, producer, found = facts.equations, graph.values.producer, set()
    for eqn in equations:
        made = [producer[t] for t in eqn.operands]
        if len(made) == 2 and all(e >= 0 and pads_between(equations[e]) for e in made):
            found.update(t for t in eqn.results if any(equations[c].name in _SLICES for c in graph.values.consumers[t]))
    return found


def _kept_for_slices(facts: Facts) -> Iterator[Save]:
    """Buffers of the forward pass out of which the backward pass reads slices: no slice is saved beside them.

    Of a buffer that slices take apart not all that they read has to be needed; of others nearly all has to.
    """
    tensors, equations, consumers = facts.tensors, facts.equations, facts.graph.values.consumers
    sums, turning, materialised = interleaved(facts), facts.turning, facts.written
    for eqn in equations[:turning]:
        for t in eqn.results:
            slices = [equations[c] for c in set(consumers[t]) if c < turning and equations[c].name in _SLICES]
            saved = [r for e in slices for r in e.results if any(c >= turning for c in consumers[r])]
            size = sum(tensors[r].num_bytes for r in saved)
            if saved and t in sums:
                yield from map(Save, eqn.operands)
            elif saved and materialised[t] and (
                any(map(takes_every_other, slices)) or size >= _NEARLY_ALL * tensors[t].num_bytes
            ):
                yield Save(t)


def _pads(facts: Facts) -> Iterator[Kernel]:
    return (Kernel(e.index) for e in facts.equations if pads_between(e))


def _interleaved_sums(facts: Facts) -> Iterator[Fuse]:
    return map(Fuse, sorted(interleaved(facts).difference(facts.graph.program.outputs)))


def _sources_of_strides(facts: Facts) -> Iterator[Write]:
    return (Write(e.operands[0]) for e in facts.equations if takes_every_other(e))


INTERLEAVED = CompilerRule(
    name="interleaving-pads-are-written",
    backends=("tpu",),
    stage="kernels",
    does="An array that is padded between its elements is written.",
    source=Observed(evidence="a Mamba compiled for v5e", command=zoo("v5e:2x4", "mamba")),
    made_after=("mamba",),
    test="tests/xla/test_slices.py::test_every_level_of_a_scan_saves_what_it_combines_and_both_halves_of_its_result",
    find=_pads,
    priority=1,
)
INTERLEAVED_SUMS = CompilerRule(
    name="interleaved-sums-are-sliced-apart",
    backends=("tpu",),
    stage="fusion",
    does="A slice of a sum of two arrays padded between their elements is computed of the two.",
    source=Observed(evidence="a Mamba compiled for v5e", command=zoo("v5e:2x4", "mamba")),
    made_after=("mamba",),
    test="tests/xla/test_slices.py::test_every_level_of_a_scan_saves_what_it_combines_and_both_halves_of_its_result",
    find=_interleaved_sums,
    priority=3,
)
STRIDED_SLICES = CompilerRule(
    name="strided-slices-read-buffers",
    backends=("tpu",),
    stage="fusion",
    does="An array of which a slice takes every other element is written.",
    source=Observed(evidence="a Mamba compiled for v5e", command=zoo("v5e:2x4", "mamba")),
    made_after=("mamba",),
    test="tests/xla/test_slices.py::test_every_level_of_a_scan_saves_what_it_combines_and_both_halves_of_its_result",
    find=_sources_of_strides,
)
SLICED_BUFFERS = CompilerRule(
    name="buffers-are-saved-rather-than-their-slices",
    backends=("tpu",),
    stage="residuals",
    does="A buffer of which the backward pass reads slices of nearly all is saved, and no slice beside it.",
    source=Observed(evidence="Mamba and Swin transformers compiled for v5e", command=zoo("v5e:2x4", "mamba", "swin")),
    made_after=("mamba", "swin"),
    test="tests/xla/test_slices.py::test_a_slice_is_not_saved_beside_nearly_the_same",
    find=_kept_for_slices,
)
