"""Values of the forward pass that wait on the host for the region of the backward pass that reads them.

The compiler starts a copy to the host where its result is read, unless something else needs it: so the next such value
leaves a barrier together with the copy of the one before, which then runs beside the operators between the two.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from jaxplan.ir import Equation
from jaxplan.partition._lowered_program import LoweredProgram
from jaxplan.partition._steps import Executor


class SentValues:
    """The copies of one evaluation; ``env`` holds its values by tensor."""

    def __init__(self, lowered: LoweredProgram, executor: Executor, env: Any) -> None:
        self._lowered, self._executor, self._env = lowered, executor, env
        self._under_way: dict[int, Any] = {}
        self._done: dict[int, Any] = {}

    def send(self, eqn: Equation) -> None:
        """Send the results of an equation that are to wait, once the copies of those before are done."""
        lowered, env = self._lowered, self._env
        for t in eqn.results if lowered.waiting else ():
            if t in lowered.could_wait and self._under_way and t in env:
                env[t], *done = lax.optimization_barrier((env[t], *self._under_way.values()))
                self._done.update(zip(self._under_way, done, strict=True))
                self._under_way.clear()
        for t in eqn.results if lowered.waiting else ():
            if t in lowered.waiting:
                self._under_way[t] = jax.device_put(env[t], jax.memory.Space.Host)

    def away(self, barrier: Equation) -> Any:
        """The value on the host that an equation of a barrier reads; None where it is on the device."""
        t = self._lowered.barriers_of_waiting.get(barrier.index)
        if t is None:
            return None
        return self._done.pop(t) if t in self._done else self._under_way.pop(t)

    def back(self, barrier: Equation, value: Any) -> Any:
        """A value behind its barrier, on the device."""
        t = self._lowered.barriers_of_waiting.get(barrier.index)
        if t is None:
            return value
        value = jax.device_put(value, jax.memory.Space.Device)
        return self._executor.constrain(value, self._lowered.home(t))
