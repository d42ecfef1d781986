"""Evaluate one equation on values in the shardings in which it reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxplan.core import _compat
from jaxplan.ir import CUT, JOIN, RAGGED_DOT, Equation
from jaxplan.ir.attention import ATTENTIONS
from jaxplan.mesh import Sharding
from jaxplan.partition._attention import attend
from jaxplan.partition._indexed import in_bounds
from jaxplan.partition._local import run_local
from jaxplan.partition._lowered_program import LoweredProgram
from jaxplan.partition._micro_batches import cut, join
from jaxplan.partition._ragged import run_ragged
from jaxplan.partition._steps import Executor
from jaxplan.partition._user_sharding import user_params
from jaxplan.xla import UNPOOLING


class Operators:
    """Operators of one program on the devices of an executor."""

    def __init__(self, lowered: LoweredProgram, executor: Executor) -> None:
        self._lowered, self._executor = lowered, executor
        self._program, self._parts = lowered.program, lowered.lowering.micro_batch_parts

    def apply(self, eqn: Equation, operands: Sequence[Any], shardings: Sequence[Sharding]) -> list[Any]:
        """Results in their shardings, from operands in those given."""
        executor, homes = self._executor, [self._lowered.home(t) for t in eqn.results]
        if (split := self._lowered.lowering.islands.get(eqn.index)) is not None:
            return self._island(eqn, operands, shardings, homes, split)
        if eqn.name == CUT:
            return [self._cut(eqn, operands[0], homes[0])]
        if eqn.name == "transpose" and shardings[0].partial and self._is_batched_dot(eqn.operands[0]):
            return executor.manual(lambda x: [self.bind(eqn, [x[0]])[0][None]], [*operands], [*shardings], homes)
        if any(sharding.partial for sharding in shardings):
            summed = tuple(0 if np.ndim(x) else None for x in operands)  # a scalar is a factor, or zero
            mapped = jax.vmap(lambda *args: self.bind(eqn, args), summed)(*operands)
            return [executor.constrain(r, home) for r, home in zip(mapped, homes, strict=True)]
        if self._lowered.family(eqn) == "user":
            return self._as_the_step_says(eqn, operands, shardings, homes)
        pinned = self._lowered.lowering.pinned
        results = [
            executor.constrain(r, home) if t in pinned else r
            for t, r, home in zip(eqn.results, self.bind(eqn, operands), homes, strict=True)
        ]
        if eqn.index in self._lowered.lowering.relaid:
            return [executor.least_padded(r, home) for r, home in zip(results, homes, strict=True)]
        return results

    def _is_batched_dot(self, t: int) -> bool:
        """Whether a tensor is the result of a dot with batch dimensions.

        The compiler makes a transposed gradient of experts in the order of the parameter, so that the update is written
        over it, where it sees the dot and the transpose of a device's own piece, without the dimension of the summands.
        """
        made_by = self._lowered.values.producer[t]
        eqn = self._program.equations[made_by] if made_by >= 0 else None
        return eqn is not None and eqn.name == "dot_general" and any(eqn.params["dimension_numbers"][1])

    def deferred(self, eqn: Equation, operands: Sequence[Any]) -> list[Any]:
        """The results of an equation on constants and scalars alone, which may be evaluated when they are read."""
        return self.bind(eqn, operands)

    def filled(self, eqn: Equation, scalars: Sequence[Any], sharding: Sharding) -> Any:
        """The result of an equation on scalars, in a sharding."""
        return self._executor.constrain(self.bind(eqn, scalars)[0], sharding)

    def bind(
        self, eqn: Equation, operands: Sequence[Any], params: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Results of an equation on values as they are; ``params`` are its parameters unless given."""
        params = dict(eqn.params if params is None else params)
        if eqn.name == CUT:
            return [cut(operands[0], self._program.tensors[eqn.results[0]].shape, params["levels"], self._parts)]
        if eqn.name == JOIN:
            return [join(operands[0], params["levels"], self._parts)]
        if eqn.name in ATTENTIONS:
            return attend(params["attention"], operands, ())
        operands = in_bounds(eqn.name, params, operands)
        if eqn.name == UNPOOLING and self._lowered.target.scatters_pooling_gradients:
            return _scatter_to_own_zeros(eqn, params, operands)
        if eqn.name == RAGGED_DOT and np.ndim(operands[2]) > 1:
            return run_ragged(lambda params, xs: self._bind_as_is(eqn, xs, params), params, operands, ())
        return self._bind_as_is(eqn, operands, params)

    def _bind_as_is(self, eqn: Equation, operands: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
        return _compat.bind_like(eqn.origin, eqn.primitive, dict(params), operands, eqn.name_stack)

    def _cut(self, eqn: Equation, x: Any, home: Sharding) -> Any:
        """Micro-batches of which each device cuts its own out of its part of the batch."""
        shape, levels = self._program.tensors[eqn.results[0]].shape, eqn.params["levels"]
        axes = home.dims[levels]

        def pin(x: Any, dim: int) -> Any:
            if self._parts % self._executor.size(axes):
                return x
            dims = [(), (), (), *home.dims[levels + 1 :]]
            dims[dim] = axes
            return self._executor.constrain(x, Sharding(tuple(dims)))

        return self._executor.constrain(cut(x, shape, levels, self._parts, pin), home)

    def _as_the_step_says(
        self, eqn: Equation, operands: Sequence[Any], shardings: Sequence[Sharding], homes: Sequence[Sharding]
    ) -> list[Any]:
        """A constraint of the user's is the sharding of its group; a `jax.shard_map` runs between such shardings."""
        constrain = self._executor.constrain
        if eqn.name == "shard_map":
            pinned = [
                constrain(x, sharding) if np.ndim(x) else x for x, sharding in zip(operands, shardings, strict=True)
            ]
            operands = self.bind(eqn, pinned, user_params(eqn, self._executor))
        return [constrain(r, home) if np.ndim(r) else r for r, home in zip(operands, homes, strict=True)]

    def _island(
        self,
        eqn: Equation,
        operands: Sequence[Any],
        shardings: Sequence[Sharding],
        homes: list[Sharding],
        split: Mapping[int, tuple[int, ...]],
    ) -> list[Any]:
        """Results of an equation that runs on the devices' own pieces; ``split``: factor -> atomic axes."""
        executor, tensors = self._executor, self._program.tensors
        rule, names = self._lowered.graph.rules[eqn.index], {f: executor.names(axes) for f, axes in split.items()}
        partial = bool(homes[0].partial)
        traced = [i for i, t in enumerate(eqn.operands) if tensors[t].kind != "literal"]
        out_shapes = [
            home.local_shape(tensors[t].shape, executor.axes) for t, home in zip(eqn.results, homes, strict=True)
        ]

        def body(*pieces: Any) -> list[Any]:
            local = list(operands)
            for i, piece in zip(traced, pieces, strict=True):
                local[i] = piece
            results = run_local(
                eqn, rule, lambda params, xs: self.bind(eqn, xs, params), local, names, out_shapes
            )
            return [r[None] for r in results] if partial else results

        return executor.manual(body, [operands[i] for i in traced], [shardings[i] for i in traced], homes)


def _scatter_to_own_zeros(eqn: Equation, params: Mapping[str, Any], operands: Sequence[Any]) -> list[Any]:
    """The gradient of a pooling, added to zeros that the compiler does not know to be those of others."""
    source, operand = operands
    source, start = lax.optimization_barrier((source, jnp.zeros((), source.dtype)))
    return [_compat.select_and_scatter_add(eqn.origin, params, (source, operand, start), eqn.name_stack)]
