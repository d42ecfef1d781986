"""Which flows change their layout under one assignment after the other; equal flows are looked at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from jaxplan.cost._flows import Flow
from jaxplan.cost._model import CostModel
from jaxplan.cost._transfers import ChangedFlow, changed_flows
from jaxplan.ir import UNGROUPED, Configuration
from jaxplan.mesh import Layout


class ChangedFlows:
    """`changed_flows` of a model's assignments; for one flow and pair of layouts it gives the same object each time."""

    def __init__(self, model: CostModel) -> None:
        self._model = model
        first: dict[Hashable, int] = {}
        sizes = [len(configs) for configs in model.configurations]
        starts, widths, total = [], [], 0
        for flow in model.flows:
            width = 1 if flow.consumer == UNGROUPED else sizes[flow.consumer]
            start = first.setdefault(self._structure(flow), total)
            if start == total:
                total += width * (1 if flow.producer == UNGROUPED else sizes[flow.producer])
            starts.append(start)
            widths.append(width)
        self._starts, self._widths = np.array(starts, dtype=np.int64), np.array(widths, dtype=np.int64)
        # The last place stands for `UNGROUPED`, which is -1.
        self._producers = np.array([flow.producer for flow in model.flows], dtype=np.int64)
        self._consumers = np.array([flow.consumer for flow in model.flows], dtype=np.int64)
        self._layouts: dict[int, tuple[Layout, Layout] | None] = {}
        self._found: dict[tuple[int, int], ChangedFlow] = {}

    def _structure(self, flow: Flow) -> Hashable:
        """All that decides the layouts of a flow's ends under their configurations."""
        graph = self._model.graph
        ends = []
        for v, produced in ((flow.producer, True), (flow.consumer, False)):
            if v == UNGROUPED:
                ends.append(None)
                continue
            space, configs = graph.spaces[v], self._model.configurations[v]
            partial = space.tensor_partial.get(flow.tensor, ()) if produced else space.operand_partial
            ends.append((id(configs), space.tensor_dims.get(flow.tensor), partial))
        return *ends, flow.is_output, len(graph.program.tensors[flow.tensor].shape), flow.producer == flow.consumer

    def of(self, assignment: Sequence[int], chosen: Sequence[Configuration]) -> list[ChangedFlow]:
        """The changed flows of an assignment, whose configurations are ``chosen``."""
        model, layouts = self._model, self._layouts
        places = np.array((*assignment, 0), dtype=np.int64)
        pairs = self._starts + places[self._producers] * self._widths + places[self._consumers]
        distinct, where, inverse = np.unique(pairs, return_index=True, return_inverse=True)
        for pair, index in zip(distinct.tolist(), where.tolist()):
            if pair not in layouts:
                found = changed_flows(model.graph, (model.flows[index],), chosen)
                layouts[pair] = found[0][1:] if found else None
        changes = np.array([layouts[pair] is not None for pair in distinct.tolist()], dtype=bool)
        indices = np.flatnonzero(changes[inverse])
        return [self._item(*key) for key in zip(indices.tolist(), pairs[indices].tolist())]

    def _item(self, index: int, pair: int) -> ChangedFlow:
        item = self._found.get((index, pair))
        if item is None:
            layouts = self._layouts[pair]
            assert layouts is not None
            item = self._found[index, pair] = (index, *layouts)
        return item
