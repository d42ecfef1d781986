"""Evaluate a program as its lowering decisions say, under `jax.jit`: constraints, islands, reshardings, barriers.

A copy that the plan gathers again in the backward pass is tied by an optimization barrier to a value of that pass, so
that the compiler neither merges the two gathers nor issues the second one early.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from jaxplan.ir import CONTRACTION_FAMILIES, Equation, Offload
from jaxplan.mesh import Sharding
from jaxplan.partition._environment import Environment, Place
from jaxplan.partition._gradient_ties import GradientTies
from jaxplan.partition._hosted_updates import HostedUpdates
from jaxplan.partition._lowered_program import LoweredProgram
from jaxplan.partition._operators import Operators
from jaxplan.partition._regions import run_region
from jaxplan.partition._sent_values import SentValues
from jaxplan.partition._steps import Executor
from jaxplan.partition._waiting_operands import not_gathered_before, not_merged, ordered, unpooled


def run_program(
    lowered: LoweredProgram, executor: Executor, arguments: Sequence[Any], offload: Offload | None = None
) -> list[Any]:
    """Outputs of the program for flat global arguments; call under `jax.jit`. ``offload``: which are on the host."""
    return outputs_of(lowered, executor, Operators(lowered, executor), arguments, offload)


def outputs_of(
    lowered: LoweredProgram,
    executor: Executor,
    operators: Operators,
    arguments: Sequence[Any],
    offload: Offload | None = None,
) -> list[Any]:
    """Outputs of the program, by operators of one kind; arguments and outputs are in the plan's shardings."""
    run = Run(lowered, executor, operators, {}, {}, HostedUpdates(lowered, offload))
    env, program = run.values.env, lowered.program
    for t, value in zip(program.inputs, arguments, strict=True):
        is_placed = np.ndim(value) and t not in run.hosted.tensors
        env[t] = executor.constrain(value, lowered.home(t)) if is_placed else value
    env.update({t.index: t.value for t in program.tensors if t.kind in ("literal", "constant")})
    end = len(program.equations)
    run.evaluate(0, end, -1)
    outputs = zip(program.outputs, lowered.output_shardings, strict=True)
    return [run.values.read(t, sharding, end, None) for t, sharding in outputs]


