"""Which reads change their layout under one assignment after the other; equal reads are looked at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.cost._model import CostModel
from jaxplan.cost._reads import Read
from jaxplan.cost._transfers import ChangedRead, changed_reads
from jaxplan.ir import UNGROUPED, Configuration
from jaxplan.mesh import Sharding


class ChangedReads:
    """`changed_flows` of a model's assignments; for one read and pair of layouts it gives the same object each time."""

    def __init__(self, model: CostModel) -> None:
        self._model = model
        first = Memo()
        sizes = [len(configs) for configs in model.configurations]
        starts, widths, total = [], [], 0
        for read in model.reads:
            width = 1 if read.consumer == UNGROUPED else sizes[read.consumer]
            start = first.setdefault(self._structure(read, first), total)
            if start == total:
                total += width * (1 if read.producer == UNGROUPED else sizes[read.producer])
            starts.append(start)
            widths.append(width)
        self._starts, self._widths = np.array(starts, dtype=np.int64), np.array(widths, dtype=np.int64)
        # The last place stands for `UNGROUPED`, which is -1.
        self._producers = np.array([read.producer for read in model.reads], dtype=np.int64)
        self._consumers = np.array([read.consumer for read in model.reads], dtype=np.int64)
        self._shardings: dict[int, tuple[Sharding, Sharding] | None] = {}
        self._found: dict[tuple[int, int], ChangedRead] = {}

    def _structure(self, read: Read, memo: Memo) -> Hashable:
        """All that decides the layouts of a read's ends under their configurations."""
        graph = self._model.graph
        ends = []
        for v, produced in ((read.producer, True), (read.consumer, False)):
            if v == UNGROUPED:
                ends.append(None)
                continue
            space, configs = graph.spaces[v], self._model.configurations[v]
            partial = space.tensor_partial.get(read.tensor, ()) if produced else space.operand_partial
            ends.append((memo.number(configs), space.tensor_dims.get(read.tensor), partial))
        return *ends, read.is_output, len(graph.program.tensors[read.tensor].shape), read.producer == read.consumer

    def of(self, assignment: Sequence[int], chosen: Sequence[Configuration]) -> list[ChangedRead]:
        """The changed reads of an assignment; ``chosen`` are its configurations."""
        model, shardings = self._model, self._shardings
        places = np.array((*assignment, 0), dtype=np.int64)
        pairs = self._starts + places[self._producers] * self._widths + places[self._consumers]
        distinct, where, inverse = np.unique(pairs, return_index=True, return_inverse=True)
        for pair, index in zip(distinct.tolist(), where.tolist()):
            if pair not in shardings:
                found = changed_reads(model.graph, (model.reads[index],), chosen)
                shardings[pair] = found[0][1:] if found else None
        changes = np.array([shardings[pair] is not None for pair in distinct.tolist()], dtype=bool)
        indices = np.flatnonzero(changes[inverse])
        return [self._item(*key) for key in zip(indices.tolist(), pairs[indices].tolist())]

    def _item(self, index: int, pair: int) -> ChangedRead:
        item = self._found.get((index, pair))
        if item is None:
            shardings = self._shardings[pair]
            assert shardings is not None
            item = self._found[index, pair] = (index, *shardings)
        return item
