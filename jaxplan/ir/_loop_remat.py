"""Layers of a loop recomputed: the stacks that the forward loop leaves to the backward loop are rewritten.

A differentiated `scan` over layers is two loops: the first one returns stacks of the values that the second one reads,
its *residuals*. Here the forward loop stacks the carry that enters each layer in their place, and the body of the
backward loop recomputes them from it, as it would with `jax.checkpoint` around the body. Results of contractions may be
kept, or values with a name. No barrier is needed: nothing merges the bodies of two loops.

Where a share of the layers is recomputed, both loops are cut in two: one loop over the layers that run first, which are
recomputed, and one over the others, which are as they were, or keep more. Each reads a slice of the stacked parameters;
a stack that comes in two pieces is concatenated where something reads it whole, such as the gradients.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from jaxplan.core import _compat
from jaxplan.ir._blocks import LEAST_INTENSITY
from jaxplan.ir._program import LoopRemat, LoopRematPolicy
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
    def length(self) -> int:
        return self.eqn.full.params["length"]

    @property
    def reverse(self) -> bool:
        return self.eqn.full.params["reverse"]

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
      forward, backward: the two bodies; ``stacks``: of the forward loop that the backward loop alone reads.
      places: slice of the backward body -> the residual, a value of the forward body, that is computed in its place.
      gone: the stacks of these.
      kept: values of the forward body that are read for that, in stacks; ``slices``: slices of it that are.
      equations: of the forward body, those that are recomputed.
    """

    forward: _Body
    backward: _Body
    stacks: Sequence[int]
    places: Mapping[int, int]
    gone: frozenset[int]
    kept: tuple[int, ...]
    slices: tuple[int, ...]
    equations: tuple[Pair, ...]


def recompute_in_loops(closed: Any, chosen: LoopRemat) -> Any:
    """The closed jaxpr of a step with layers of its loops recomputed as chosen; itself where that saves no memory."""
    flat = Paired.of(closed, closed)
    first, rest = _find(flat, chosen.policy), list[_Recomputed]()
    if chosen.share < 1:  # both are cut at one layer: not where gradients alone pass from loop to loop
        first = [of for of in first if of.forward.reverse != of.backward.reverse]
    if chosen.rest is not None:
        tried = [_recomputed(of.forward, of.backward, of.stacks, chosen.rest) for of in first]
        rest = [each for each in tried if each]
    around = _around(flat, {of.place for each in first for of in (each.forward, each.backward)}, chosen)
    if not first and not around:
        return closed

    def run(*inputs: Any) -> list[Any]:
        return _Run(flat, chosen, first, rest, around, inputs).run()

    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in closed.in_avals]
    return jax.make_jaxpr(run)(*avals)


def _around(flat: Paired, cut: Set[int], chosen: LoopRemat) -> dict[int, Any]:
    """Place of a loop around both passes, such as one that accumulates gradients -> its body with layers recomputed."""
    found = dict[int, Any]()
    for e, eqn in enumerate(flat.equations):
        if eqn.full.primitive.name == "scan" and e not in cut and not _compat.has_effects(eqn.full):
            body = eqn.full.params["jaxpr"]
            again = recompute_in_loops(body, chosen)
            if again is not body:
                found[e] = again
    return found


def _find(flat: Paired, policy: LoopRematPolicy) -> list[_Recomputed]:
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
    if eqn.full.primitive.name != "scan" or eqn.full.params["length"] != forward.length:
        return None
    body = _Body.read(flat, place)
    whole = {t for t in eqn.inputs[: body.num_consts + body.num_carry] if isinstance(t, int)}
    return None if whole & forward.stacked.keys() else body


