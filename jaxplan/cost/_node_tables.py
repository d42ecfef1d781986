"""Seconds, FLOPs and bytes of every group under each of its configurations."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.cost._compute import by_equation, compute_seconds, compute_terms, local_flops, summed
from jaxplan.cost._inner import communicating, inner_collectives
from jaxplan.cost._passes import is_rewriting
from jaxplan.cost._splits import split_counts
from jaxplan.cost._tiles import local_bytes
from jaxplan.cost._user_body import body_cost
from jaxplan.cost._work import CompiledWork
from jaxplan.ir import Configuration, StepGraph
from jaxplan.mesh import Topology
from jaxplan.xla._buffers import Buffers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Columns:
    """Prices of a group under the configurations that were asked for until now, a row for each.

    Attributes:
      row: configuration -> its row.
      seconds, flops, num_bytes: (K,) of the group.
      of_equations: (K, equations) seconds.
    """

    row: dict[Configuration, int]
    seconds: np.ndarray
    flops: np.ndarray
    num_bytes: np.ndarray
    of_equations: np.ndarray

    def with_more(self, more: _Columns) -> _Columns:
        """The same with the rows of other configurations behind."""
        return _Columns(
            row=self.row | {config: len(self.row) + k for config, k in more.row.items()},
            seconds=np.concatenate([self.seconds, more.seconds]),
            flops=np.concatenate([self.flops, more.flops]),
            num_bytes=np.concatenate([self.num_bytes, more.num_bytes]),
            of_equations=np.concatenate([self.of_equations, more.of_equations]),
        )


class NodeTables:
    """Of the groups of one step on one topology; equal groups share their tables, in ``memo``."""

    def __init__(self, graph: StepGraph, topology: Topology, buffers: Buffers, memo: Memo) -> None:
        self._graph, self._topology, self._buffers, self._memo = graph, topology, buffers, memo
        self._work = CompiledWork.of(buffers.found)
        self._structures: dict[int, tuple] = {}

    def of(self, v: int, configs: tuple[Configuration, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute seconds, local FLOPs and bytes per configuration; equal arrays become one object."""
        key = self._node_key(v, configs)
        if key not in self._memo:
            columns, rows = self._columns(v, configs)
            self._memo[key] = columns.seconds[rows], columns.flops[rows], columns.num_bytes[rows]
        return self._memo[key]

    def by_equation(self, configurations: Sequence[tuple[Configuration, ...]], v: int) -> np.ndarray:
        """Compute seconds of each equation of a group in order, per configuration: shape (K, equations)."""
        key = ("equations", self._node_key(v, configurations[v]))
        if key not in self._memo:
            columns, rows = self._columns(v, configurations[v])
            self._memo[key] = columns.of_equations[rows]
        return self._memo[key]

    def _columns(self, v: int, configs: Sequence[Configuration]) -> tuple[_Columns, list[int]]:
        """Everything priced of a group or an equal one, and the rows of some configurations; those that are new are
        priced."""
        key = ("priced", self._memo.number(self._structure_of(v)))
        known: _Columns | None = self._memo.get(key)
        new = [config for config in dict.fromkeys(configs) if known is None or config not in known.row]
        if new:
            more = self._priced(v, tuple(new))
            known = self._memo[key] = more if known is None else known.with_more(more)
        assert known is not None
        return known, [known.row[config] for config in configs]

    def _priced(self, v: int, configs: tuple[Configuration, ...]) -> _Columns:
        group, space = self._graph.grouping.groups[v], self._graph.spaces[v]
        splits = split_counts(configs, self._topology)
        terms = list(compute_terms(self._graph, group, space, splits, self._buffers, self._topology))
        seconds, none = by_equation(terms, self._topology), np.zeros(len(configs))
        return _Columns(
            row={config: k for k, config in enumerate(configs)},
            seconds=summed(terms, splits, self._topology),
            flops=local_flops(self._graph, group, space, splits, self._work),
            num_bytes=self._memory(v, splits),
            of_equations=np.array([seconds.get(e, none) for e in group.equations]).reshape(-1, len(configs)).T,
        )

    def operator_seconds(self, v: int, configs: tuple[Configuration, ...]) -> np.ndarray:
        """Seconds of the collectives inside of a group's operators, per configuration (`inner_collectives`)."""
        key = ("operators", self._node_key(v, configs))
        if key not in self._memo:
            self._memo[key] = np.array(self._inner_seconds(v, configs))
        return self._memo[key]

    def _inner_seconds(self, v: int, configs: Sequence[Configuration]) -> list[float]:
        among = communicating(self._graph, v)
        of = self._graph, self._topology, v
        return [
            sum(c.visible_seconds(self._topology) for c in inner_collectives(*of, config, self._buffers, among=among))
            if among
            else 0
            for config in configs
        ]

    def own_costs(self, v: int, configs: tuple[Configuration, ...]) -> list[tuple[float, float]]:
        """Seconds and bytes of a group alone under each of some configurations."""
        group, space = self._graph.grouping.groups[v], self._graph.spaces[v]
        splits = split_counts(configs, self._topology)
        seconds = compute_seconds(self._graph, group, space, splits, self._buffers, self._topology).tolist()
        seconds = [own + inner for own, inner in zip(seconds, self._inner_seconds(v, configs), strict=True)]
        return list(zip(seconds, self._memory(v, splits).astype(float).tolist(), strict=True))

    def _memory(self, v: int, splits: np.ndarray) -> np.ndarray:
        """Bytes of a group's inputs and residuals, shape (K,)."""
        memory = np.zeros(len(splits))
        for t in (*self._graph.grouping.groups[v].inputs, *self._saved_by[v]):
            memory += local_bytes(self._graph, self._buffers, self._graph.spaces[v], splits, t)
        return np.ceil(memory).astype(np.int64)

    @functools.cached_property
    def _saved_by(self) -> dict[int, list[int]]:
        """Group -> its results that are residuals."""
        found: dict[int, list[int]] = defaultdict(list)
        for t in self._buffers.saved:
            found[self._graph.grouping.tensor_group[t]].append(t)
        return found

    @functools.cached_property
    def _saved(self) -> frozenset[int]:
        return frozenset(self._buffers.saved)

    def _node_key(self, v: int, configs: tuple[Configuration, ...]):
        """Structure and configurations of a group; equal layers have equal keys."""
        return ("node", *self._memo.numbers((configs, self._structure_of(v))))

    def _structure_of(self, v: int):
        """`_structure`, one object for equal groups."""
        if v not in self._structures:
            structure = self._structure(v)
            self._structures[v] = self._memo.setdefault(structure, structure)
        return self._structures[v]

    def _structure(self, v: int):
        """Rules, dtypes, classes and buffers of a group in order."""
        group, space = self._graph.grouping.groups[v], self._graph.spaces[v]
        tensors, program = self._graph.program.tensors, self._graph.program
        local = {t: i for i, t in enumerate(space.tensor_dims)}

        def describe(t: int):
            known = self._buffers.materialised[t], t in self._saved, self._buffers.held_as(t)
            tensor = tensors[t]
            return (
                local.get(t, -1),
                tensor.shape,
                tensor.itemsize,
                tensor.trips,
                space.tensor_dims.get(t),
                known,
            )

        equations = tuple(
            (
                program.equations[e].name,
                program.equations[e].phase,
                space.factor_class[e],
                body_cost(program.equations[e]),
                self._graph.counts[e],
                is_rewriting(self._graph, program.equations[e]),
                self._graph.rules[e].windows,
                tuple(describe(t) for t in (*program.equations[e].operands, *program.equations[e].results)),
            )
            for e in group.equations
        )
        return ("structure", equations, tuple(describe(t) for t in group.inputs))
