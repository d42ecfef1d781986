"""The program of one stage: forward and backward pass of one micro-batch, and the update of its parameters.

It is a program like any other, planned on the devices of the stage. Its equations stand in segments: once, forward,
backward, and the levels of the update; a run executes forward and backward for each micro-batch, the others once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import jax

from jaxplan.core import _compat
from jaxplan.core._mesh_context import without_explicit_axes
from jaxplan.ir._program import Program
from jaxplan.ir._trace import build_program
from jaxplan.ir.microbatch._loop import outside_of_passes, read_atom, sum_dtype
from jaxplan.ir.microbatch._pairs import Pair, small_params
from jaxplan.ir.stages._cut import Cut
from jaxplan.ir.stages._needs import Needs, Port, needs_of, sent_of

ONCE, FORWARD, BACKWARD, UPDATE = 0, 1, 2, 3
"""Segments in their order; levels of the update follow each other from `UPDATE` on."""
_SEGMENT = re.compile(r"stage_segment_(\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """A stage as a program.

    Attributes:
      stage: its number.
      program: see the module; argument 0 is the state that a step returns updated, argument 1 the rest.
      inputs, outputs: a port for each input and output of the program.
    """

    stage: int
    program: Program
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def parts_of(cut: Cut, stages: Collection[int] | None = None) -> tuple[Part, ...]:
    """The program of each stage of a cut, or of some of them."""
    needs = needs_of(cut)
    return tuple(
        _part(cut, of, sent)
        for of, sent in zip(needs, sent_of(needs, cut), strict=True)
        if stages is None or of.stage in stages
    )


def _part(cut: Cut, needs: Needs, sent: Sequence[Port]) -> Part:
    aliases = cut.step.program.aliases
    inputs = [port.number for port in needs.gets if port.kind == "input"]
    updated = [(aliases[o], o) for o in needs.results if o in aliases and cut.owner[aliases[o]] == needs.stage]
    updated = [(i, o) for i, o in updated if i in inputs]
    changed = {i for i, _ in updated}
    sums = [Port("sum", t) for t in needs.sums]
    state_in = [*(Port("input", i) for i, _ in updated), *sums]
    state_out = [*(Port("result", o) for _, o in updated), *sums]
    rest_in = [port for port in needs.gets if not (port.kind == "input" and port.number in changed)]
    rest_out = [*(Port("result", o) for o in needs.results if o not in {o for _, o in updated}), *sent]
    builder = _PartFunction(cut, needs, (*state_in, *rest_in), (*state_out, *rest_out))
    example = ([builder.avals(state_in), builder.avals(rest_in)], {})
    with without_explicit_axes():
        closed = jax.make_jaxpr(builder.run)(*[leaf for leaves in example[0] for leaf in leaves])
    out_avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.out_avals]
    program = build_program(
        closed,
        in_example=example,
        out_example=(out_avals[: len(state_out)], out_avals[len(state_out) :]),
        donate=frozenset({0}),
        argnums=(0, 1),
    )
    return Part(
        stage=needs.stage, program=program, inputs=(*state_in, *rest_in), outputs=(*state_out, *rest_out)
    )


class _PartFunction:
    """The function that the program of a stage is traced from."""

    def __init__(self, cut: Cut, needs: Needs, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        self.cut, self.step, self.needs = cut, cut.step, needs
        self.inputs, self.outputs = inputs, outputs

    def avals(self, ports: Iterable[Port]) -> list[Any]:
        return [self._aval(port) for port in ports]

    def _aval(self, port: Port) -> Any:
        value = self.step.values[port.number]
        aval = value.small if port.kind in ("slice", "value") else value.aval
        if port.kind == "sum":
            return jax.ShapeDtypeStruct(aval.shape, sum_dtype(aval.dtype))
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))

    def run(self, *leaves: Any) -> list[Any]:
        given = dict(zip(self.inputs, leaves, strict=True))
        known = {t: value.constant for t, value in enumerate(self.step.values) if value.constant is not None}
        known |= {port.number: x for port, x in given.items() if port.kind == "input"}
        with jax.named_scope(_name(ONCE)):
            self._evaluate(self.needs.once, known, _once)
        inside = known | {p.number: x for p, x in given.items() if p.kind in ("slice", "value")}
        with jax.named_scope(_name(FORWARD)):
            self._evaluate(self.needs.forward, inside, _on_a_slice)
        sums = {}
        with jax.named_scope(_name(BACKWARD)):
            self._evaluate(self.needs.backward, inside, _on_a_slice)
            for t in self.needs.sums:
                start = given[Port("sum", t)]
                sums[t] = start + inside[t].astype(start.dtype)
        with jax.named_scope(_name(UPDATE)):
            known |= {t: x.astype(self.step.values[t].aval.dtype) for t, x in sums.items()}
        known |= {port.number: x for port, x in given.items() if port.kind == "late"}
        for level, equations in enumerate(self.needs.updates):
            with jax.named_scope(_name(UPDATE + level)):
                self._evaluate(equations, known, _late)
        return [self._output(port, known, inside, sums) for port in self.outputs]

    @staticmethod
    def _evaluate(equations: Iterable[Pair], known: dict[int, Any], bind: Callable[[Pair, list[Any]], Any]) -> None:
        for eqn in equations:
            values = [read_atom(known, atom) for atom in eqn.inputs]
            known.update(zip(eqn.outputs, bind(eqn, values), strict=True))

    def _output(self, port: Port, known: dict[int, Any], inside: dict[int, Any], sums: dict[int, Any]) -> Any:
        if port.kind == "sum":
            return sums[port.number]
        if port.kind == "result":
            t = self.step.strata.paired.outputs[port.number]
            return known[t] if t in known else inside[t]
        return inside[port.number] if port.kind == "value" else known[port.number]


def _once(eqn: Pair, values: list[Any]) -> Any:
    """On the whole batch."""
    stack = outside_of_passes(eqn.stack)
    return _compat.bind_like(eqn.full, eqn.full.primitive, eqn.full.params, values, stack)


def _late(eqn: Pair, values: list[Any]) -> Any:
    return _compat.bind_like(eqn.full, eqn.full.primitive, eqn.full.params, values, eqn.stack)


def _on_a_slice(eqn: Pair, values: list[Any]) -> Any:
    params = small_params(eqn.full.params, eqn.small.params)
    return _compat.bind_like(eqn.full, eqn.small.primitive, params, values, eqn.stack)


def _name(segment: int) -> str:
    return f"stage_segment_{segment}"


def segments_of(program: Program) -> tuple[tuple[int, int], ...]:
    """(first equation, end) of each segment; copies of recomputed blocks belong to the backward pass."""
    ends: list[int] = []
    segment = ONCE
    starts = {ONCE: 0}
    for eqn in program.equations:
        found = _SEGMENT.search(eqn.name_stack)
        number = segment if found is None else int(found[1])
        if eqn.phase == "backward":
            number = max(number, BACKWARD)
        if number > segment:
            starts.update(dict.fromkeys(range(segment + 1, number + 1), eqn.index))
            segment = number
    last = max(segment, UPDATE)
    starts.update(dict.fromkeys(range(segment + 1, last + 1), len(program.equations)))
    ends = [*(starts[s] for s in range(1, last + 1)), len(program.equations)]
    return tuple(zip((starts[s] for s in range(last + 1)), ends, strict=True))
