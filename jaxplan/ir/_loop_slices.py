"""A loop that slices an array by its counter, one part per trip, scans over the array cut into these parts.

``lax.fori_loop(0, K, lambda i, g: g + grad(p, lax.dynamic_slice_in_dim(x, i * b, b)), zeros)`` reads in trip i the
rows i * b to i * b + b - 1, and so does `jax.lax.scan` over ``x.reshape(K, b, ...)``. The second form shows the
micro-batches to `jaxplan.ir._micro_batches`. Start indices are evaluated for every trip with NumPy, from the counter
in the carry or the scanned numbers, with the normalisation of negative indices that `jax.numpy` adds.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxplan.ir._dead_code import remove_dead
from jaxplan.ir._program import REGION_IN, Equation, Program, Region, Tensor

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
    """The program with each array that an outermost scan slices by its counter as a scanned input of it.

    Itself where no slice is found. The fingerprint of a changed program is another one, since its plans are.
    """
    scans = {r.index: r for r in program.regions if r.kind == "scan" and r.parent < 0}
    slices: dict[int, list[Equation]] = defaultdict(list)
    for eqn in program.equations:
        if eqn.name == "dynamic_slice" and eqn.region in scans and scans[eqn.region].trips <= _MOST_TRIPS:
            slices[eqn.region].append(eqn)
    if not slices:
        return program
    outside = _evaluate(program, program.equations, -1, {})
    rewrite = _Rewrite(program=program)
    for region in map(scans.__getitem__, slices):
        for eqn, source, is_stack in _parts(program, region, slices[region.index], outside):
            rewrite.replace(region, eqn, source, is_stack)
    return rewrite.done() if rewrite.before else program


def _evaluate(
    program: Program, equations: Sequence[Equation], region: int, known: Mapping[int, np.ndarray]
) -> dict[int, np.ndarray]:
    """Values of the integer tensors that equations directly in a region compute of known ones.

    Args:
      known: inside of a loop, one value per trip of each known scalar.
    """
    found = dict(known)
    for eqn in equations:
        if eqn.region != region or len(eqn.results) != 1:
            continue
        result = program.tensors[eqn.results[0]]
        if not _is_index(result) or (region >= 0 and result.shape):
            continue
        if eqn.name == "iota":
            found[result.index] = np.arange(result.num_elements).astype(result.dtype)
        elif eqn.name in _EVALUATED:
            operands = [_value(program.tensors[t], found) for t in eqn.operands]
            if all(operand is not None for operand in operands):
                with np.errstate(over="ignore"):
                    value = np.asarray(_EVALUATED[eqn.name](*operands)).astype(result.dtype)
                found[result.index] = value if region >= 0 else np.broadcast_to(value, result.shape)
    return found


def _value(tensor: Tensor, found: Mapping[int, np.ndarray]) -> np.ndarray | None:
    """The value of an index that is known, a literal, or a constant."""
    if tensor.index in found:
        return found[tensor.index]
    is_given = tensor.kind in ("literal", "constant") and _is_index(tensor)
    return np.asarray(tensor.value).astype(tensor.dtype) if is_given else None


def _is_index(tensor: Tensor) -> bool:
    is_whole = jax.numpy.issubdtype(tensor.dtype, np.integer) or tensor.dtype == np.bool_
    return is_whole and len(tensor.shape) < 2 and tensor.num_elements <= _MOST_TRIPS


def _counters(program: Program, region: Region, outside: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Scalars that are known in each trip, in the order of the trips: constants, counters, and scanned numbers."""
    steps = {program.equations[e].operands[0]: program.equations[e] for e in region.exits}
    made = {t: eqn for eqn in program.equations[slice(*region.ranges[0])] for t in eqn.results}
    found: dict[int, np.ndarray] = {}
    for eqn in (program.equations[e] for e in region.entries[0]):
        (outer,), (inner,), role = eqn.operands, eqn.results, eqn.params["role"]
        start = _value(program.tensors[outer], outside)
        if start is None or program.tensors[inner].shape:
            continue
        if role == "x":
            found[inner] = start[::-1] if region.params["reverse"] else start
        elif role == "const":
            found[inner] = np.broadcast_to(start, (region.trips,))
        elif inner in steps:
            step = _step(program, inner, made.get(steps[inner].operands[1]))
            if step is not None:
                found[inner] = (start + step * np.arange(region.trips)).astype(start.dtype)
    return found


def _step(program: Program, counter: int, made: Equation | None) -> int | None:
    """The literal that each trip adds to a counter."""
    if made is None or made.name != "add" or counter not in made.operands:
        return None
    (other,) = [t for t in made.operands if t != counter] or [counter]
    tensor = program.tensors[other]
    return int(tensor.value) if tensor.kind == "literal" and not tensor.shape else None


def _parts(
    program: Program, region: Region, slices: list[Equation], outside: Mapping[int, np.ndarray]
) -> Iterator[tuple[Equation, int, bool]]:
    """Slices that read part k of an array where the loop reads element k of a scanned one.

    Each with the outer array, and whether that is a reshape into parts already: then b is 1.
    """
    body = program.equations[slice(*region.ranges[0])]
    starts = _evaluate(program, body, region.index, _counters(program, region, outside))
    made = {t: eqn for eqn in program.equations for t in eqn.results}
    trips = np.arange(region.trips)
    for eqn in slices:
        source = _outer(eqn.operands[0], made, region)
        first, inner = eqn.operands[1], program.tensors[eqn.results[0]].shape
        if source is None or first not in starts or region.trips < 2:
            continue
        whole = program.tensors[source].shape
        fits = inner and inner[1:] == whole[1:] and inner[0] * region.trips == whole[0]
        order = trips[::-1] if region.params["reverse"] else trips
        if not fits or not np.array_equal(np.clip(starts[first], 0, whole[0] - inner[0]), order * inner[0]):
            continue
        if inner[0] > 1:
            yield eqn, source, False
        elif source in made and made[source].name == "reshape":
            yield eqn, source, True


