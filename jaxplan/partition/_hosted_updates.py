"""Arguments that live on the host, brought to the device by the update that reads them.

A compiler that may copy all of them when the step begins does so, and the device holds them throughout the step. So the
copies of an update wait for its gradient and for the result of the update before the last, and the update is evaluated
as a whole before the next one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import jax
from jax import lax

from jaxplan.ir import (
    UPDATES_AT_ONCE,
    Equation,
    HostedUpdate,
    Offload,
    hosted_sources,
    hosted_updates,
)
from jaxplan.partition._evaluation import Evaluation
from jaxplan.partition._lowered_program import LoweredProgram


class HostedUpdates:
    """The updates of one evaluation that read arguments on the host.

    Attributes:
      tensors: these arguments.
      parameters: the parameters on the host until their update, and the values that are there with them.
      equations: those that run with the updates, also where the program has them earlier.
      held: values that such an equation reads, and those that updates wait for.
    """

    def __init__(self, lowered: LoweredProgram, offload: Offload | None) -> None:
        program = lowered.program
        updates = hosted_updates(program, lowered.values, offload) if offload else ()
        self._updates = [update for update in updates if update.equations]
        self._in_loops = sorted((update for update in updates if not update.equations), key=lambda u: u.begin)
        self.parameters = {program.inputs[i] for i in offload.parameters} if offload else set[int]()
        self.tensors = self.parameters.union(*(update.inputs for update in updates))
        self.equations = frozenset(e for update in self._updates for e in update.equations)
        self._last_reads = _last_reads(lowered, (t for u in updates for t in u.inputs if t in self.parameters))
        self._begin = max((update.begin for update in self._updates), default=len(program.equations))
        early = (program.equations[e] for e in self.equations if e < self._begin)
        awaited = (update.waits_for[1] for update in self._updates if update.waits_for)
        self.held = frozenset(t for eqn in early for t in eqn.operands).union(awaited)

    def after(self, run: Evaluation, eqn: Equation) -> None:
        """Let the updates of parameters that an equation of the backward pass reads last wait for its result.

        A successor may be copied over its parameter only then, or the compiler copies the parameter on the host.
        """
        env = run.values.env
        for t in self._last_reads.get(eqn.index, ()):
            result = eqn.results[0]
            if result in env:
                env[t], env[result] = lax.optimization_barrier((env[t], env[result]))
                run.values.keep_sharding(env, result)

    def run_before(self, run: Evaluation, equation: int) -> None:
        """Bring the arrays of updates to the device: of those in loops before the first equation that reads them.

        The others run as soon as the last of them can, one after the other.
        """
        while self._in_loops and self._in_loops[0].begin <= equation:
            self._bring(run, self._in_loops.pop(0), None)
        if equation < self._begin:
            return
        self._begin = len(run.lowered.program.equations)
        evaluated = set[int]()  # equations that several updates need
        for turn, update in enumerate(self._updates):
            self._bring(run, update, self._updates[turn - UPDATES_AT_ONCE] if turn >= UPDATES_AT_ONCE else None)
            for e in update.equations:
                if e not in evaluated:
                    run.evaluate_early(e)
            evaluated.update(update.equations)

    def _bring(self, run: Evaluation, update: HostedUpdate, before: HostedUpdate | None) -> None:
        env = run.values.env
        on_host = [env[t] for t in update.inputs]
        places = []
        if update.waits_for is not None and before is None:
            reader, t = update.waits_for
            places.append(run.values.place_of(run.lowered.program.equations[reader], t))
        if before is not None:
            places.append((env, before.outputs[0]))
        on_host = run.gradients.behind(on_host, [(key, values[key]) for values, key in places])
        for t, value in zip(update.inputs, on_host, strict=True):
            placed = jax.device_put(value, jax.memory.Space.Device)
            env[t] = run.values.executor.constrain(placed, run.lowered.home(t))
            self.parameters.discard(t)


def _last_reads(lowered: LoweredProgram, updated: Iterable[int]) -> Mapping[int, list[int]]:
    """Equations of the backward pass, outside of loops -> the parameters that they, or casts that they read, are the
    last to read."""
    program, wanted, last = lowered.program, frozenset(updated), dict[int, int]()
    for t, source in hosted_sources(program, lowered.graph.parameters_on_host).items():
        for c in lowered.values.consumers[t] if source in wanted else ():
            eqn = program.equations[c]
            if eqn.phase == "backward" and eqn.region < 0:
                last[source] = max(c, last.get(source, c))
    found = defaultdict[int, list[int]](list)
    for t, e in last.items():
        found[e].append(t)
    return found
