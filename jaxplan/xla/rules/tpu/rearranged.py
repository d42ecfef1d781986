"""Reshapes that no layout makes free: their results are materialised (TPUs).

A transposition costs nothing where the compiler may choose the order in which dimensions lie, and a reshape nothing
where the merged dimensions lie side by side. Where an image is cut into windows, rows of windows and rows inside come
of one dimension, and a window takes rows inside and columns inside together: no order of the image has it so. Compiled
TPU programs write such windows, and the image again behind them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxplan.ir import StepGraph
from jaxplan.xla._effects import Absorb, Hold, Kernel
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import CompilerRule, Observed, zoo


class _Part(NamedTuple):
    """Of a dimension: indices that are ``stride`` elements of it apart, ``size`` of them."""

    dim: int
    size: int
    stride: int


def is_rearranged(graph: StepGraph, equation: int) -> bool:
    """Whether an equation merges dimensions that lie side by side in no order of the dimensions of the tensor that its
    operand is a view of."""
    program = graph.program
    if program.equations[equation].name != "reshape":
        return False
    views = [equation]
    while (made := graph.values.producer[program.equations[views[-1]].operands[0]]) >= 0:
        if program.equations[made].name not in ("reshape", "transpose"):
            break
        views.append(made)
    if len(views) < 3:  # a split, a transposition and a merge
        return False
    shape = program.tensors[program.equations[views[-1]].operands[0]].shape
    dims: list[list[_Part]] | None = [[_Part(d, size, 1)] for d, size in enumerate(shape)]
    for e in reversed(views):
        eqn = program.equations[e]
        if eqn.name == "transpose":
            dims = [dims[d] for d in eqn.params["permutation"]]
        else:
            dims = _reshaped(dims, program.tensors[eqn.results[0]].shape)
        if dims is None:
            return False
        apart = any(_are_apart(shape, *pair) for parts in dims for pair in itertools.pairwise(parts))
        if apart:
            return e == equation
    return False


def _written_wider(facts: Facts) -> Iterator[Hold]:
    """Rearranged tensors that are read only as cast to a wider dtype: they are written so."""
    graph, program = facts.graph, facts.graph.program
    for eqn in program.equations:
        if is_rearranged(graph, eqn.index) and eqn.results[0] not in program.returned:
            (t,) = eqn.results
            readers = [program.equations[e] for e in graph.values.consumers[t]]
            casts = {program.tensors[e.results[0]].itemsize if e.name == "convert_element_type" else 0 for e in readers}
            if len(casts) == 1 and max(casts) > program.tensors[t].itemsize:
                yield Hold(t, max(casts))


def _reshaped(dims: Sequence[Sequence[_Part]], shape: Sequence[int]) -> list[list[_Part]] | None:
    """The parts of which each new dimension consists, or nothing where a part would have to be cut unevenly."""
    rest = [part for parts in reversed(dims) for part in reversed(parts) if part.size > 1]
    result: list[list[_Part]] = []
    for size in shape:
        parts: list[_Part] = []
        while size > 1:
            if not rest:  # of an array without elements
                return None
            part = rest.pop()
            taken = math.gcd(size, part.size)
            if taken in (size, part.size):
                if taken < part.size:
                    rest.append(part._replace(size=part.size // taken))
                    part = part._replace(size=taken, stride=part.stride * (part.size // taken))
                if parts and parts[-1].dim == part.dim and parts[-1].stride == part.stride * part.size:
                    part = part._replace(size=part.size * parts.pop().size)
                parts.append(part)
                size //= taken
            else:
                return None
        result.append(parts)
    return result


def _are_apart(shape: Sequence[int], major: _Part, minor: _Part) -> bool:
    """Whether two parts of one dimension lie side by side in no order of dimensions of a shape."""
    return major.stride > 1 or minor.stride * minor.size < shape[minor.dim]


def _written_reshapes(facts: Facts) -> Iterator[Kernel | Absorb]:
    for eqn in facts.equations:
        if is_rearranged(facts.graph, eqn.index):
            yield Kernel(eqn.index)
            yield Absorb(eqn.index, eqn.operands[0])


REARRANGED = CompilerRule(
    name="reshapes-that-no-layout-frees-are-written",
    backends=("tpu",),
    stage="kernels",
    does="A reshape that merges dimensions which are adjacent in no layout (windows of an image) is written.",
    source=Observed(evidence="a Swin transformer compiled for v5e", command=zoo("v5e:2x4", "swin")),
    made_after=("swin",),
    test="tests/xla/test_rearranged.py::test_windows_are_written_on_tpus_and_kept_for_the_backward_pass",
    find=_written_reshapes,
    priority=1,
)
REARRANGED_WIDE = CompilerRule(
    name="rearranged-values-are-written-widened",
    backends=("tpu",),
    stage="storage",
    does="A reshape that is written and only read as cast to a wider dtype is written in that.",
    source=Observed(evidence="a Swin transformer compiled for v5e", command=zoo("v5e:2x4", "swin")),
    made_after=("swin",),
    test="tests/xla/test_rearranged.py::test_what_is_only_read_widened_is_written_so",
    find=_written_wider,
)
