"""Barriers that make values wait for the gradients of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from jax import lax

from jaxplan.ir import Equation
from jaxplan.partition._environment import Copy, Environment
from jaxplan.partition._lowered_program import LoweredProgram
from jaxplan.partition._lowering import TripBarrier

Gradient: TypeAlias = tuple[Copy | int, Any]
"""A gradient: the copy that was resharded, or the tensor that is still to be summed; and its value."""


class GradientTies:
    """The gradients that were made so far in one evaluation, until a barrier waits for them."""

    def __init__(
        self, lowered: LoweredProgram, values: Environment, evaluate: Callable[[Equation], None]
    ) -> None:
        self._lowered, self._values, self._evaluate = lowered, values, evaluate
        self.made: list[Gradient] = []  # since the last barrier of the backward pass
        self._earlier: list[Gradient] = []  # those before it
        self._passed: set[int] = set()  # equations with a trip barrier

    @property
    def any_waiting(self) -> bool:
        return bool(self.made or self._earlier)

    def collect(self, t: int) -> None:
        """A result of an equation, which goes to the sharding of its parameter at once if it is a gradient."""
        lowering, values = self._lowered.lowering, self._values
        if (number := lowering.reduced_at_once.get(t)) is not None:
            resharding = lowering.reshardings[number]
            key = (t, resharding.target, 0)
            reduced = values.reshard(values.env[t], resharding, None)
            values.copies[key] = values.executor.as_stored(reduced, resharding.target)
            self._add(key, values.copies[key])
        elif t in lowering.sums or t in lowering.stored_gradients:
            if t in lowering.stored_gradients:
                values.env[t] = values.executor.as_stored(values.env[t], self._lowered.home(t))
            self._add(t, values.env[t])

    def _add(self, key: Copy | int, value: Any) -> None:
        self.made = [(other, made) for other, made in self.made if other != key] + [(key, value)]

    def after_made(self, values: Sequence[Any]) -> list[Any]:
        """Values that wait for the gradients made since the last barrier."""
        made, self.made = self.made, []
        return self._after(values, made)

    def after_earlier(self, values: Sequence[Any]) -> list[Any]:
        """Values that wait for the gradients that were made before the last call of this."""
        earlier, self._earlier, self.made = self._earlier, self.made, []
        return self._after(values, earlier)

    def after_all(self, values: Sequence[Any], others: Sequence[Gradient] = ()) -> list[Any]:
        """Values that wait for all gradients made so far, and for ``others``."""
        made, self.made, self._earlier = [*self._earlier, *self.made, *others], [], []
        return self._after(values, made)

    def settle(self, values: Sequence[Any]) -> list[Any]:
        """First values of a loop of the backward pass, or of a recomputed region, which wait for all gradients made
        before, and for parts of them."""
        env = self._values.env
        return self.after_all(values, [(t, env[t]) for t in sorted(self._lowered.lowering.summands) if t in env])

    def forget_earlier(self) -> None:
        """A barrier of the forward pass: there is nothing earlier to wait for."""
        self._earlier = []

    def behind(self, values: Sequence[Any], others: Sequence[Gradient]) -> list[Any]:
        """Values that wait for ``others`` alone."""
        return self._after(values, others) if others else list(values)

    def pass_trip_barrier(self, barrier: TripBarrier) -> None:
        """Tensors wait for results of dots, as a device makes them; gradients are reduced from there once more."""
        if barrier.equation in self._passed:
            return
        self._passed.add(barrier.equation)
        env = self._values.env
        tied = self._after([env[t] for t in barrier.tensors], [(result, env[result]) for result in barrier.behind])
        for t, value in zip(barrier.tensors, tied, strict=True):
            self._replace(t, self._values.pin(t, value))
        for result in barrier.behind:
            self.collect(result)

    def _after(self, values: Sequence[Any], gradients: Sequence[Gradient]) -> list[Any]:
        """Values that wait for gradients.

        The compiler drops operands of a barrier that nobody reads, so values that were computed from a gradient before
        (a cast) are recomputed from its result.
        """
        tied, made = lax.optimization_barrier((list(values), [value for _, value in gradients]))
        for (key, _), value in zip(gradients, made, strict=True):
            self._replace(key, value)
        return tied

    def _replace(self, key: Copy | int, value: Any) -> None:
        """Put a value in the place of a tensor, or of a copy of it, and recompute the values computed from it."""
        env, t = self._values.env, key if isinstance(key, int) else key[0]
        was_forgotten = t not in env
        self._values.replace(key, value)
        for index in self._lowered.values.consumers[t]:
            eqn = self._lowered.program.equations[index]
            if all(r in env for r in eqn.results) and self._reads_only(eqn, key):
                self._evaluate(eqn)
        if was_forgotten:
            self._values.forget(t)

    def _reads_only(self, eqn: Equation, key: Copy | int) -> bool:
        """Whether an equation reads one array, and that is the one under ``key``; never one with an effect."""
        if not eqn.results or getattr(eqn.origin, "effects", None):
            return False
        arrays = [t for t in eqn.operands if self._lowered.program.tensors[t].kind != "literal"]
        if len(arrays) != 1 or isinstance(key, int):
            return len(arrays) == 1
        return self._lowered.read(eqn, key[0]) == key[1]