class Run:
    """One evaluation of a program, or of the body of a loop in it (see `jaxplan.partition._evaluation.Evaluation`)."""

    def __init__(
        self,
        lowered: LoweredProgram,
        executor: Executor,
        operators: Operators,
        env: Any,
        copies: Any,
        hosted: HostedUpdates | None = None,
    ) -> None:
        self.lowered, self._program = lowered, lowered.program
        self._operators = operators
        self.hosted = hosted or HostedUpdates(lowered, None)
        self.values = Environment(lowered, executor, self._operators.bind, env, copies, self.hosted.parameters)
        self.gradients = GradientTies(lowered, self.values, self._evaluate)
        self.values.after_gradients = self._after_gradients
        self._dots: list[int] = []  # results of those of the backward pass, since something waited for them last
        self._last_dot: tuple[int, ...] = ()
        self._anchor: dict[int, Any] = {}  # result of the last dot that makes no gradient of a parameter
        self._passed: dict[tuple[int, int], Any] = {}  # shared operands that dot-merger guards have, as last read
        self._early: set[int] = set()  # equations evaluated before their turn
        self._sent = SentValues(lowered, executor, self.values.env)

    def evaluate(self, start: int, stop: int, region: int) -> None:
        index = start
        while index < stop:
            inner = self.lowered.region_at.get((region, index))
            if region < 0:
                self.hosted.run_before(self, index)
            if inner is not None:
                run_region(self, inner)
                last = inner.stop
            else:
                if index not in self._early and index not in self.hosted.equations:
                    self._evaluate(self._program.equations[index])
                    self.hosted.after(self, self._program.equations[index])
                    self._sent.send(self._program.equations[index])
                last = index + 1
            if region < 0:  # a body sees the values around it, and they are not its own to forget
                for done in range(index, last):
                    for t in self.lowered.last_use.get(done, ()):
                        if t not in self.hosted.held:
                            self.values.forget(t)
            index = last

    def evaluate_again(self, indices: Sequence[int]) -> None:
        for eqn in self.equations(indices):
            self._evaluate(eqn)

    def evaluate_early(self, index: int) -> None:
        self._early.add(index)
        self._evaluate(self._program.equations[index])

    def child(self) -> Run:
        values = self.values
        env, copies = ChainMap({}, values.env), ChainMap({}, values.copies)
        return Run(self.lowered, values.executor.in_loop(), self._operators, env, copies, self.hosted)

    def equations(self, indices: Sequence[int]) -> list[Equation]:
        return [self._program.equations[i] for i in indices]

    def tie(self, tensors: Sequence[int]) -> Place | None:
        """The value that a repeated copy waits for: the largest one computed so far among ``tensors``, one of the
        backward pass if there is any; or else the result of the dot before (a parameter that is reshaped for a dot is
        alone).

        Where the compiler computes operands of a dot inside of it, such a value is no buffer, and waiting for it would
        make one of it (the gradient of the logits). So there the copy waits for the result of a dot.
        """
        if self.lowered.target.fuses_operands and self._anchor:
            return self._anchor, next(iter(self._anchor))
        env, all_tensors = self.values.env, self._program.tensors
        ready = [
            t
            for t in tensors
            if all_tensors[t].shape
            and all_tensors[t].kind == "computed"
            and t not in self.lowered.repeated
            and t not in self.values.on_host
            and not self.lowered.values.free[t]
            and t in env
        ]
        if not ready:
            ready = [t for t in self._last_dot if t in env]
        return (env, max(ready, key=self._lateness)) if ready else None

    def _lateness(self, t: int) -> tuple[bool, int]:
        made_by = self._program.equations[self.lowered.values.producer[t]]
        return made_by.phase == "backward", self._program.tensors[t].num_elements

    def _after_gradients(self, values: Sequence[Any]) -> list[Any]:
        """Values that wait for all dots of the backward pass so far, for what was computed from each alone, and for
        its sum over the devices."""
        dots, self._dots = self._dots, []
        made = {key for key, _ in self.gradients.made}
        env, copies = self.values.env, self.values.copies
        ends = [t for t in sorted({*map(self._computed_so_far, dots)} - made) if t in env]
        for summed in filter(None, map(self.lowered.summed.get, ends)):
            self.values.read(summed.tensor, summed.target, summed.spans[0].readers[0], None)
        copy_of = {key[0]: key for key in copies}
        places: list[Place] = [(copies, copy_of[t]) if t in copy_of else (env, t) for t in ends]
        found = self.gradients.after_all(values, [(key, of[key]) for of, key in places])
        for of, key in places:
            self.values.keep_sharding(of, key)
        return found

    def _computed_so_far(self, t: int) -> int:
        """The last value that was computed from a result of a dot, one reader after the other."""
        env, consumers = self.values.env, self.lowered.values.consumers
        while len(consumers[t]) == 1 and len(results := self._program.equations[consumers[t][0]].results) == 1:
            if results[0] not in env or self._program.equations[consumers[t][0]].phase == "forward":
                break
            (t,) = results
        return t

    def _evaluate(self, eqn: Equation) -> None:
        if (barrier := self.lowered.trip_barriers.get(eqn.index)) is not None:
            self.gradients.pass_trip_barrier(barrier)
        if eqn.primitive is lax.optimization_barrier_p:
            self._barrier(eqn)
            return
        if eqn.results and self.values.passes_from_host(eqn):
            self.values.env[eqn.results[0]] = self.values.env[eqn.operands[0]]
            return
        shardings, env = self.lowered.reads(eqn), self.values.env
        if self.values.executor.keeps_free and self.lowered.is_computed_freely(eqn):
            env.update(zip(eqn.results, self._operators.deferred(eqn, [env[t] for t in eqn.operands]), strict=True))
            return
        if shardings is None:
            operands = [self.values.read_replicated(t, eqn.index) for t in eqn.operands]
            env.update(zip(eqn.results, self._operators.bind(eqn, operands), strict=True))
            return
        operands = self._waiting(eqn, self._read_all(eqn, shardings), shardings)
        results = self._operators.apply(eqn, operands, shardings)
        guard = self.lowered.gather_guards.get(eqn.index)
        if guard is not None and not guard.operands:
            results = not_gathered_before(self, guard, results)
        elif eqn.index in self.lowered.lowering.written:
            results = lax.optimization_barrier(results)
        env.update(zip(eqn.results, results, strict=True))
        if self.lowered.family(eqn) in CONTRACTION_FAMILIES:
            self._last_dot = eqn.results
            if self.values.on_host and eqn.phase == "backward":
                self._dots.append(eqn.results[0])
            if eqn.index in self.lowered.lowering.regather_anchors:
                self._anchor = {eqn.results[0]: results[0]}
        for t in eqn.results:
            self.gradients.collect(t)

    def _read_all(self, eqn: Equation, shardings: Sequence[Sharding]) -> list[Any]:
        """The operands; copies that are gathered again first, because the one that they wait for is read after."""
        tie, copies = self.tie(eqn.operands), self.values.copies
        if tie is not None and tie[1] in eqn.operands:
            shared = self.lowered.waiting_alike.get((eqn.index, tie[1]), ())
            sharding = shardings[eqn.operands.index(tie[1])]
            tie = next(((copies, key) for key in copies if key[:2] == (tie[1], sharding)), tie)
            for reader, resharding in shared:
                self.values.read(resharding.tensor, resharding.target, reader, tie)
        found: dict[int, Any] = {}
        late = self.lowered.repeated | self.values.on_host
        for i in sorted(range(len(shardings)), key=lambda i: eqn.operands[i] not in late):
            found[i] = self.values.read(eqn.operands[i], shardings[i], eqn.index, tie)
        return [found[i] for i in range(len(shardings))]

    def _waiting(self, eqn: Equation, operands: list[Any], shardings: Sequence[Sharding]) -> list[Any]:
        """The operands behind the barriers that the lowering decided for an equation."""
        lowered, index = self.lowered, eqn.index
        if index in lowered.lowering.table_gradients:
            operands = self._zeros_in_turn(eqn, operands, shardings[0])
        if (merge := lowered.merge_guards.get(index)) is not None:
            operands = not_merged(merge, self._passed, operands)
        if (gather := lowered.gather_guards.get(index)) is not None and gather.operands:
            passed = not_gathered_before(self, gather, [operands[i] for i in gather.operands])
            for i, value in zip(gather.operands, passed, strict=True):
                operands[i] = value
        if (how := lowered.unpoolings.get(index)) is not None:
            operands = unpooled(self, eqn, how, operands)
        barrier = lowered.barriers.get(index)
        # A barrier materialises operands computed inside of the dot (the gradient of logits): none for nothing.
        if barrier is not None and (self.gradients.any_waiting or barrier.is_resident):
            (operands[barrier.operand],) = self.gradients.after_all([operands[barrier.operand]])
        if (order := lowered.orders.get(index)) is not None:
            operands = ordered(self, order, operands, shardings)
        return operands

    def _zeros_in_turn(self, eqn: Equation, operands: list[Any], sharding: Sharding) -> list[Any]:
        """The zeros that a table's gradient is added to; they wait for the gradients made before, or for the rows.

        The compiler was seen to make the zeros of 26 tables in one fusion, to hold all of them, and to defer dots that
        make gradients until after the tables'; and to make the zeros before a loop of the backward pass.
        """
        _, indices, rows = operands
        fill = self._program.equations[self.lowered.values.producer[eqn.operands[0]]]
        scalars = [self._program.tensors[t].value for t in fill.operands]
        if self.gradients.made:
            scalars = self.gradients.after_made(scalars)
        else:
            scalars, rows = lax.optimization_barrier((scalars, rows))
        return [self._operators.filled(fill, scalars, sharding), indices, rows]

    def _barrier(self, eqn: Equation) -> None:
        """All equations of one barrier of the program at the first of them: no result exists before all operands do.

        Values that are computed for nothing pass by, or they would have to be stored. A barrier of the backward pass
        begins to recompute a region. The gradients of parameters that were resharded before the previous one must be
        complete by then: the compiler was seen to defer the dots that make them to the end, and to keep all that they
        need until there.
        """
        values, env = self.values, self.values.env
        if eqn.results[0] in env:
            return
        held: list[Equation] = []
        for other in self._program.equations[eqn.index :]:
            if other.primitive is not eqn.primitive or other.origin is not eqn.origin:
                break
            if self.lowered.values.free[other.operands[0]]:
                env[other.results[0]] = env[other.operands[0]]
            else:
                held.append(other)
        again = [values.repeated_copy(other) for other in held]
        operands = [
            self._sent.away(other)
            if other.index in self.lowered.barriers_of_waiting
            else values.on_device(other.operands[0], other.index, self.tie(other.operands))
            if resharding
            else values.read_operand(other, 0)
            for other, resharding in zip(held, again, strict=True)
        ]
        is_complete = eqn.index in self.lowered.recompute_barriers
        passed = self.gradients.settle(operands) if is_complete else self.gradients.after_earlier(operands)
        for other, resharding, value in zip(held, again, passed, strict=True):
            value = self._sent.back(other, value)
            env[other.results[0]] = values.reshard(value, resharding, None) if resharding else value
        if eqn.phase != "backward":
            self.gradients.forget_earlier()
