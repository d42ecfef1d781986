"""Replay the program over the atomic mesh as a plan says: the jit backend.

Layouts are pinned by constraints; an equation with a split reduced factor runs as a fully manual island; a transfer
runs step by step. A copy that the plan makes again in the backward pass is tied by an optimization barrier to a
value of that pass, so that the compiler neither merges the two gathers nor issues the second one early.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import lax

from jaxplan import _compat
from jaxplan.cost import Flow, Transfer, layout_of
from jaxplan.ir import UNGROUPED, WHOLE, Configuration, Equation, StepGraph
from jaxplan.mesh import Layout
from jaxplan.partition._local import run_local, runs_on_pieces
from jaxplan.partition._steps import Executor

_PINNED_FAMILIES = frozenset({"contraction", "convolution", "gather", "scatter", "reduction", "unknown"})


class Replay:
    """A plan bound to its program: what to do at each equation, decided once."""

    def __init__(
        self,
        graph: StepGraph,
        configurations: Sequence[Configuration],
        flows: Sequence[Flow],
        transfers: Sequence[Transfer],
    ) -> None:
        self.graph, self.configurations = graph, tuple(configurations)
        self._by_read: dict[tuple[int, Layout], Transfer] = {(t.tensor, t.target): t for t in transfers}
        self._crossing = {flow.tensor for flow in flows}
        self._late = {t.tensor for t in transfers if t.repeated}

    def home(self, t: int) -> Layout:
        """Layout in which tensor ``t`` is made or comes in."""
        group = self.graph.grouping.tensor_group[t]
        return layout_of(self.graph, self.configurations, group, t, produced=True)

    def in_layouts(self) -> list[Layout]:
        return [self.home(t) for t in self.graph.program.inputs]

    def out_layouts(self) -> list[Layout]:
        """An output that replaces an input has its layout; every other keeps that of its group, sums taken."""
        program = self.graph.program
        layouts = []
        for position, t in enumerate(program.outputs):
            if position in program.aliases:
                layouts.append(self.home(program.inputs[program.aliases[position]]))
            else:
                layouts.append(Layout(self.home(t).dims))
        return layouts

    def run(self, executor: Executor, arguments: Sequence[Any]) -> list[Any]:
        """Evaluate the program on flat global arguments; call under `jax.jit`."""
        return _Run(self, executor, arguments).run()

    @functools.cached_property
    def _last_use(self) -> dict[int, list[int]]:
        """Equation index -> tensors that nothing reads after it."""
        program, result = self.graph.program, defaultdict(list)
        outputs = set(program.outputs)
        for t, consumers in enumerate(self.graph.values.consumers):
            if consumers and t not in outputs:
                result[consumers[-1]].append(t)
        return result


class _Run:
    """The environment of one evaluation (see `jax.core.eval_jaxpr`)."""

    def __init__(self, replay: Replay, executor: Executor, arguments: Sequence[Any]) -> None:
        self.replay, self.executor = replay, executor
        self.graph, self.program = replay.graph, replay.graph.program
        self.env: dict[int, Any] = dict(zip(self.program.inputs, arguments, strict=True))
        for tensor in self.program.tensors:
            if tensor.kind in ("literal", "constant"):
                self.env[tensor.index] = tensor.value
        self.copies: dict[tuple[int, Layout, int], Any] = {}

    def run(self) -> list[Any]:
        for t in self.program.inputs:
            if self.program.tensors[t].shape:
                self.env[t] = self.executor.constrain(self.env[t], self.replay.home(t))
        for eqn in self.program.equations:
            self._evaluate(eqn)
            for t in self.replay._last_use.get(eqn.index, ()):
                self._forget(t)
        end = len(self.program.equations)
        layouts = self.replay.out_layouts()
        return [
            self._read(t, layout, end, None) for t, layout in zip(self.program.outputs, layouts, strict=True)
        ]

    def _forget(self, t: int) -> None:
        self.env.pop(t, None)
        for key in [key for key in self.copies if key[0] == t]:
            del self.copies[key]

    def _evaluate(self, eqn: Equation) -> None:
        if eqn.primitive is lax.optimization_barrier_p:
            self._barrier(eqn)
            return
        group = self.graph.grouping.equation_group[eqn.index]
        if group == UNGROUPED:
            operands = [self._read_replicated(t, eqn.index) for t in eqn.operands]
            self.env.update(zip(eqn.results, self._bind(eqn, operands), strict=True))
            return
        layouts = [self._required(eqn, group, t) for t in eqn.operands]
        tie = self._tie(eqn, layouts)
        operands = [
            self._read(t, layout, eqn.index, tie) for t, layout in zip(eqn.operands, layouts, strict=True)
        ]
        results = self._apply(eqn, group, operands, layouts)
        self.env.update(zip(eqn.results, results, strict=True))

    def _barrier(self, eqn: Equation) -> None:
        """All equations of one barrier at the first of them: nothing of it is there before all of it is.

        Values that are computed for nothing pass by, or they would have to be stored.
        """
        if eqn.results[0] in self.env:
            return
        held: list[Equation] = []
        for other in self.program.equations[eqn.index :]:
            if other.primitive is not eqn.primitive or other.origin is not eqn.origin:
                break
            if self.graph.values.free[other.operands[0]]:
                self.env[other.results[0]] = self.env[other.operands[0]]
            else:
                held.append(other)
        values = [self._barrier_operand(other) for other in held]
        values = lax.optimization_barrier(values) if values else []
        self.env.update((other.results[0], value) for other, value in zip(held, values, strict=True))

    def _barrier_operand(self, eqn: Equation) -> Any:
        group, t = self.graph.grouping.equation_group[eqn.index], eqn.operands[0]
        if group == UNGROUPED:
            return self._read_replicated(t, eqn.index)
        return self._read(t, self._required(eqn, group, t), eqn.index, None)

    def _apply(self, eqn: Equation, group: int, operands: list[Any], layouts: list[Layout]) -> list[Any]:
        homes = [self.replay.home(t) for t in eqn.results]
        split = self._split(eqn, group)
        if runs_on_pieces(self.graph.rules[eqn.index], split):
            return self._island(eqn, operands, layouts, homes, split)
        if any(layout.partial for layout in layouts):
            mapped = jax.vmap(lambda *args: self._bind(eqn, args))(*operands)
            return [self.executor.constrain(r, home) for r, home in zip(mapped, homes, strict=True)]
        results = self._bind(eqn, operands)
        return [
            self.executor.constrain(r, home) if self._is_pinned(eqn, t) else r
            for t, r, home in zip(eqn.results, results, homes, strict=True)
        ]

    def _is_pinned(self, eqn: Equation, t: int) -> bool:
        if not self.program.tensors[t].shape:
            return False
        return self.graph.rules[eqn.index].family in _PINNED_FAMILIES or t in self.replay._crossing

    def _split(self, eqn: Equation, group: int) -> dict[int, tuple[str, ...]]:
        """Factors that the group's configuration splits, with the mesh axes."""
        config = self.replay.configurations[group]
        classes = self.graph.spaces[group].factor_class[eqn.index]
        return {f: self.executor.names(config[c]) for f, c in enumerate(classes) if c != WHOLE and config[c]}

    def _island(self, eqn: Equation, operands, layouts, homes, split) -> list[Any]:
        rule, tensors = self.graph.rules[eqn.index], self.program.tensors
        partial = bool(homes[0].partial)
        traced = [i for i, t in enumerate(eqn.operands) if tensors[t].kind != "literal"]
        out_shapes = [
            home.local_shape(tensors[t].shape, self.executor.axes)
            for t, home in zip(eqn.results, homes, strict=True)
        ]

        def body(*pieces: Any) -> list[Any]:
            local = list(operands)
            for i, piece in zip(traced, pieces, strict=True):
                local[i] = piece
            results = run_local(
                eqn, rule, lambda params, xs: self._bind(eqn, xs, params), local, split, out_shapes
            )
            return [r[None] for r in results] if partial else results

        return self.executor.manual(body, [operands[i] for i in traced], [layouts[i] for i in traced], homes)

    def _bind(
        self, eqn: Equation, operands: Sequence[Any], params: Mapping[str, Any] | None = None
    ) -> list[Any]:
        params = dict(eqn.params if params is None else params)
        return _compat.bind_like(eqn.origin, eqn.primitive, params, operands, eqn.name_stack)

    def _required(self, eqn: Equation, group: int, t: int) -> Layout:
        layout = layout_of(self.graph, self.replay.configurations, group, t, produced=False)
        home = self.replay.home(t)
        if home.partial and (t, layout) not in self.replay._by_read:
            return home  # a view inside a contraction group hands the partial sum on
        return layout

    def _read_replicated(self, t: int, equation: int) -> Any:
        if self.graph.values.free[t] or self.graph.grouping.tensor_group[t] == UNGROUPED:
            return self.env[t]
        return self._read(t, Layout.replicated(len(self.program.tensors[t].shape)), equation, None)

    def _read(self, t: int, layout: Layout, equation: int, tie: Any) -> Any:
        """Tensor ``t`` in ``layout``: as it is, from a copy already made, or through its transfer."""
        tensor = self.program.tensors[t]
        if tensor.kind == "literal":
            return self.env[t]
        if self.graph.grouping.tensor_group[t] == UNGROUPED or self.graph.values.free[t]:
            return self.executor.constrain(self.env[t], layout) if tensor.shape else self.env[t]
        if self.replay.home(t) == layout:
            return self.env[t]
        transfer = self.replay._by_read[t, layout]
        span = next(i for i, s in enumerate(transfer.spans) if s.first <= equation <= s.last)
        key = (t, layout, span)
        if key not in self.copies:
            self.copies[key] = self._transfer(self.env[t], transfer, tie)
        return self.copies[key]

    def _transfer(self, value: Any, transfer: Transfer, tie: Any) -> Any:
        if transfer.repeated and tie is not None:
            value, _ = lax.optimization_barrier((value, tie))
        for step in transfer.path.steps:
            value = self.executor.apply(value, step)
        return value

    def _tie(self, eqn: Equation, layouts: Sequence[Layout]) -> Any:
        """The value that a repeated copy waits for: the largest operand of the equation that is there already."""
        ready = [
            t
            for t, layout in zip(eqn.operands, layouts, strict=True)
            if self.program.tensors[t].shape
            and self.program.tensors[t].kind == "computed"
            and t not in self.replay._late
            and not self.graph.values.free[t]
        ]
        if not ready:
            return None
        t = max(ready, key=lambda t: self.program.tensors[t].num_elements)
        return self.env[t]
