"""Until when the predictions of a plan live for its loss (`jaxplan.xla.rules.gpu.losses`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jaxplan.cost._model import CostModel
from jaxplan.cost._reads import sharding_of
from jaxplan.cost._transfers import Transfer
from jaxplan.ir import Configuration
from jaxplan.xla._plan_effects import SumLoss


class SummedLosses:
    """Of the plans of one model."""

    def __init__(self, model: CostModel) -> None:
        self._model, self._losses = model, model.buffers.found.of(SumLoss)

    def of(
        self, chosen: Sequence[Configuration], transfers: Sequence[Transfer]
    ) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
        """The last equation at which a loss reads predictions, and the copies that transfers make of them.

        Returns:
          tensor -> equation, and (number of a transfer, of its execution) -> equation.
        """
        homes: dict[int, int] = {}
        copies: dict[tuple[int, int], int] = {}
        for loss in self._losses:
            at = self._summed_at(loss, chosen)
            found = dict(self._copies(loss, transfers))
            copies |= dict.fromkeys(found, at)
            homes |= dict.fromkeys(set(loss.predictions).difference(found.values()), at)
        return homes, copies

    def _copies(self, loss: SumLoss, transfers: Sequence[Transfer]) -> Iterator[tuple[tuple[int, int], int]]:
        for number, transfer in enumerate(transfers):
            if transfer.tensor in loss.predictions:
                for turn, span in enumerate(transfer.spans):
                    if not loss.readers.isdisjoint(span.readers):
                        yield (number, turn), transfer.tensor

    def _summed_at(self, loss: SumLoss, chosen: Sequence[Configuration]) -> int:
        graph, t = self._model.graph, loss.gradient
        made = graph.values.producer[t]
        if loss.after_bias is None:
            return made
        sharding = sharding_of(graph, chosen, graph.grouping.tensor_group[t], t, produced=True)
        *rows, _ = sharding.local_shape(graph.program.tensors[t].shape, self._model.topology.axes)
        return loss.after_bias if math.prod(rows) > loss.most_rows else made
