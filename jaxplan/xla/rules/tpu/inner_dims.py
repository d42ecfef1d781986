"""Innermost dimensions, in tiled memory, of images and of results of batched dots."""

from __future__ import annotations

from jaxplan.ir import Equation, StepGraph
from jaxplan.xla._target import Target
from jaxplan.xla.rules.tpu.layouts import IMAGES, MATRICES_OF_BATCHES, MIXED_TOKENS

_KEEP_DIMENSIONS = frozenset({"elementwise", "window"})
_SLICED = frozenset({"slice", "split", "squeeze", "transpose", "unstack"})


def inner_dims(graph: StepGraph, target: Target) -> dict[int, tuple[int, int]]:
    """Innermost dimensions, in ascending order, of operands and results of convolutions, of results of batched
    dots (the matrices' own), of `mixed_tokens`, and of their element-wise and window
    results. Arguments are not among them."""
    found: dict[int, tuple[int, int]] = {}
    for eqn in graph.program.equations:
        if eqn.name == "dot_general" and MATRICES_OF_BATCHES.applies_to(target):
            _of_product(graph, eqn, found)
        elif eqn.name == "conv_general_dilated" and IMAGES.applies_to(target):
            numbers = eqn.params["dimension_numbers"]
            specs = zip((*eqn.operands, *eqn.results), (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec))
            for t, (one, other, *_) in specs:
                found.setdefault(t, (min(one, other), max(one, other)))
    return _spread(graph, {**mixed_tokens(graph, target), **found})


def mixed_tokens(graph: StepGraph, target: Target) -> dict[int, tuple[int, int]]:
    """Tokens `[B, T, D]` that are transposed for a dot over T, a mixer's, and their element-wise
    results: T and D are innermost, as without the transposition."""
    found = {}
    for eqn in graph.program.equations if MIXED_TOKENS.applies_to(target) else ():
        if eqn.name != "dot_general" or eqn.phase != "forward":
            continue
        (contracted, _), (batch, _) = eqn.params["dimension_numbers"]
        made = graph.values.producer[eqn.operands[0]]
        if tuple(contracted) == (2,) and not batch and made >= 0:
            transpose = graph.program.equations[made]
            if transpose.name == "transpose" and tuple(transpose.params["permutation"]) == (0, 2, 1):
                found[transpose.operands[0]] = 1, 2
    return _spread(graph, found)


def _spread(graph: StepGraph, found: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Dimensions of these tensors' results and sources in which dimensions stay."""
    program, found = graph.program, dict(found)
    for eqn in (*program.equations, *reversed(program.equations), *program.equations) if found else ():
        if graph.rules[eqn.index].family not in _KEEP_DIMENSIONS:
            continue
        ends = [*eqn.operands, *eqn.results]
        known = [t for t in ends if t in found]
        for t in ends if known else ():
            if len(program.tensors[t].shape) == len(program.tensors[known[0]].shape):
                found.setdefault(t, found[known[0]])
    return {t: dims for t, dims in found.items() if graph.values.producer[t] >= 0}


def _of_product(graph: StepGraph, eqn: Equation, found: dict[int, tuple[int, int]]) -> None:
    """Batch dimensions come first in a result, then those of the left operand, then those of the right one."""
    contracted, batch = eqn.params["dimension_numbers"]
    (result,) = eqn.results
    left, right = (len(graph.program.tensors[t].shape) for t in eqn.operands)
    first = left - len(contracted[0])
    own = first - len(batch[0]), right - len(contracted[1]) - len(batch[1])
    if batch[0] and all(own):
        found.setdefault(result, (first - 1, first + own[1] - 1))
    for side, t in enumerate(eqn.operands):
        taken = {*contracted[side], *batch[side]}
        free = [d for d in range(len(graph.program.tensors[t].shape)) if d not in taken]
        if batch[0] and len(free) == len(contracted[side]) == 1:
            one, other = free[0], contracted[side][0]
            _of_view(graph, t, (min(one, other), max(one, other)), found)


def _of_view(graph: StepGraph, t: int, dims: tuple[int, int], found: dict[int, tuple[int, int]]) -> None:
    """Of a dot's operand, and of the tensor that it is a slice of."""
    found.setdefault(t, dims)
    while (made := graph.values.producer[t]) >= 0 and graph.program.equations[made].name in _SLICED:
        eqn = graph.program.equations[made]
        t = eqn.operands[0]
        if eqn.name == "squeeze":
            kept = [d for d in range(len(graph.program.tensors[t].shape)) if d not in eqn.params["dimensions"]]
            dims = kept[dims[0]], kept[dims[1]]
        elif eqn.name == "transpose":
            one, other = (eqn.params["permutation"][d] for d in dims)
            dims = min(one, other), max(one, other)
        elif eqn.name == "unstack":
            one, other = (d + (d >= eqn.params["axis"]) for d in dims)
            dims = one, other
        found.setdefault(t, dims)
