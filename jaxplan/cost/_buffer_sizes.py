"""Bytes of every buffer under every configuration of its group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.cost._model import CostModel
from jaxplan.cost._splits import split_counts
from jaxplan.cost._tiles import local_bytes


class BufferSizes:
    """Bytes of a group's buffers on one device, under each of its configurations; equal groups share the table, as do
    the models of one step on one topology."""

    def __init__(self, model: CostModel) -> None:
        self._model = model
        machine = model.topology, model.buffers.target
        self._splits, self._tables, self._kinds = model.graph.derive("bytes", machine, lambda: (Memo(), Memo(), Memo()))

    def __call__(self, v: int, members: Sequence[int]) -> np.ndarray:
        """(members, K) bytes."""
        number = self._splits.number(self._model.configurations[v])
        key = number, self._kind(v, members)
        if key not in self._tables:
            if number not in self._splits:
                self._splits[number] = split_counts(self._model.configurations[v], self._model.topology)
            splits, graph = self._splits[number], self._model.graph
            sizes = [local_bytes(graph, self._model.buffers, graph.spaces[v], splits, t) for t in members]
            self._tables[key] = np.array(sizes).reshape(len(members), len(splits))
        return self._tables[key]

    def _kind(self, v: int, members: Sequence[int]) -> int:
        """A number for everything that decides their bytes besides configurations, equal for equal groups."""
        buffers, kinds = self._model.buffers, self._kinds
        key = (kinds.number(buffers), v, *members)
        if key not in kinds:
            dims, tensors = self._model.graph.spaces[v].tensor_dims, self._model.graph.program.tensors
            is_shaped = [buffers.is_tiled or buffers.storage_of(t).matrices is not None for t in members]
            what = [(buffers.held_as(t), tensors[t].shape if s else ()) for t, s in zip(members, is_shaped)]
            kind = ("kind", *zip(what, map(dims.get, members)))
            kinds[key] = kinds.setdefault(kind, len(kinds))
        return kinds[key]
