"""Bytes of the masked copies of rows that ragged dots of a plan read (`jaxplan.xla.rules.gpu.ragged`)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from jaxplan.cost._model import CostModel
from jaxplan.cost._reads import sharding_of
from jaxplan.ir import Configuration
from jaxplan.xla.rules.gpu.ragged import MaskedRead, MaskedRows


class MaskedCopies:
    """Of the plans of one model."""

    def __init__(self, model: CostModel) -> None:
        self._model, self._found = model, model.buffers.found.of(MaskedRows)

    def of(self, chosen: Sequence[Configuration]) -> Iterator[tuple[int, int, int]]:
        """(first, last equation, bytes) of each copy; of a device's only group all orders are one."""
        for masked in self._found:
            copies: dict[bool, tuple[int, int]] = {}
            for read in masked.reads:
                size, num_groups = self._num_bytes(read, chosen)
                order = read.is_gradient and num_groups > 1
                end, largest = copies.get(order, (0, 0))
                copies[order] = max(end, read.end), max(largest, size)
            yield from ((masked.first, end, size) for end, size in copies.values())

    def read_by_gradients(self, chosen: Sequence[Configuration]) -> dict[int, int]:
        """Ragged dot that makes a gradient -> bytes of the copies that it reads."""
        found = defaultdict[int, int](int)
        for read in (read for masked in self._found for read in masked.reads if read.is_gradient):
            found[read.equation] += self._num_bytes(read, chosen)[0]
        return dict(found)

    def _num_bytes(self, read: MaskedRead, chosen: Sequence[Configuration]) -> tuple[int, int]:
        """Of one copy on one device, and the groups that it has."""
        graph, axes = self._model.graph, self._model.topology.axes
        tensors, group, (t, dim) = graph.program.tensors, graph.grouping.equation_group[read.equation], read.groups
        rows = sharding_of(graph, chosen, group, read.tensor, produced=False)
        of_groups = sharding_of(graph, chosen, group, t, produced=read.is_gradient)
        num_groups = of_groups.local_shape(tensors[t].shape, axes)[dim]
        local = math.prod(rows.local_shape(tensors[read.tensor].shape, axes))
        return num_groups * local * tensors[read.tensor].itemsize, num_groups
