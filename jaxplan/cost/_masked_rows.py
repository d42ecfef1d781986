"""Bytes of the masked copies of rows that ragged dots of a plan read (`jaxplan.xla.rules.gpu.ragged`)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from jaxplan.cost._model import CostModel
from jaxplan.cost._reads import sharding_of
from jaxplan.ir import Configuration
from jaxplan.xla.rules.gpu.ragged import MaskedRows


class MaskedCopies:
    """Of the plans of one model."""

    def __init__(self, model: CostModel) -> None:
        self._model, self._found = model, model.buffers.found.of(MaskedRows)

    def of(self, chosen: Sequence[Configuration]) -> Iterator[tuple[int, int, int]]:
        """(first, last equation, bytes) of each copy."""
        for masked in self._found:
            size, is_whole = self._num_bytes(masked, chosen)
            if is_whole:
                yield masked.first, max(end for _, _, end in masked.reads), size
            else:  # each dot rolls the rows of its own groups to the front
                yield from ((equation, end, size) for equation, _, end in masked.reads)

    def read_by_gradients(self, chosen: Sequence[Configuration]) -> dict[int, int]:
        """Ragged dot that makes a gradient -> bytes of the copies that it reads."""
        found = defaultdict[int, int](int)
        for masked in self._found:
            if masked.is_result:
                for equation, _, _ in masked.reads:
                    found[equation] += self._num_bytes(masked, chosen)[0]
        return dict(found)

    def _num_bytes(self, masked: MaskedRows, chosen: Sequence[Configuration]) -> tuple[int, bool]:
        """Of one copy on one device, and whether that has all groups."""
        graph, axes = self._model.graph, self._model.topology.axes
        tensors, (equation, operand, _), (t, dim) = graph.program.tensors, masked.reads[0], masked.groups
        group = graph.grouping.equation_group[equation]
        rows = sharding_of(graph, chosen, group, operand, produced=False)
        of_groups = sharding_of(graph, chosen, group, t, produced=masked.is_result)
        num_groups = of_groups.local_shape(tensors[t].shape, axes)[dim]
        local = math.prod(rows.local_shape(tensors[operand].shape, axes))
        return num_groups * local * tensors[operand].itemsize, num_groups == tensors[t].shape[dim]
