"""Layers of a loop recomputed: the stacks that the forward loop leaves to the backward loop are rewritten.

A differentiated `scan` over layers is two loops: the first one returns stacks of the values that the second one reads,
its *residuals*. Here the forward loop stacks the carry that enters each layer in their place, and the body of the
backward loop recomputes them from it, as it would with `jax.checkpoint` around the body. Results of contractions may be
kept. No barrier is needed: nothing merges the bodies of two loops.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxplan.core import _compat
from jaxplan.ir._blocks import LEAST_INTENSITY
from jaxplan.ir._program import RematPolicy
from jaxplan.ir.microbatch._loop import read_atom
from jaxplan.ir.microbatch._pairs import Pair, Paired, inner_jaxprs

_CONTRACTIONS = frozenset({"dot_general", "conv_general_dilated"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """The body of a scan, calls inlined: values of its constants come first, then carries, then slices.

    Attributes:
      place: of the scan among the equations of the step.
    """

    place: int
    eqn: Pair
    of: Paired
    num_consts: int
    num_carry: int

    @classmethod
    def read(cls, flat: Paired, place: int) -> _Body:
        eqn = flat.equations[place]
        closed = eqn.full.params["jaxpr"]
        num_consts, num_carry = _compat.scan_counts(eqn.full.params, len(eqn.inputs))
        of = Paired.of(closed, closed)
        return cls(place=place, eqn=eqn, of=of, num_consts=num_consts, num_carry=num_carry)

    @property
    def carries(self) -> range:
        return range(self.num_consts, self.num_consts + self.num_carry)

    @property
    def slices(self) -> range:
        return range(self.num_consts + self.num_carry, len(self.eqn.inputs))

    @property
    def stacked(self) -> dict[int, Any]:
        """Value of the step that is a stack of results -> the result of the body."""
        return dict(zip(self.eqn.outputs[self.num_carry :], self.of.outputs[self.num_carry :], strict=True))

    def num_bytes(self, values: Iterable[int]) -> int:
        avals = [self.of.values[t].aval for t in values]
        return sum(math.prod(aval.shape) * _compat.itemsize(aval.dtype) for aval in avals)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recomputed:
    """The values of one forward loop that a backward loop recomputes.

    Attributes:
      forward, backward: the two bodies.
      places: slice of the backward body -> the residual, a value of the forward body, that is computed in its place.
      gone: the stacks of these.
      kept: values of the forward body that are read for that, in stacks; ``slices``: slices of it that are.
      equations: of the forward body, those that are recomputed.
    """

    forward: _Body
    backward: _Body
    places: Mapping[int, int]
    gone: frozenset[int]
    kept: tuple[int, ...]
    slices: tuple[int, ...]
    equations: tuple[Pair, ...]


def recompute_in_loops(closed: Any, policy: RematPolicy) -> Any:
    """The closed jaxpr of a step with layers of its loops recomputed; itself where that saves no memory.

    Args:
      policy: ``all`` keeps the carry between layers alone, ``contractions`` results of costly contractions too.
    """
    flat = Paired.of(closed, closed)
    found = _find(flat, policy)
    if not found:
        return closed

    def run(*inputs: Any) -> list[Any]:
        return _Run(flat, found, inputs).run()

    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in closed.in_avals]
    return jax.make_jaxpr(run)(*avals)


def _find(flat: Paired, policy: RematPolicy) -> list[_Recomputed]:
    readers: dict[int, set[int]] = defaultdict(set)
    for e, eqn in enumerate(flat.equations):
        for t in eqn.operands:
            readers[t].add(e)
    returned = {t for t in flat.outputs if isinstance(t, int)}
    found, rewritten = list[_Recomputed](), set[int]()
    for e, eqn in enumerate(flat.equations):
        if eqn.full.primitive.name != "scan" or _compat.has_effects(eqn.full) or e in rewritten:
            continue  # a loop that recomputes what it reads leaves its own stacks as they are
        forward, by_loop = _Body.read(flat, e), defaultdict[int, list[int]](list)
        for t in forward.stacked:
            if len(readers[t]) == 1 and t not in returned:
                by_loop[min(readers[t])].append(t)
        backward = [_as_backward(flat, place, forward) for place in sorted(by_loop)]
        tried = [_recomputed(forward, of, by_loop[of.place], policy) for of in backward if of]
        found += [each for each in tried if each]
        rewritten |= {each.backward.place for each in tried if each}
    return found


def _as_backward(flat: Paired, place: int, forward: _Body) -> _Body | None:
    """The body of a loop of as many trips that reads stacks of another one in its slices alone."""
    eqn = flat.equations[place]
    if eqn.full.primitive.name != "scan" or eqn.full.params["length"] != forward.eqn.full.params["length"]:
        return None
    body = _Body.read(flat, place)
    whole = {t for t in eqn.inputs[: body.num_consts + body.num_carry] if isinstance(t, int)}
    return None if whole & forward.stacked.keys() else body


def _recomputed(forward: _Body, backward: _Body, stacks: Sequence[int], policy: RematPolicy) -> _Recomputed | None:
    """The values of these stacks that a backward loop can recompute; None where that saves no memory."""
    made = {t: eqn for eqn in forward.of.equations for t in eqn.outputs}
    fixed = {t for t, eqn in made.items() if eqn.full.effects or any(inner_jaxprs(eqn.full.params))}
    fixed |= _costly(forward.of.equations) if policy == "contractions" else set()
    recomputed = {t: value for t in stacks if (value := forward.stacked[t]) in made and value not in fixed}
    read, waiting = set[int](), list(recomputed.values())
    while waiting:
        t = waiting.pop()
        if t not in read:
            read.add(t)
            waiting += made[t].operands if t in made and t not in fixed else ()
    kept = {t for t in read if t in fixed or t in forward.carries}
    there = {value for t, value in forward.stacked.items() if t not in recomputed}
    if forward.num_bytes(recomputed.values()) <= forward.num_bytes(kept - there):
        return None
    return _Recomputed(
        forward=forward,
        backward=backward,
        places={i: recomputed[t] for i in backward.slices if (t := backward.eqn.inputs[i]) in recomputed},
        gone=frozenset(recomputed),
        kept=tuple(sorted(kept)),
        slices=tuple(sorted(read & set(forward.slices))),
        equations=tuple(eqn for eqn in forward.of.equations if (read - kept) & {*eqn.outputs}),
    )


def _costly(equations: Sequence[Pair]) -> set[int]:
    """Results of contractions that take at least `LEAST_INTENSITY` of their mean work for each element."""
    heavy = [eqn for eqn in equations if eqn.full.primitive.name in _CONTRACTIONS]
    elements = {eqn.outputs[0]: math.prod(eqn.full.outvars[0].aval.shape) for eqn in heavy}
    summed = {eqn.outputs[0]: _summed(eqn.full) for eqn in heavy}
    work = sum(summed[t] * elements[t] for t in summed)
    mean = work / max(1, sum(elements.values()))
    return {t for t in summed if summed[t] >= LEAST_INTENSITY * mean}


def _summed(eqn: Any) -> int:
    """How many products are added up for each element of a contraction's result."""
    sides = [v.aval.shape for v in eqn.invars]
    if eqn.primitive.name == "dot_general":
        (over, _), _ = eqn.params["dimension_numbers"]
        return math.prod(sides[0][d] for d in over)
    return math.prod(sides[1]) // sides[1][eqn.params["dimension_numbers"].rhs_spec[0]]


