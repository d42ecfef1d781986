"""The values of one evaluation: tensors as they are made, their copies in other shardings, and how a copy is made."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

import jax
from jax import lax

from jaxplan.ir import Equation
from jaxplan.mesh import Sharding, Step
from jaxplan.partition._lowered_program import LoweredProgram
from jaxplan.partition._lowering import Resharding
from jaxplan.partition._steps import Executor

Copy: TypeAlias = tuple[int, Sharding, int]
"""A resharded value: tensor, sharding, and which execution of its resharding."""
Place: TypeAlias = tuple[MutableMapping[Any, Any], Any]
"""Where a value is held: the mapping and its key."""
Bind: TypeAlias = Callable[[Equation, Sequence[Any]], list[Any]]
"""Evaluates an equation on values: (equation, operands) -> results."""


class Environment:
    """Tensors and copies of one evaluation (see `jax.core.eval_jaxpr`).

    Attributes:
      env: tensor -> its value, as it is made.
      copies: (tensor, sharding, execution) -> a copy.
      on_host: tensors of which ``env`` holds the value in the memory of the host; bodies of loops share it.
    """

    def __init__(
        self,
        lowered: LoweredProgram,
        executor: Executor,
        bind: Bind,
        env: MutableMapping[int, Any],
        copies: MutableMapping[Copy, Any],
        on_host: set[int],
    ) -> None:
        self.lowered, self.executor = lowered, executor
        self.program, self.tensors = lowered.program, lowered.program.tensors
        self.env, self.copies, self._bind = env, copies, bind
        self.on_host = on_host
        self.after_gradients: Callable[[Sequence[Any]], Sequence[Any]] = lambda values: values
        self._brought: dict[tuple[int, bool], Any] = {}  # (tensor, whether for the backward pass) -> on the device
        # Reshardings that begin alike: value, sharding in which it starts, steps taken -> the value then.
        self._partway: dict[tuple[int, Sharding, tuple[Step, ...]], Any] = {}

    def pin(self, t: int, value: Any) -> Any:
        """A value in the sharding in which its group makes it."""
        is_pinned = self.tensors[t].shape and self.lowered.is_placed(t) and t not in self.on_host
        return self.executor.constrain(value, self.lowered.home(t)) if is_pinned else value

    def read_replicated(self, t: int, equation: int) -> Any:
        """A value whole on every device."""
        if self.lowered.is_free(t):
            return self.executor.whole(self.env[t])
        return self.read(t, Sharding.replicated(len(self.tensors[t].shape)), equation, None)

    def read_operand(self, eqn: Equation, position: int, tie: Place | None = None) -> Any:
        """An operand in the sharding in which the equation reads it."""
        t, shardings = eqn.operands[position], self.lowered.reads(eqn)
        if shardings is None:
            return self.read_replicated(t, eqn.index)
        if self.executor.keeps_free and self.lowered.is_free(eqn.results[0]):
            return self.read_replicated(t, eqn.index)
        return self.read(t, shardings[position], eqn.index, tie)

    def read_entering(self, eqn: Equation, tie: Place | None) -> Any:
        """A value that enters a body; one that is free may be computed inside."""
        if self.executor.keeps_free and eqn.params["role"] != "x" and self.lowered.is_free(eqn.results[0]):
            return self.env[eqn.operands[0]]
        return self.env[eqn.operands[0]] if self.passes_from_host(eqn) else self.read_operand(eqn, 0, tie)

    def passes_from_host(self, eqn: Equation) -> bool:
        """Whether an equation hands a value on that stays in the memory of the host (`jaxplan.ir.hosted_values`)."""
        if eqn.results[0] not in self.lowered.could_be_on_host or eqn.operands[0] not in self.on_host:
            return False
        (t,) = eqn.operands
        is_as_it_is = self.lowered.read(eqn, t) == self.lowered.home(t)
        self.on_host.update(eqn.results if is_as_it_is else ())
        return is_as_it_is

    def read(self, t: int, sharding: Sharding, equation: int, tie: Place | None) -> Any:
        """A tensor in a sharding: as it is, from a copy that exists, or through its resharding.

        Args:
          equation: the reader.
          tie: the place of a value that a copy gathered again waits for.
        """
        tensor = self.tensors[t]
        if tensor.kind == "literal":
            return self.env[t]
        if sharding.partial and self.lowered.values.free[t]:  # the start of an accumulation: zero on every device
            return self.executor.zeros(tensor.shape, tensor.dtype, sharding)
        if self.lowered.is_free(t):
            return self._placed(t, sharding) if tensor.shape else self.env[t]
        if self.lowered.home(t) == sharding:
            return self.on_device(t, equation, tie)
        key, resharding = self._copy(t, sharding, equation)
        if key not in self.copies:
            value = self.on_device(t, equation, tie)
            self.copies[key] = self.reshard(value, resharding, tie if key[2] and t not in self.on_host else None)
        return self.copies[key]

    def on_device(self, t: int, equation: int, tie: Place | None) -> Any:
        """A value in its own sharding for an equation; from the host once for each pass, when ``tie`` is there."""
        if t not in self.on_host:
            return self.env[t]
        key = t, self.program.equations[equation].phase == "backward"
        if key not in self._brought:
            value = self.env[t]
            if tie is not None:
                values, place = tie
                value, values[place] = lax.optimization_barrier((value, values[place]))
                self.keep_sharding(values, place)
            if key[1]:  # or the compiler defers gradients of parameters, and copies these first
                (value,) = self.after_gradients([value])
            value = self.executor.constrain(jax.device_put(value, jax.memory.Space.Device), self.lowered.home(t))
            dtype = self.tensors[t].dtype
            self._brought[key] = value if value.dtype == dtype else lax.convert_element_type(value, dtype)
        return self._brought[key]

    def _placed(self, t: int, sharding: Sharding) -> Any:
        """A value that is free, in a sharding; made once where that is no mere constraint."""
        if not self.executor.keeps_free:
            return self.executor.place(self.env[t], sharding)
        key = (t, sharding, 0)
        if key not in self.copies:
            self.copies[key] = self.executor.place(self.env[t], sharding)
        return self.copies[key]

    def _copy(self, t: int, sharding: Sharding, equation: int) -> tuple[Copy, Resharding]:
        """The copy that an equation reads, and its resharding."""
        resharding = self.lowered.by_read[t, sharding]
        return (t, sharding, resharding.execution_at(equation)), resharding

    def place_of(self, eqn: Equation, t: int) -> Place:
        """Where an operand is held, in the sharding in which an equation reads it."""
        sharding = self.lowered.read(eqn, t)
        if sharding is None or not self.lowered.is_placed(t) or self.lowered.home(t) == sharding:
            return self.env, t
        self.read(t, sharding, eqn.index, None)
        return self.copies, self._copy(t, sharding, eqn.index)[0]

    def repeated_copy(self, eqn: Equation) -> Resharding | None:
        """The resharding that is repeated for a barrier's operand: after it, or the compiler would merge the two."""
        (t,), sharding = eqn.operands, self.lowered.read(eqn, eqn.operands[0])
        if sharding is None or not self.lowered.is_placed(t) or self.lowered.home(t) == sharding:
            return None
        (_, _, execution), resharding = self._copy(t, sharding, eqn.index)
        return resharding if execution else None

    def replace(self, key: Copy | int, value: Any) -> None:
        """Put a value in the place of a tensor, and forget its copies, or in the place of one copy."""
        if isinstance(key, int):
            self._forget_copies(key)
            self.env[key] = value
        else:
            self.copies[key] = value

    def forget(self, t: int) -> None:
        """Drop a tensor and its copies: nothing reads them any more."""
        self.env.pop(t, None)
        self._forget_copies(t)

    def keep_sharding(self, values: MutableMapping[Any, Any], key: Copy | int) -> None:
        """Constrain a result of a barrier: the compiler gives it the sharding that its readers want."""
        sharding = self.lowered.home(key) if isinstance(key, int) else key[1]
        values[key] = self.executor.constrain(values[key], sharding)

    def _forget_copies(self, t: int) -> None:
        for key in [key for key in self.copies if key[0] == t]:
            del self.copies[key]
        for key in [key for key in self._partway if key[0] == self.lowered.values.merged[t]]:
            del self._partway[key]

    def reshard(self, value: Any, resharding: Resharding, tie: Place | None) -> Any:
        """The value in the sharding of the resharding; one that is repeated waits for ``tie``."""
        is_cast = resharding.carried != resharding.tensor
        if is_cast:
            value = lax.convert_element_type(value, self.tensors[resharding.carried].dtype)
        if resharding.repeated and tie is not None:
            value = self._recomputed(value, resharding.tensor, tie)
        value = self._through_steps(value, resharding)
        if is_cast:
            value = lax.convert_element_type(value, self.tensors[resharding.tensor].dtype)
        is_written = (resharding.tensor, resharding.target) in self.lowered.lowering.written_copies
        return lax.optimization_barrier(value) if is_written else value

    def _through_steps(self, value: Any, resharding: Resharding) -> Any:
        steps, source = resharding.steps, self.lowered.source_of(resharding)
        is_alike, done = self.lowered.begins_alike(resharding), 0
        if is_alike:
            done = next((n for n in range(len(steps), 0, -1) if (*source, steps[:n]) in self._partway), 0)
            value = self._partway[*source, steps[:done]] if done else value
        for n, step in enumerate(steps[done:], done + 1):
            value = self.executor.apply(value, step)
            if step.kind == "all-reduce" and self.tensors[resharding.tensor].shape:
                value = lax.optimization_barrier(value)  # or the compiler splits it, and a slice after it, into others
            if is_alike:
                self._partway[*source, steps[:n]] = value
        return value

    def _recomputed(self, value: Any, t: int, tie: Place) -> Any:
        """A value that does not exist before the tie does: readers of the tie read it here, or the barrier is dropped.

        A cast of a parameter is recomputed too, or it would be kept beside the parameter from the forward pass. Where
        nobody may read the tie any more the value depends on an element of it (`Executor.behind`).
        """
        values, key = tie
        index = self.lowered.values.producer[t]
        cast = self.program.equations[index] if index >= 0 else None
        if cast and (cast.name != "convert_element_type" or not self._is_stored_like(cast.operands[0], t)):
            cast = None
        source = self.env[cast.operands[0]] if cast else value
        if self.lowered.target.fuses_operands:
            sharding = key[1] if isinstance(key, tuple) else self.lowered.home(key)
            source = self.executor.behind(source, self.lowered.home(t), values[key], sharding)
        else:
            source, values[key] = lax.optimization_barrier((source, values[key]))
        return self._bind(cast, [source])[0] if cast else source

    def _is_stored_like(self, source: int, t: int) -> bool:
        """Whether a tensor is an input of the step, still needed, in the sharding of another."""
        is_input = source in self.env and source not in self.on_host and self.tensors[source].kind == "input"
        return is_input and self.lowered.home(source) == self.lowered.home(t)
