"""One step of a plan in stages: a compiled program per stage and segment, dispatched in the order of the schedule.

One process dispatches everything; JAX runs the programs of different devices beside each other, and arrays that a stage
makes for another are sent with `jax.device_put` as soon as their program is dispatched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxplan.ir.microbatch._loop import cut as cut_slices
from jaxplan.ir.microbatch._loop import fronted, joined, placed
from jaxplan.ir.microbatch._strata import batch_outer
from jaxplan.ir.stages import BACKWARD, FORWARD, ONCE, UPDATE, Part, Port
from jaxplan.partition.stages._devices import (
    argument_shardings,
    port_sharding,
    result_shardings,
    stage_meshes,
)
from jaxplan.partition.stages._segment import Item, StageProgram
from jaxplan.partition.stages._staged_like import StagedLike


class Pipeline:
    """A plan in stages on its devices.

    Attributes:
      stages: the planned program of each stage.
      in_shardings, out_shardings: of the arguments and results of the step.
    """

    def __init__(self, plan: StagedLike, devices: Sequence[Any], donate: Sequence[bool], order: Sequence[Any]) -> None:
        """``order``: (stage, micro-batch, is backward) of each pass, in the order of dispatch."""
        assert plan.cut is not None and plan.microbatches is not None
        self.plan, self.cut, self.num, self.order = plan, plan.cut, plan.microbatches.num, tuple(order)
        self.meshes = stage_meshes(plan, devices)
        self.in_shardings = argument_shardings(plan, self.meshes)
        self.out_shardings = result_shardings(plan, self.meshes, self.in_shardings)
        self.stages = [
            StageProgram(stage.plan, mesh, _donated(part, donate))
            for stage, mesh, part in zip(plan.stages, self.meshes, plan.parts, strict=True)
        ]
        self.wanted = [
            {port: port_sharding(plan, self.meshes, s, port) for port in part.inputs}
            for s, part in enumerate(plan.parts)
        ]
        self.kept = [self._read_in_backward(s) for s in range(len(self.stages))]
        self.readers: dict[Port, list[int]] = {}
        for s, part in enumerate(plan.parts):
            for port in part.inputs:
                self.readers.setdefault(port, []).append(s)
        self.returned = frozenset(t for t in self.cut.step.strata.paired.outputs if isinstance(t, int))
        self._zeros = [self._zeros_of(s) for s in range(len(self.stages))]
        self._slicers: dict[tuple[int, int], Any] = {}
        self._joins: dict[int, Any] = {}

    def _read_in_backward(self, stage: int) -> frozenset[Any]:
        """The values, by item or port, that the backward pass of a micro-batch reads."""
        program, part = self.stages[stage], self.plan.parts[stage]
        segment = program.segments.get(BACKWARD)
        return frozenset(key_of(program, part, item) for item in segment.reads) if segment else frozenset()

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """The results of the step for arguments that are where they belong."""
        return OneStep(self, arguments).run()

    def lowered(self) -> dict[str, Any]:
        """`jax.stages.Lowered` of the program of each stage and segment, by name."""
        return {
            f"stage {s} {segment_name(number)}": stage.lower(segment)
            for s, stage in enumerate(self.stages)
            for number, segment in stage.segments.items()
        }

    def _zeros_of(self, stage: int) -> Any:
        """A compiled program that makes the sums of a stage before the first micro-batch."""
        sums = [(port, where) for port, where in self.wanted[stage].items() if port.kind == "sum"]
        program, inputs = self.stages[stage].program, self.plan.parts[stage].inputs
        tensors = [program.tensors[program.inputs[inputs.index(port)]] for port, _ in sums]
        return jax.jit(
            lambda: {port.number: jnp.zeros(t.shape, t.dtype) for (port, _), t in zip(sums, tensors, strict=True)},
            out_shardings={port.number: where for port, where in sums},
        )

    def slices(self, stage: int, t: int, whole: Any) -> list[Any]:
        """The slices of a value that holds the batch, on the devices of a stage."""
        key = (stage, t)
        if key not in self._slicers:
            strata = self.cut.step.strata
            dim, outer, num = self.cut.step.values[t].dim or 0, batch_outer(strata, t), self.num

            def slices(x: Any) -> list[Any]:
                pieces = cut_slices(x, dim, outer, num)
                return [placed(pieces[k], dim, outer) for k in range(num)]

            where = self.wanted[stage][Port("slice", t)]
            self._slicers[key] = jax.jit(slices, out_shardings=[where] * num)
        return self._slicers[key](whole)

    def joined(self, t: int, pieces: Sequence[Any]) -> Any:
        """A value of each example, of its slices."""
        if t not in self._joins:
            dim, outer = self.cut.step.values[t].dim, batch_outer(self.cut.step.strata, t)

            def join(*slices: Any) -> Any:
                fronts = [fronted(x, dim or 0, outer) for x in slices]
                return joined(jnp.stack(fronts), dim or 0, outer)

            self._joins[t] = jax.jit(join)
        return self._joins[t](*pieces)


def _donated(part: Part, donate: Sequence[bool]) -> list[bool]:
    """Per input of a stage's program, whether its buffer may be reused: of sums, and of state as the caller says."""
    return [
        returned and (port.kind == "sum" or donate[port.number])
        for port, returned in zip(part.inputs, part.program.donated, strict=True)
    ]


def key_of(program: StageProgram, part: Any, item: Item) -> Any:
    """Where a value is kept: inputs and sums by their port, others by the item."""
    kind = program.program.tensors[item.tensor].kind
    if kind == "input":
        return part.inputs[program.program.inputs.index(item.tensor)]
    if item.tensor in program.program.returned:
        port = part.outputs[program.program.outputs.index(item.tensor)]
        if port.kind == "sum":
            return port
    return item