def _outer(t: int, made: Mapping[int, Equation], region: Region) -> int | None:
    """The outer array that is a tensor of a body unchanged."""
    eqn = made.get(t)
    while eqn is not None and eqn.name == "optimization_barrier" and eqn.region == region.index:
        eqn = made.get(eqn.operands[0])
    if eqn is None or eqn.name != REGION_IN or eqn.params["region"] != region.index:
        return None
    return eqn.operands[0] if eqn.params["role"] == "const" else None


@functools.cache
def _reshape(shape: tuple[int, ...], new: tuple[int, ...]) -> tuple[Any, Mapping[str, Any]]:
    """The primitive and parameters of a reshape."""
    array = jax.ShapeDtypeStruct(shape, np.float32)
    (eqn,) = jax.make_jaxpr(lambda x: jax.lax.reshape(x, new))(array).jaxpr.eqns
    return eqn.primitive, eqn.params


@dataclass(kw_only=True)
class _Rewrite:
    """Replaces slices by scanned inputs, and puts the program together.

    Attributes:
      tensors: with those that are added.
      before: equation -> equations that are put in front of it.
      entered: (region, outer array) -> its element in the body.
      stacks: outer array -> itself cut into parts.
      renamed: tensor of a body -> the equal one that is read in its place.
      instead: slice -> the equation in its place, None for none.
    """

    program: Program
    tensors: list[Tensor] = field(init=False)
    before: dict[int, list[Equation]] = field(default_factory=lambda: defaultdict(list))
    entered: dict[tuple[int, int], int] = field(default_factory=dict)
    renamed: dict[int, int] = field(default_factory=dict)
    instead: dict[int, Equation | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = list(self.program.tensors)

    def replace(self, region: Region, eqn: Equation, source: int, is_stack: bool) -> None:
        """One slice of one loop."""
        (result,) = eqn.results
        shape, key = self.tensors[result].shape, (region.index, source)
        if key not in self.entered:
            stack = source if is_stack else self._cut(region, eqn, source, (region.trips, *shape))
            part = self._add(result, shape[1:] if is_stack else shape, region.trips)
            self._enter(region, eqn, stack, part)
            self.entered[key] = part
        part = self.entered[key]
        if is_stack:
            primitive, params = _reshape(shape[1:], shape)
            self.instead[eqn.index] = dataclasses.replace(
                eqn, primitive=primitive, params=params, operands=(part,)
            )
        else:
            self.renamed[result] = part
            self.instead[eqn.index] = None

    def _add(self, like: int, shape: tuple[int, ...], trips: int) -> int:
        """A new tensor of the dtype of another."""
        index, tensor = len(self.tensors), self.tensors[like]
        self.tensors.append(
            Tensor(
                index=index,
                shape=shape,
                dtype=tensor.dtype,
                itemsize=tensor.itemsize,
                kind="computed",
                trips=trips,
            )
        )
        return index

    def _cut(self, region: Region, eqn: Equation, source: int, shape: tuple[int, ...]) -> int:
        stack = self._add(source, shape, 1)
        primitive, params = _reshape(self.tensors[source].shape, shape)
        cut = dataclasses.replace(
            eqn,
            primitive=primitive,
            params=params,
            operands=(source,),
            results=(stack,),
            region=region.parent,
        )
        self.before[region.start].append(cut)
        return stack

    def _enter(self, region: Region, eqn: Equation, stack: int, part: int) -> None:
        first = self.program.equations[region.start]
        params = {"region": region.index, "role": "x", "length": region.trips}
        entry = dataclasses.replace(
            first,
            params=params,
            operands=(stack,),
            results=(part,),
            phase=eqn.phase,
        )
        self.before[region.ranges[0][0]].append(entry)

    def done(self) -> Program:
        """The program, without the slices and without the counters that nothing else reads."""
        equations: list[Equation] = []
        places: list[int] = []
        ends: list[int] = []
        entries: dict[int, list[int]] = defaultdict(list)
        for eqn in self.program.equations:
            ends.append(len(equations))
            for added in self.before.get(eqn.index, ()):
                if added.name == REGION_IN:
                    entries[added.params["region"]].append(len(equations))
                equations.append(added.at(len(equations), added.operands, added.results))
            places.append(len(equations))
            kept = self.instead.get(eqn.index, eqn)
            if kept is not None:
                operands = tuple([self.renamed.get(t, t) for t in kept.operands])
                equations.append(kept.at(len(equations), operands, kept.results))
        ends.append(len(equations))
        regions = [
            dataclasses.replace(
                region,
                start=places[region.start],
                stop=ends[region.stop],
                entries=_entries(region, places, entries[region.index]),
                exits=tuple(places[e] for e in region.exits),
                ranges=tuple((places[first], ends[last]) for first, last in region.ranges),
            )
            for region in self.program.regions
        ]
        kept_equations, kept_regions = remove_dead(equations, self.program.outputs, regions)
        return dataclasses.replace(
            self.program,
            tensors=tuple(self.tensors),
            equations=kept_equations,
            regions=kept_regions,
            fingerprint=hashlib.sha256(f"{self.program.fingerprint} scanned".encode()).hexdigest(),
        )


def _entries(region: Region, places: list[int], added: list[int]) -> tuple[tuple[int, ...], ...]:
    """Entries at their new places, and behind those of the first body the added ones."""
    bodies = [tuple(places[e] for e in body) for body in region.entries]
    return ((*bodies[0], *added), *bodies[1:])
