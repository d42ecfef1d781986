"""Bytes of images with zeros around them that convolutions of a plan read (`jaxplan.xla.rules.gpu.borders`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxplan.cost._model import CostModel
from jaxplan.cost._reads import sharding_of
from jaxplan.ir import UNGROUPED, Configuration


class PaddedImages:
    """Of the plans of one model; those of a configuration are remembered."""

    def __init__(self, model: CostModel) -> None:
        self._model, self._known = model, dict[tuple[int, int], int]()

    def copies(self, assignment: Sequence[int], chosen: Sequence[Configuration]) -> Iterator[tuple[int, int, int]]:
        """(first, last equation, bytes) of each.

        An image that is gathered for its convolution is padded as it arrives there. Blocks of images that are cut have
        a neighbour's edge in place of zeros (`ExtendedImages`).
        """
        graph, axes = self._model.graph, self._model.topology.axes
        for number, (image, first, last) in enumerate(self._model.buffers.bordered):
            group, tensor = graph.grouping.equation_group[image.equation], graph.program.tensors[image.tensor]
            key = number, assignment[group] if group != UNGROUPED else 0
            if key not in self._known:
                is_made = graph.values.producer[image.tensor] == image.equation
                sharding = sharding_of(graph, chosen, group, image.tensor, produced=is_made)
                shape = sharding.local_shape(tensor.shape, axes)
                is_cut = any(shape[d] != tensor.shape[d] for d, _ in (*image.widths, *image.holes))
                self._known[key] = 0 if is_cut else image.num_elements(shape) * tensor.itemsize
            if self._known[key]:
                yield first, last, self._known[key]