class _Run:
    """One execution of a step that recomputes layers of its loops."""

    def __init__(self, flat: Paired, found: Sequence[_Recomputed], inputs: Sequence[Any]) -> None:
        self.flat = flat
        self.known: dict[int, Any] = dict(enumerate(inputs))
        self.known |= _constants(flat)
        self.forward: dict[int, list[_Recomputed]] = defaultdict(list)
        for recomputed in found:
            self.forward[recomputed.forward.place].append(recomputed)
        self.backward: dict[int, list[_Recomputed]] = defaultdict(list)
        for recomputed in found:
            self.backward[recomputed.backward.place].append(recomputed)
        self.stacks: dict[tuple[int, int], Any] = {}  # forward loop, value of its body -> the stack of it

    def run(self) -> list[Any]:
        for place, eqn in enumerate(self.flat.equations):
            if place in self.backward:
                results = self._backward(self.backward[place])
            elif place in self.forward:
                results = self._forward(self.forward[place])
            else:
                values = [read_atom(self.known, atom) for atom in eqn.inputs]
                results = _bind(eqn, values)
            self.known.update(zip(eqn.outputs, results, strict=True))
        return [read_atom(self.known, atom) for atom in self.flat.outputs]

    def _forward(self, all_recomputed: Sequence[_Recomputed]) -> list[Any]:
        """Results of a forward loop; None for stacks that nothing reads any more."""
        body = all_recomputed[0].forward
        gone = frozenset().union(*(recomputed.gone for recomputed in all_recomputed))
        ends, outs = body.of.outputs[: body.num_carry], body.of.outputs[body.num_carry :]
        stacked = [None if t in gone else out for t, out in body.stacked.items()]
        kept = dict.fromkeys(t for recomputed in all_recomputed for t in recomputed.kept)
        more = [t for t in kept if t not in stacked]
        equations = _needed(body.of, [*ends, *stacked, *more])
        operands = [read_atom(self.known, atom) for atom in body.eqn.inputs]

        def trip(carry: list[Any], slices: list[Any]) -> tuple[list[Any], Any]:
            known = _constants(body.of) | dict(enumerate([*operands[: body.num_consts], *carry, *slices]))
            _evaluate(equations, known)
            own = [None if out is None else read_atom(known, out) for out in stacked]
            return [read_atom(known, out) for out in ends], (own, [known[t] for t in more])

        carry, slices = operands[body.num_consts : body.slices.start], operands[body.slices.start :]
        carry, (stacks, others) = _compat.scan_like(body.eqn.full, trip, carry, slices, body.eqn.stack)
        there = [*zip(outs, stacks, strict=True), *zip(more, others, strict=True)]
        self.stacks |= {(body.place, t): x for t, x in there if t in kept}
        return [*carry, *stacks]

    def _backward(self, all_recomputed: Sequence[_Recomputed]) -> list[Any]:
        """Results of a backward loop, which computes values in place of reading stacks of one or more forward loops."""
        body = all_recomputed[0].backward
        places = {i for recomputed in all_recomputed for i in recomputed.places}
        operands = [None if i in places else read_atom(self.known, atom) for i, atom in enumerate(body.eqn.inputs)]
        starts, held = zip(*map(self._entering, all_recomputed), strict=True)

        def trip(carry: list[Any], slices: Any) -> tuple[list[Any], list[Any]]:
            own, of_forward = slices
            inside = dict(zip(body.slices, own, strict=True))
            for recomputed, start, values in zip(all_recomputed, starts, of_forward, strict=True):
                known = start | values
                _evaluate(recomputed.equations, known)
                inside |= {i: known[t] for i, t in recomputed.places.items()}
            inside |= _constants(body.of) | dict(enumerate([*operands[: body.num_consts], *carry]))
            _evaluate(body.of.equations, inside)
            results = [read_atom(inside, out) for out in body.of.outputs]
            return results[: body.num_carry], results[body.num_carry :]

        carry, slices = operands[body.num_consts : body.slices.start], operands[body.slices.start :]
        carry, stacks = _compat.scan_like(body.eqn.full, trip, carry, (slices, list(held)), body.eqn.stack)
        return [*carry, *stacks]

    def _entering(self, recomputed: _Recomputed) -> tuple[dict[int, Any], dict[int, Any]]:
        """Values of a forward body that are alike in all trips, and stacks of those that are not."""
        forward = recomputed.forward
        given = {i: read_atom(self.known, atom) for i, atom in enumerate(forward.eqn.inputs)}
        start = _constants(forward.of) | {i: given[i] for i in range(forward.num_consts)}
        stacks = {t: self.stacks[forward.place, t] for t in recomputed.kept}
        return start, stacks | {t: given[t] for t in recomputed.slices}


def _needed(of: Paired, results: Iterable[Any]) -> list[Pair]:
    """The equations that results are computed by, and those with effects, in program order."""
    wanted, found = {t for t in results if isinstance(t, int)}, []
    for eqn in reversed(of.equations):
        if eqn.full.effects or not wanted.isdisjoint(eqn.outputs):
            wanted.update(eqn.operands)
            found.append(eqn)
    return found[::-1]


def _constants(of: Paired) -> dict[int, Any]:
    return {t: value.constant for t, value in enumerate(of.values) if value.constant is not None}


def _evaluate(equations: Iterable[Pair], known: dict[int, Any]) -> None:
    for eqn in equations:
        values = [read_atom(known, atom) for atom in eqn.inputs]
        known.update(zip(eqn.outputs, _bind(eqn, values), strict=True))


def _bind(eqn: Pair, values: list[Any]) -> list[Any]:
    return _compat.bind_like(eqn.full, eqn.full.primitive, eqn.full.params, values, eqn.stack)
