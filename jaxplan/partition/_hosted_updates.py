"""Arguments that live on the host, brought to the device by the update that reads them.

A compiler that may copy all of them when the step begins does so, and the device holds them throughout the step. So the
copies of an update wait for its gradient and for the result of the update before the last, and the update is evaluated
as a whole before the next one.
"""

from __future__ import annotations

import jax

from jaxplan.ir import UPDATES_AT_ONCE, HostedUpdate, Offload, hosted_updates
from jaxplan.partition._evaluation import Evaluation
from jaxplan.partition._lowered_program import LoweredProgram


class HostedUpdates:
    """The updates of one evaluation that read arguments on the host.

    Attributes:
      tensors: these arguments.
      equations: those that run with the updates, also where the program has them earlier.
      held: values that such an equation reads.
    """

    def __init__(self, lowered: LoweredProgram, offload: Offload | None) -> None:
        program = lowered.program
        self._updates = hosted_updates(program, lowered.values, offload) if offload else ()
        self.tensors = frozenset(t for update in self._updates for t in update.inputs)
        self.equations = frozenset(e for update in self._updates for e in update.equations)
        self._begin = max((update.begin for update in self._updates), default=len(program.equations))
        early = (program.equations[e] for e in self.equations if e < self._begin)
        self.held = frozenset(t for eqn in early for t in eqn.operands)

    def run_before(self, run: Evaluation, equation: int) -> None:
        """Bring the arrays of each update to the device and run it, before the first equation after ``begin``."""
        if equation < self._begin:
            return
        self._begin = len(run.lowered.program.equations)
        done: list[HostedUpdate] = []
        evaluated = set[int]()  # equations that several updates need
        for update in self._updates:
            self._bring(run, update, done[-UPDATES_AT_ONCE] if len(done) >= UPDATES_AT_ONCE else None)
            for e in update.equations:
                if e not in evaluated:
                    run.evaluate_early(e)
            evaluated.update(update.equations)
            done += [update] if update.equations else []

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
