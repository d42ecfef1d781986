"""A loop that slices an array by its counter, one part per trip, scans over the array cut into these parts.

``lax.fori_loop(0, K, lambda i, g: g + grad(p, lax.dynamic_slice_in_dim(x, i * b, b)), zeros)`` reads in trip i the
rows i * b to i * b + b - 1, and so does `jax.lax.scan` over ``x.reshape(K, b, ...)``. The second form shows the
micro-batches to `jaxplan.ir._micro_batches`. Start indices are evaluated for every trip with NumPy, from the counter
in the carry or the scanned numbers, with the normalisation of negative indices that `jax.numpy` adds.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxplan.ir._program import REGION_IN, Equation, Program, Region, Tensor
from jaxplan.ir._rewrite import Rewrite, reshape_params

_MOST_TRIPS = 1 << 16
_EVALUATED: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "select_n": lambda which, *cases: functools.reduce(
        lambda found, k: np.where(which == k, cases[k], found), range(1, len(cases)), cases[0]
    ),
    "clamp": lambda low, value, high: np.minimum(np.maximum(value, low), high),
    "convert_element_type": lambda value: value,
    "broadcast_in_dim": lambda value: value,
    "optimization_barrier": lambda value: value,
}
"""Primitives of start indices; every value is an integer scalar or vector, or one integer per trip."""


def scan_over_slices(program: Program) -> Program:
    """The program with each array that scans slice by their counters as a scanned input of them.

    Itself where no slice is found. The fingerprint of a changed program is another one, since its plans are.
    """
    slices: dict[int, list[Equation]] = defaultdict(list)
    for eqn in program.equations:
        if eqn.name == "dynamic_slice" and eqn.region >= 0:
            slices[eqn.region].append(eqn)
    chains = {region: _chain(program, region) for region in slices}
    if not any(chains.values()):
        return program
    scanned = _Scanned(rewrite=Rewrite(program=program))
    for region, loops in chains.items():
        for eqn, source, first in _parts(program, loops, slices[region]) if loops else ():
            scanned.replace(loops[first:], eqn, source)
    return scanned.rewrite.done("scanned") if scanned.rewrite.before else program


def _chain(program: Program, region: int) -> list[Region]:
    """The scans around a body, the outermost first; none where another region is among them."""
    found: list[Region] = []
    while region >= 0:
        found.insert(0, program.regions[region])
        region = found[0].parent
    is_short = math.prod(loop.trips for loop in found) <= _MOST_TRIPS
    return found if is_short and all(loop.kind == "scan" for loop in found) else []


def _evaluate(program: Program, region: int, known: Mapping[int, np.ndarray], depth: int) -> dict[int, np.ndarray]:
    """Values of the integer tensors that equations directly in a region compute of known ones.

    Args:
      known: one dimension per loop around the region, the outermost first, then those of the tensor; a dimension of a
        loop is 1 where all trips have the same value.
      depth: number of loops.
    """
    found = dict(known)
    for eqn in program.equations:
        if eqn.region != region or len(eqn.results) != 1:
            continue
        result = program.tensors[eqn.results[0]]
        if not _is_index(result):
            continue
        if eqn.name == "iota":
            found[result.index] = np.arange(result.num_elements).astype(result.dtype).reshape((1,) * depth + (-1,))
        elif eqn.name in _EVALUATED:
            operands = [_value(program.tensors[t], found, depth) for t in eqn.operands]
            operands = [x if x is None or x.ndim == depth + len(result.shape) else x[..., None] for x in operands]
            if all(operand is not None for operand in operands):
                with np.errstate(over="ignore"):
                    value = np.asarray(_EVALUATED[eqn.name](*operands)).astype(result.dtype)
                shape = (*value.shape[:depth], *result.shape)
                found[result.index] = np.broadcast_to(value, shape)
    return found


def _value(tensor: Tensor, found: Mapping[int, np.ndarray], depth: int) -> np.ndarray | None:
    """The value of an index that is known, a literal, or a constant."""
    if tensor.index in found:
        return found[tensor.index]
    if tensor.kind not in ("literal", "constant") or not _is_index(tensor):
        return None
    return np.asarray(tensor.value).astype(tensor.dtype).reshape((1,) * depth + tensor.shape)


def _is_index(tensor: Tensor) -> bool:
    is_whole = jax.numpy.issubdtype(tensor.dtype, np.integer) or tensor.dtype == np.bool_
    return is_whole and len(tensor.shape) < 2 and tensor.num_elements <= _MOST_TRIPS


def _counters(
    program: Program, region: Region, outside: Mapping[int, np.ndarray], depth: int
) -> dict[int, np.ndarray]:
    """Integers that are known in each trip, in the order of the trips: constants, counters, and scanned numbers.

    ``depth`` is the number of loops around this one; the values have one dimension more.
    """
    exits = [program.equations[e] for e in region.exits]
    steps = {eqn.operands[0]: eqn for eqn in exits if eqn.params["role"] == "carry"}
    made = {t: eqn for eqn in program.equations[slice(*region.ranges[0])] for t in eqn.results}
    found: dict[int, np.ndarray] = {}
    for eqn in (program.equations[e] for e in region.entries[0]):
        (outer,), (inner,), role = eqn.operands, eqn.results, eqn.params["role"]
        start = _value(program.tensors[outer], outside, depth)
        if start is None:
            continue
        if role == "x":
            found[inner] = np.flip(start, depth) if region.params["reverse"] else start
        elif role == "const":
            found[inner] = np.expand_dims(start, depth)
        elif inner in steps and not program.tensors[inner].shape:
            step = _step(program, inner, made.get(steps[inner].operands[1]))
            if step is not None:
                found[inner] = (start[..., None] + step * np.arange(region.trips)).astype(start.dtype)
    return found


def _step(program: Program, counter: int, made: Equation | None) -> int | None:
    """The literal that each trip adds to a counter."""
    if made is None or made.name != "add" or counter not in made.operands:
        return None
    (other,) = [t for t in made.operands if t != counter] or [counter]
    tensor = program.tensors[other]
    return int(tensor.value) if tensor.kind == "literal" and not tensor.shape else None


def _parts(
    program: Program, loops: Sequence[Region], slices: Sequence[Equation]
) -> Iterator[tuple[Equation, int, int]]:
    """Slices in the innermost of nested loops that read part k of an array in the k-th trip.

    Each with the outer array and the number of the outermost loop that the trips are counted over.
    """
    known = _evaluate(program, -1, {}, 0)
    for depth, loop in enumerate(loops):
        known = _evaluate(program, loop.index, _counters(program, loop, known, depth), depth + 1)
    made = {t: eqn for eqn in program.equations for t in eqn.results}
    for eqn in slices:
        first, size = eqn.operands[1], program.tensors[eqn.results[0]].shape[:1]
        sources = _outer(eqn.operands[0], made, loops)
        if not size or first not in known or not sources:
            continue
        for number, source in sources:
            if _is_in_parts(program, loops[number:], eqn, source, made, known[first]):
                yield eqn, source, number
                break


def _is_in_parts(
    program: Program,
    loops: Sequence[Region],
    eqn: Equation,
    source: int,
    made: Mapping[int, Equation],
    starts: np.ndarray,
) -> bool:
    """Whether the trips of loops read an array part by part: rows, or elements where it is cut into parts already."""
    inner, whole = program.tensors[eqn.results[0]].shape, program.tensors[source].shape
    trips = [loop.trips for loop in loops]
    outside, own = starts.shape[: -len(trips)], starts.shape[-len(trips) :]
    fits = inner[1:] == whole[1:] and inner[0] * math.prod(trips) == whole[0] and min(trips) > 1
    if not fits or own != tuple(trips) or any(n > 1 for n in outside):
        return False
    order = np.arange(math.prod(trips)).reshape(trips)
    order = np.flip(order, tuple(d for d, loop in enumerate(loops) if loop.params["reverse"]))
    is_cut = inner[0] > 1 or (len(loops) == 1 and source in made and made[source].name == "reshape")
    return is_cut and np.array_equal(np.clip(starts.reshape(trips), 0, whole[0] - inner[0]), order * inner[0])


def _outer(t: int, made: Mapping[int, Equation], loops: Sequence[Region]) -> list[tuple[int, int]]:
    """(number of a loop, array outside of it) that a tensor of the innermost body is unchanged, outermost first."""
    found: list[tuple[int, int]] = []
    for number in reversed(range(len(loops))):
        eqn = made.get(t)
        while eqn is not None and eqn.name == "optimization_barrier" and eqn.region == loops[number].index:
            t = eqn.operands[eqn.results.index(t)]
            eqn = made.get(t)
        is_entry = eqn is not None and eqn.name == REGION_IN and eqn.params["region"] == loops[number].index
        if eqn is None or not is_entry or eqn.params["role"] != "const":
            break
        t = eqn.operands[0]
        found.insert(0, (number, t))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scanned:
    """Replaces slices by scanned inputs; ``entered``: (innermost loop, outer array) -> its part in the body."""

    rewrite: Rewrite
    entered: dict[tuple[int, int], int] = field(default_factory=dict)

    def replace(self, loops: Sequence[Region], eqn: Equation, source: int) -> None:
        """One slice in the innermost of the loops that it counts the trips of."""
        (result,) = eqn.results
        shape, key = self.rewrite.tensors[result].shape, (loops[-1].index, source)
        is_stack = shape[0] == 1
        if key not in self.entered:
            self.entered[key] = self._entered(loops, eqn, source, shape[1:] if is_stack else shape, is_stack)
        part = self.entered[key]
        if is_stack:
            primitive, params = reshape_params(shape[1:], shape)
            self.rewrite.instead[eqn.index] = dataclasses.replace(
                eqn, primitive=primitive, params=params, operands=(part,)
            )
        else:
            self.rewrite.renamed[result] = part
            self.rewrite.instead[eqn.index] = None

    def _entered(
        self, loops: Sequence[Region], eqn: Equation, source: int, shape: tuple[int, ...], is_stack: bool
    ) -> int:
        """The part of an array in the innermost body."""
        levels = [loop.trips for loop in loops]
        part = source
        if not is_stack:
            cut, part = self.rewrite.reshaped(eqn, source, (*levels, *shape), loops[0].parent)
            self.rewrite.before[loops[0].start].append(cut)
        trips = self.rewrite.tensors[eqn.results[0]].trips // math.prod(levels)
        for loop in loops:
            trips, levels = trips * loop.trips, levels[1:]
            inner = self.rewrite.add(source, (*levels, *shape), trips)
            self._enter(loop, eqn, part, inner)
            part = inner
        return part

    def _enter(self, region: Region, eqn: Equation, stack: int, part: int) -> None:
        first = self.rewrite.program.equations[region.start]
        params = {"region": region.index, "role": "x", "length": region.trips}
        entry = dataclasses.replace(
            first,
            params=params,
            operands=(stack,),
            results=(part,),
            phase=eqn.phase,
        )
        self.rewrite.before[region.ranges[0][0]].append(entry)
