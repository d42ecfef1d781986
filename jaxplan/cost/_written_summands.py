"""Operands of sums over columns, where the local shapes of a plan have them written (`Summand`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jaxplan.cost._model import CostModel
from jaxplan.cost._reads import required_sharding
from jaxplan.ir import UNGROUPED
from jaxplan.xla.rules.gpu.summands import Summand


class WrittenSummands:
    """Of the plans of one model; those of a configuration are remembered."""

    def __init__(self, model: CostModel) -> None:
        self.model, self._axes = model, model.topology.axes
        self._target, self._read_end = model.buffers.target, model.buffers.read_end
        self._summands = model.buffers.found.of(Summand)
        self._written: dict[tuple[int, int], tuple[tuple[int, int, int, int], ...]] = {}

    def of(self, assignment: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """(first, last equation, bytes) of materialised summands of sums over columns (`Summand`)."""
        done: set[int] = set()
        groups = self.model.graph.grouping.equation_group
        for number, summand in enumerate(self._summands):
            group = groups[summand.equation]
            key = (number, assignment[group] if group != UNGROUPED else 0)
            if key not in self._written:
                self._written[key] = tuple(self._made_for(summand, group, key[1]))
            for t, *span in self._written[key]:
                if t not in done:
                    done.add(t)
                    yield span[0], span[1], span[2]

    def _made_for(self, summand: Summand, group: int, k: int) -> Iterator[tuple[int, int, int, int]]:
        """(tensor, first, last equation, bytes) of buffers for one sum, in configuration ``k`` of its group."""
        graph = self.model.graph
        shape = graph.program.tensors[summand.tensor].shape
        if group != UNGROUPED:
            config = self.model.configurations[group][k]
            sharding = required_sharding(graph.spaces[group], config, summand.tensor, len(shape))
            shape = sharding.local_shape(shape, self._axes)
        if summand.is_written(shape, self._target):
            for t in (summand.tensor, *summand.narrow):
                size = math.prod(shape) * graph.program.tensors[t].itemsize
                last = max(self._read_end[c] for c in graph.values.consumers[t])
                yield t, graph.values.producer[summand.beside if t == summand.tensor else t], last, size
