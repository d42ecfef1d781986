"""An array that is sliced part by part at fixed places is cut into these parts, which are then read by their numbers.

``x[0:b]``, ``x[b:2 * b]`` and so on to the end, of a loop of Python over micro-batches or of `jnp.split`, become
elements of ``x.reshape(K, b, ...)``: the form in which `jaxplan.ir._micro_batches` sees the micro-batches of a loop.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from jaxplan.ir._program import Equation, Program
from jaxplan.ir._rewrite import Rewrite, reshape_params


class _Slice(NamedTuple):
    """Rows of an array, from ``start`` on: the equation that makes them, and its result."""

    eqn: Equation
    result: int
    start: int


def index_parts(program: Program) -> Program:
    """The program with each array that is sliced into equal parts, all of them, as a stack of these; itself without."""
    found: dict[tuple[int, int], list[_Slice]] = defaultdict(list)
    for eqn in program.equations:
        for one in _slices(program, eqn):
            found[eqn.operands[0], program.tensors[one.result].shape[0]].append(one)
    rewrite = Rewrite(program=program)
    for (source, size), slices in found.items():
        number, rest = divmod(program.tensors[source].shape[0], max(1, size))
        starts = {one.start for one in slices}
        regions = {one.eqn.region for one in slices}
        if min(number, size) > 1 and not rest and starts == {k * size for k in range(number)} and len(regions) == 1:
            _index(rewrite, source, (number, size), slices)
    return rewrite.done("in parts") if rewrite.before else program


def _slices(program: Program, eqn: Equation) -> Iterator[_Slice]:
    """The slices along dimension 0 alone that an equation makes."""
    whole = program.tensors[eqn.operands[0]].shape if eqn.operands else ()
    if not whole:
        return
    if eqn.name == "split" and eqn.params["axis"] == 0:
        starts = np.cumsum([0, *eqn.params["sizes"]]).tolist()
        yield from (_Slice(eqn, t, start) for t, start in zip(eqn.results, starts))
        return
    start = None
    if eqn.name == "slice" and set(eqn.params["strides"] or (1,)) == {1}:
        start = int(eqn.params["start_indices"][0])
    elif eqn.name == "dynamic_slice":
        tensor = program.tensors[eqn.operands[1]]
        start = int(np.asarray(tensor.value)) if tensor.kind == "literal" else None
    (result,) = eqn.results if start is not None else (-1,)
    if start is None or program.tensors[result].shape[1:] != whole[1:]:
        return
    size = program.tensors[result].shape[0]
    yield _Slice(eqn, result, min(max(start, 0), whole[0] - size))


def _index(rewrite: Rewrite, source: int, cut: tuple[int, int], slices: list[_Slice]) -> None:
    """Replace slices of an array by elements of a stack, made in front of the first."""
    tensors, (number, size) = rewrite.tensors, cut
    rest = tensors[source].shape[1:]
    first = min(slices, key=lambda one: one.eqn.index).eqn
    reshape, stack = rewrite.reshaped(first, source, (number, size, *rest), first.region)
    rewrite.before[first.index].append(dataclasses.replace(reshape, phase="forward"))
    element = (1, size, *rest)
    for one in slices:
        k = one.start // size
        (slice_,) = jax.make_jaxpr(lambda x, k=k: jax.lax.slice_in_dim(x, k, k + 1))(
            jax.ShapeDtypeStruct(tensors[stack].shape, np.float32)
        ).jaxpr.eqns
        inner = rewrite.add(source, element, tensors[source].trips)
        changes = {"primitive": slice_.primitive, "params": slice_.params}
        rewrite.before[one.eqn.index].append(
            dataclasses.replace(one.eqn, **changes, operands=(stack,), results=(inner,))
        )
        primitive, params = reshape_params(element, element[1:])
        changes = {"primitive": primitive, "params": params}
        rewrite.before[one.eqn.index].append(
            dataclasses.replace(one.eqn, **changes, operands=(inner,), results=(one.result,))
        )
        rewrite.instead[one.eqn.index] = None