def _recomputed(forward: _Body, backward: _Body, stacks: Sequence[int], policy: LoopRematPolicy) -> _Recomputed | None:
    """The values of these stacks that a backward loop can recompute; None where that saves no memory."""
    made = {t: eqn for eqn in forward.of.equations for t in eqn.outputs}
    fixed = {t for t, eqn in made.items() if eqn.full.effects or any(inner_jaxprs(eqn.full.params))}
    if policy == "contractions":
        fixed |= _costly(forward.of.equations)
    elif policy == "named":
        fixed |= {eqn.outputs[0] for eqn in forward.of.equations if eqn.full.primitive.name == "name"}
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
    if policy == "named" and not any(made[t].full.primitive.name == "name" for t in kept & made.keys()):
        return None
    return _Recomputed(
        forward=forward,
        backward=backward,
        stacks=stacks,
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
    """One execution of a step that recomputes layers of its loops.

    Attributes:
      known: values of the step by number, stacks that are not cut among them.
      pieces: value of the step that is a stack, layers -> those layers of it.
      stacks: forward loop, layers, value of its body -> the stack of it that is read in the backward loop.
      first, rest: place of a loop -> its values that are recomputed, in the layers that run first and in the others.
      cut: place of a loop -> its body and the forward loop that says where it is cut.
      around: place of a loop around both passes -> its body.
    """

    def __init__(
        self,
        flat: Paired,
        chosen: LoopRemat,
        first: Sequence[_Recomputed],
        rest: Sequence[_Recomputed],
        around: Mapping[int, Any],
        inputs: Sequence[Any],
    ) -> None:
        self.flat, self.chosen, self.around = flat, chosen, around
        self.known: dict[int, Any] = _constants(flat) | dict(enumerate(inputs))
        self.pieces: dict[int, dict[range, Any]] = defaultdict(dict)
        self.stacks: dict[tuple[int, range, int], Any] = {}
        self.first, self.rest = _by_loop(first), _by_loop(rest)
        self.cut = {of.forward.place: (of.forward, of.forward) for of in first}
        self.cut |= {of.backward.place: (of.backward, of.forward) for of in first}

    def run(self) -> list[Any]:
        for place, eqn in enumerate(self.flat.equations):
            if place in self.cut:
                self._loop(*self.cut[place])
            else:
                operands = [self._whole(atom) for atom in eqn.inputs]
                results = _repeat(eqn, self.around[place], operands) if place in self.around else _bind(eqn, operands)
                self.known.update(zip(eqn.outputs, results, strict=True))
        return [self._whole(atom) for atom in self.flat.outputs]

    def _loop(self, body: _Body, forward: _Body) -> None:
        """Runs the parts of a loop in its direction, and remembers what they return."""
        carry = [self._whole(atom) for atom in body.eqn.inputs[body.num_consts : body.slices.start]]
        parts = zip(_parts(forward, self.chosen), (self.first, self.rest), strict=True)
        for part, found in sorted(parts, key=lambda item: item[0].start, reverse=body.reverse):
            if part:
                run_part = self._forward if body is forward else self._backward
                carry, stacks = run_part(body, found[body.place], carry, part)
                for t, stack in zip(body.eqn.outputs[body.num_carry :], stacks, strict=True):
                    if stack is not None:
                        self.pieces[t][part] = stack
        self.known.update(zip(body.eqn.outputs, carry))

    def _forward(
        self, body: _Body, all_recomputed: Sequence[_Recomputed], carry: list[Any], part: range
    ) -> tuple[list[Any], list[Any]]:
        """Carry and stacks of these layers of a forward loop; None for stacks that nothing reads any more."""
        gone = frozenset[int]().union(*(recomputed.gone for recomputed in all_recomputed))
        ends, outs = body.of.outputs[: body.num_carry], body.of.outputs[body.num_carry :]
        stacked = [None if t in gone else out for t, out in body.stacked.items()]
        kept = dict.fromkeys(t for recomputed in all_recomputed for t in recomputed.kept)
        more = [t for t in kept if t not in stacked]
        equations = _needed(body.of, [*ends, *stacked, *more])
        start = self._start(body)

        def trip(carry: list[Any], slices: list[Any]) -> tuple[list[Any], Any]:
            known = start | dict(enumerate([*carry, *slices], body.num_consts))
            _evaluate(equations, known)
            own = [None if out is None else read_atom(known, out) for out in stacked]
            return [read_atom(known, out) for out in ends], (own, [known[t] for t in more])

        slices = [self._piece(body, i, part) for i in body.slices]
        carry, (stacks, others) = _compat.scan_like(body.eqn.full, trip, carry, slices, body.eqn.stack, len(part))
        there = [*zip(outs, stacks, strict=True), *zip(more, others, strict=True)]
        self.stacks |= {(body.place, part, t): x for t, x in there if t in kept}
        return carry, stacks

    def _backward(
        self, body: _Body, all_recomputed: Sequence[_Recomputed], carry: list[Any], part: range
    ) -> tuple[list[Any], list[Any]]:
        """Carry and stacks of these layers of a backward loop, which computes values in place of reading stacks."""
        places = {i for recomputed in all_recomputed for i in recomputed.places}
        start = self._start(body)
        starts = [self._start(recomputed.forward) for recomputed in all_recomputed]

        def trip(carry: list[Any], slices: Any) -> tuple[list[Any], list[Any]]:
            own, of_forward = slices
            inside = start | dict(zip(body.slices, own, strict=True)) | dict(zip(body.carries, carry, strict=True))
            for recomputed, known, values in zip(all_recomputed, starts, of_forward, strict=True):
                known = known | values
                _evaluate(recomputed.equations, known)
                inside |= {i: known[t] for i, t in recomputed.places.items()}
            _evaluate(body.of.equations, inside)
            results = [read_atom(inside, out) for out in body.of.outputs]
            return results[: body.num_carry], results[body.num_carry :]

        own = [None if i in places else self._piece(body, i, part) for i in body.slices]
        held = [self._held(recomputed, part) for recomputed in all_recomputed]
        return _compat.scan_like(body.eqn.full, trip, carry, (own, held), body.eqn.stack, len(part))

    def _start(self, body: _Body) -> dict[int, Any]:
        """Values of a body that are alike in all trips."""
        given = body.eqn.inputs[: body.num_consts]
        return _constants(body.of) | {i: self._whole(atom) for i, atom in enumerate(given)}

    def _held(self, recomputed: _Recomputed, part: range) -> dict[int, Any]:
        """Stacks of the values of a forward body that are read in the backward loop."""
        forward = recomputed.forward
        stacks = {t: self.stacks[forward.place, part, t] for t in recomputed.kept}
        return stacks | {i: self._piece(forward, i, part) for i in recomputed.slices}

    def _whole(self, atom: Any) -> Any:
        """A value of the step; of a stack in two pieces, both together."""
        if isinstance(atom, int) and atom not in self.known:
            pieces = [piece for _, piece in sorted(self.pieces[atom].items(), key=lambda item: item[0].start)]
            self.known[atom] = pieces[0] if len(pieces) == 1 else jax.lax.concatenate(pieces, 0)
        return read_atom(self.known, atom)

    def _piece(self, body: _Body, place: int, part: range) -> Any:
        """The layers ``part`` of an operand that is a stack."""
        atom = body.eqn.inputs[place]
        if len(part) == body.length:
            return self._whole(atom)
        pieces = self.pieces[atom] if isinstance(atom, int) else {}
        if part not in pieces:
            pieces[part] = jax.lax.slice_in_dim(self._whole(atom), part.start, part.stop)
        return pieces[part]


def _by_loop(found: Sequence[_Recomputed]) -> dict[int, list[_Recomputed]]:
    """Place of a forward or backward loop -> its values that are recomputed."""
    loops: dict[int, list[_Recomputed]] = defaultdict(list)
    for recomputed in found:
        loops[recomputed.forward.place].append(recomputed)
        loops[recomputed.backward.place].append(recomputed)
    return loops


def _parts(forward: _Body, chosen: LoopRemat) -> tuple[range, range]:
    """The layers of a loop that are recomputed, which it runs first, and the others."""
    length = forward.length
    count = chosen.count(length)
    if forward.reverse:
        return range(length - count, length), range(length - count)
    return range(count), range(count, length)


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


def _repeat(eqn: Pair, body: Any, operands: list[Any]) -> list[Any]:
    """The results of a loop with another body."""
    num_consts, num_carry = _compat.scan_counts(eqn.full.params, len(operands))
    consts, carry, slices = operands[:num_consts], operands[num_consts:][:num_carry], operands[num_consts + num_carry :]
    run = jaxpr_as_fun(body)

    def trip(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
        results = run(*consts, *carry, *slices)
        return results[:num_carry], results[num_carry:]

    carry, stacks = _compat.scan_like(eqn.full, trip, carry, slices, eqn.stack, eqn.full.params["length"])
    return [*carry, *stacks]


def _bind(eqn: Pair, values: list[Any]) -> list[Any]:
    return _compat.bind_like(eqn.full, eqn.full.primitive, eqn.full.params, values, eqn.stack)
