"""Bytes of tensors that a plan holds once more in a transposed layout (`jaxplan.xla.rules.gpu.transposed`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from jaxplan.core._interner import Remembered
from jaxplan.cost._model import CostModel
from jaxplan.cost._reads import sharding_of
from jaxplan.cost._transfers import Transfer, parameter_gathers
from jaxplan.ir import UNGROUPED, Configuration
from jaxplan.xla.rules.gpu.transposed import OrderedCopy


class OrderedCopies:
    """Of the plans of one model."""

    def __init__(self, model: CostModel) -> None:
        self._graph, self._axes, self._turning = model.graph, model.topology.axes, model.buffers.turning_point
        self._ordered = model.buffers.found.of(OrderedCopy)
        self._known: dict[tuple[int, ...], int] = {}
        self._gathers = Remembered[bool]()
        self._asked = frozenset[int]().union(*[copy.if_scattered for copy in self._ordered])
        self._scatters = Remembered[bool]()

    def copies(
        self, assignment: Sequence[int], chosen: Sequence[Configuration], transfers: Sequence[Transfer]
    ) -> Iterator[tuple[int, int, int, int]]:
        """(tensor, first, last equation, bytes) of each; those of a combination of configurations are remembered."""
        keeps = bool(self._ordered) and self._keeps_gathers(transfers)
        scattered = self._scattered(transfers)
        groups = self._graph.grouping.tensor_group
        for number, copy in enumerate(self._ordered):
            homes = [groups[t] for t in copy.tensors]
            is_met = not copy.if_scattered.isdisjoint(scattered)
            key = number, keeps, is_met, *[assignment[v] if v != UNGROUPED else 0 for v in homes]
            if key not in self._known:
                self._known[key] = 0
                if copy.is_there(lambda t: self._shape(t, chosen), keeps, scattered):
                    self._known[key] = math.prod(self._shape(copy.tensor, chosen)) * copy.itemsize
            if self._known[key]:
                yield copy.tensor, copy.first, copy.last, self._known[key]

    def _scattered(self, transfers: Sequence[Transfer]) -> frozenset[int]:
        """Of the tensors that copies ask for, those that are reduce-scattered."""
        if not self._asked:
            return frozenset()
        found = itertools.compress(transfers, self._scatters.of_all(transfers, self._is_scatter))
        return frozenset(transfer.tensor for transfer in found)

    def _is_scatter(self, transfer: Transfer) -> bool:
        """Whether one of the tensors that copies ask for is reduce-scattered."""
        is_asked = transfer.tensor in self._asked
        return is_asked and any(kind == "reduce-scatter" for kind, _, _ in transfer.collectives)

    def _keeps_gathers(self, transfers: Sequence[Transfer]) -> bool:
        """Whether most parameters that are gathered for the forward pass are kept for the backward pass."""
        gathers = itertools.compress(transfers, self._gathers.of_all(transfers, lambda t: self._is_gather(t)))
        kept = [not gather.repeated for gather in gathers]
        return sum(kept) > len(kept) / 2

    def _is_gather(self, transfer: Transfer) -> bool:
        """Whether a parameter is gathered for the forward pass."""
        return bool(parameter_gathers(self._graph, [transfer])) and transfer.spans[0].first < self._turning

    def _shape(self, t: int, chosen: Sequence[Configuration]) -> tuple[int, ...]:
        sharding = sharding_of(self._graph, chosen, self._graph.grouping.tensor_group[t], t, produced=True)
        return sharding.local_shape(self._graph.program.tensors[t].shape, self._axes)
