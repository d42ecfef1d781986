"""Evaluate one equation on one device's pieces, inside a manual program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxplan.ir import CUT, JOIN, Equation
from jaxplan.mesh import Sharding
from jaxplan.partition._local import run_local
from jaxplan.partition._lowered_program import LoweredProgram
from jaxplan.partition._micro_batches import cut, join
from jaxplan.partition._operators import Operators
from jaxplan.partition.manual._effects import has_outside_effects, on_first_device
from jaxplan.partition.manual._executor import ManualExecutor
from jaxplan.partition.manual._free_values import FreeCall, FreeValue
from jaxplan.partition.manual._positions import POSITIONAL, Piece
from jaxplan.partition.manual._splits import Split, factor_split, minor_factors
from jaxplan.partition.manual._user_body import run_body


class ManualOperators(Operators):
    """Operators of one program on the pieces of one device."""

    def __init__(self, lowered: LoweredProgram, executor: ManualExecutor) -> None:
        super().__init__(lowered, executor)
        self._executor: ManualExecutor = executor

    def deferred(self, eqn: Equation, operands: Sequence[Any]) -> list[Any]:
        """The results of an equation on constants and scalars, to be computed when a piece is read."""
        call = FreeCall(
            eqn=eqn,
            rule=self._lowered.graph.rules[eqn.index],
            sources=tuple(operands),
            out_shapes=tuple(self._shapes(eqn.results)),
            run=self._run,
        )
        return [FreeValue(call=call, position=i) for i in range(len(eqn.results))]

    def filled(self, eqn: Equation, scalars: Sequence[Any], sharding: Sharding) -> Any:
        (value,) = self.deferred(eqn, scalars)
        return self._executor.place(value, sharding)

    def apply(self, eqn: Equation, operands: Sequence[Any], shardings: Sequence[Sharding]) -> list[Any]:
        """Local results from local operands."""
        homes = [self._lowered.home(t) for t in eqn.results]
        if eqn.name in (CUT, JOIN):
            return [self._micro_batches(eqn, operands[0], shardings[0], homes[0])]
        if eqn.name == "shard_map":
            return run_body(eqn, self._executor, operands)
        if eqn.name == "sharding_constraint":
            return list(operands)
        tensors, rule = self._program.tensors, self._lowered.graph.rules[eqn.index]
        reads = [
            None if tensors[t].kind == "literal" else sharding
            for t, sharding in zip(eqn.operands, shardings, strict=True)
        ]
        split = factor_split(rule, reads, homes)
        if split and eqn.name in _ON_WHOLE:
            return self._around(eqn, operands, shardings, homes)
        late = minor_factors(rule) & split.keys()
        now = {f: axes for f, axes in split.items() if f not in late}
        shapes = [
            self._without(late, dims, home).local_shape(shape, self._executor.axes)
            for dims, home, shape in zip(rule.results, homes, self._shapes(eqn.results), strict=True)
        ]
        results = self._run(eqn, self._aligned(eqn, operands, reads, now), now, shapes)
        return [
            self._sliced(r, dims, home, late)
            for r, dims, home in zip(results, rule.results, homes, strict=True)
        ]

    def bind(
        self, eqn: Equation, operands: Sequence[Any], params: Mapping[str, Any] | None = None
    ) -> list[Any]:
        if has_outside_effects(eqn.origin):
            return on_first_device(
                self._executor, lambda *xs: super(ManualOperators, self).bind(eqn, xs, params), operands
            )
        return super().bind(eqn, operands, params)

    def _run(
        self, eqn: Equation, pieces: Sequence[Any], split: Split, out_shapes: Sequence[tuple[int, ...]]
    ) -> list[Any]:
        """Results of an equation on pieces; whole where nothing is split."""
        if not split:
            return self.bind(eqn, pieces)
        if (positional := POSITIONAL.get(eqn.name)) is not None:
            rule, whole = self._lowered.graph.rules[eqn.index], self._shapes(eqn.results)[0]
            starts = [
                self._executor.place_along(split[factors[0]]) * n if factors and factors[0] in split else 0
                for factors, n in zip(rule.results[0], out_shapes[0], strict=True)
            ]
            return positional(eqn.params, pieces, Piece(whole, tuple(out_shapes[0]), starts))
        names = {f: self._executor.names(axes) for f, axes in split.items()}
        rule = self._lowered.graph.rules[eqn.index]
        return run_local(eqn, rule, lambda params, xs: self.bind(eqn, xs, params), pieces, names, out_shapes)

    def _aligned(
        self, eqn: Equation, operands: Sequence[Any], reads: Sequence[Sharding | None], split: Split
    ) -> list[Any]:
        """Operands that are split wherever a factor of theirs is; one that is read whole is sliced."""
        aligned = list(operands)
        for i, (dims, sharding) in enumerate(
            zip(self._lowered.graph.rules[eqn.index].operands, reads, strict=True)
        ):
            if sharding is None:
                continue
            for d, (factors, axes) in enumerate(zip(dims, sharding.dims, strict=bool(dims))):
                if factors and not axes and factors[0] in split:
                    aligned[i] = self._executor.part(aligned[i], d, split[factors[0]])
        return aligned

    @staticmethod
    def _without(late: frozenset[int], dims: Sequence[Sequence[int]], home: Sharding) -> Sharding:
        return Sharding(
            tuple(() if f and f[0] in late else axes for f, axes in zip(dims, home.dims, strict=True))
        )

    def _sliced(self, x: Any, dims: Sequence[Sequence[int]], home: Sharding, late: frozenset[int]) -> Any:
        """A result, sliced along the dimensions in which the operand could not be."""
        for d, (factors, axes) in enumerate(zip(dims, home.dims, strict=True)):
            if factors and factors[0] in late:
                x = self._executor.part(x, d, axes)
        return x

    def _around(
        self, eqn: Equation, operands: Sequence[Any], shardings: Sequence[Sharding], homes: Sequence[Sharding]
    ) -> list[Any]:
        """Results of an equation that cannot run on pieces: its operands are gathered, its results sliced."""
        assert not any(sharding.partial for sharding in (*shardings, *homes))
        whole = [
            self._executor.gathered(x, sharding) if np.ndim(x) else x
            for x, sharding in zip(operands, shardings, strict=True)
        ]
        return [self._executor.place(r, home) for r, home in zip(self.bind(eqn, whole), homes, strict=True)]

    def _micro_batches(self, eqn: Equation, x: Any, sharding: Sharding, home: Sharding) -> Any:
        """Micro-batches cut out of, or put back into, each device's own part of the batch."""
        is_cut, levels = eqn.name == CUT, eqn.params["levels"]
        inner = home if is_cut else sharding
        num_devices = self._executor.size(inner.dims[levels])
        parts = self._parts // num_devices
        if self._parts % num_devices or any(inner.dims[:levels]):
            return self._around(eqn, [x], [sharding], [home])[0]
        if not is_cut:
            return join(x, levels, parts)
        if not sharding.dims[0]:
            x = self._executor.part(x, 0, inner.dims[levels])
        return cut(x, home.local_shape(self._shapes(eqn.results)[0], self._executor.axes), levels, parts)

    def _shapes(self, tensors: Sequence[int]) -> list[tuple[int, ...]]:
        return [self._program.tensors[t].shape for t in tensors]


_ON_WHOLE = frozenset({"custom_partitioning"})
"""Primitives that hold a program traced for whole operands."""