def segment_name(number: int) -> str:
    """Such as ``forward``, or ``update 0``."""
    names = {ONCE: "once", FORWARD: "forward", BACKWARD: "backward"}
    return names.get(number, f"update {number - UPDATE}")


class OneStep:
    """The arrays of one step while it runs."""

    def __init__(self, pipeline: Pipeline, arguments: Sequence[Any]) -> None:
        self.pipeline, self.arguments = pipeline, arguments
        count = len(pipeline.stages)
        self.lasting: list[dict[Any, Any]] = [{} for _ in range(count)]
        self.passing: list[dict[int, dict[Any, Any]]] = [{} for _ in range(count)]
        self.results: dict[int, Any] = {}
        self.examples: dict[int, dict[int, Any]] = {}  # value of each example that the step returns -> its slices

    def run(self) -> list[Any]:
        self._begin()
        for stage, micro_batch, is_backward in self.pipeline.order:
            self._pass(stage, micro_batch, BACKWARD if is_backward else FORWARD)
        self._send_sums()
        for level in range(self.pipeline.cut.num_levels):
            for stage in range(len(self.pipeline.stages)):
                self._run_once(stage, UPDATE + level)
        return self._finish()

    def _begin(self) -> None:
        pipeline = self.pipeline
        for s, wanted in enumerate(pipeline.wanted):
            for port, where in wanted.items():
                if port.kind == "input":
                    self.lasting[s][port] = jax.device_put(self.arguments[port.number], where)
            self.lasting[s].update((Port("sum", t), x) for t, x in pipeline._zeros[s]().items())
            self._run_once(s, ONCE)
            for port, where in wanted.items():
                if port.kind == "slice":
                    self._slice(s, port, where)

    def _send_sums(self) -> None:
        """Send complete sums that another stage reads as they were added up; those of another dtype are cast first."""
        for s, part in enumerate(self.pipeline.plan.parts):
            sums = {t: port for t, port in zip(part.program.outputs, part.outputs, strict=True) if port.kind == "sum"}
            for t, port in zip(part.program.outputs, part.outputs, strict=True):
                if port.kind == "late" and t in sums:
                    self._hand_on(s, port, self.lasting[s][sums[t]], None)

    def _slice(self, s: int, port: Port, where: Any) -> None:
        t = port.number
        if self.pipeline.cut.step.is_input(t):
            whole = jax.device_put(self.arguments[t], where)
        else:
            whole = self.lasting[s].pop(Port("whole", t))
        for k, piece in enumerate(self.pipeline.slices(s, t, whole)):
            self.passing[s].setdefault(k, {})[port] = piece

    def _run_once(self, s: int, number: int) -> None:
        segment = self.pipeline.stages[s].segments.get(number)
        if segment is not None:
            self._execute(s, segment, self.lasting[s], None)

    def _pass(self, s: int, k: int, number: int) -> None:
        segment = self.pipeline.stages[s].segments.get(number)
        if segment is not None:
            self._execute(s, segment, self.passing[s].setdefault(k, {}), k)
        if number == BACKWARD:
            self.passing[s].pop(k, None)
        else:  # values that the backward pass does not read
            wanted, own = self.pipeline.kept[s], self.passing[s][k]
            self.passing[s][k] = {key: value for key, value in own.items() if key in wanted}

    def _execute(self, s: int, segment: Any, own: dict[Any, Any], k: int | None) -> None:
        program, part = self.pipeline.stages[s], self.pipeline.plan.parts[s]
        lasting = self.lasting[s]
        leaves = []
        for item, where in zip(segment.reads, segment.shardings, strict=True):
            key = key_of(program, part, item)
            value = own[key] if key in own else lasting[key]
            leaves.append(jax.device_put(value, where))
        found = segment.run(*leaves)
        own.update(zip(segment.makes, found))
        for o, value in zip(segment.outputs, found[len(segment.makes) :], strict=True):
            self._hand_on(s, part.outputs[o], value, k)

    def _hand_on(self, s: int, port: Port, value: Any, k: int | None) -> None:
        """Send an output to where it is read; ``k``: of this micro-batch."""
        if port.kind == "late" and k is not None:
            return  # a sum that is not complete yet
        if port.kind == "result":
            self.results[port.number] = value
        elif port.kind in ("sum", "whole"):
            self.lasting[s][port] = value
        for reader in self.pipeline.readers.get(port, ()):
            if port.kind in ("value", "late"):
                there = jax.device_put(value, self.pipeline.wanted[reader][port])
                target = self.lasting[reader] if k is None else self.passing[reader].setdefault(k, {})
                target[port] = there
        if port.kind == "value" and k is not None and port.number in self.pipeline.returned:
            self.examples.setdefault(port.number, {})[k] = value

    def _finish(self) -> list[Any]:
        pipeline, found = self.pipeline, []
        outputs = pipeline.cut.step.strata.paired.outputs
        for o, (atom, where) in enumerate(zip(outputs, pipeline.out_shardings, strict=True)):
            found.append(self._result(o, atom) if o not in self.results else self.results[o])
            found[-1] = jax.device_put(found[-1], where)
        return found

    def _result(self, o: int, atom: Any) -> Any:
        step = self.pipeline.cut.step
        if not isinstance(atom, int):
            return jnp.asarray(atom.val, atom.aval.dtype)
        if step.is_input(atom):
            return self.arguments[atom]
        if step.values[atom].constant is not None:
            return step.values[atom].constant
        pieces = [self.examples[atom][k] for k in range(self.pipeline.num)]
        return pieces[-1] if step.values[atom].dim is None else self.pipeline.joined(atom, pieces)
