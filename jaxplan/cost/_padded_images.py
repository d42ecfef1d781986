"""Bytes of images with zeros around them that convolutions of a plan read (`jaxplan.xla.rules.gpu.borders`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxplan.cost._inner import extended_operands
from jaxplan.cost._model import CostModel
from jaxplan.cost._reads import sharding_of
from jaxplan.ir import UNGROUPED, Configuration


def cut_dims(local: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The dimensions of which a device has a part.

    >>> cut_dims((4, 32, 32, 3), (32, 32, 32, 3))
    [0]
    """
    return [d for d, (part, whole) in enumerate(zip(local, shape, strict=True)) if part != whole]


class PaddedImages:
    """Of the plans of one model; those of a configuration are remembered."""

    def __init__(self, model: CostModel) -> None:
        self._model, self._known = model, dict[tuple[int, int], int]()

    def copies(self, assignment: Sequence[int], chosen: Sequence[Configuration]) -> Iterator[tuple[int, int, int]]:
        """(first, last equation, bytes) of each.

        An image that is gathered for its convolution is padded as it arrives there, and blocks of one that is cut as
        they are extended by the edges of neighbours (`ExtendedImages`).
        """
        for number, (_, first, last, _) in enumerate(self._model.buffers.bordered):
            if size := self._num_bytes(number, assignment, chosen):
                yield first, last, size

    def read_last_by(self, assignment: Sequence[int], chosen: Sequence[Configuration]) -> dict[int, int]:
        """Equation -> bytes of the padded copy that it is the last to read."""
        bordered = enumerate(self._model.buffers.bordered)
        whole = {image.equation: number for number, (image, *_) in bordered if image.is_whole}
        return {equation: self._num_bytes(number, assignment, chosen) for equation, number in whole.items()}

    def _num_bytes(self, number: int, assignment: Sequence[int], chosen: Sequence[Configuration]) -> int:
        graph, axes = self._model.graph, self._model.topology.axes
        image = self._model.buffers.bordered[number].image
        group, tensor = graph.grouping.equation_group[image.equation], graph.program.tensors[image.tensor]
        key = number, assignment[group] if group != UNGROUPED else 0
        if key not in self._known:
            is_made = graph.values.producer[image.tensor] == image.equation
            sharding = sharding_of(graph, chosen, group, image.tensor, produced=is_made)
            shape = own = tuple(sharding.local_shape(tensor.shape, axes))
            if image.is_whole and own != tensor.shape:
                extended = extended_operands(graph, self._model.topology, group, chosen[group], "convolution")
                of = {(read.equation, read.tensor): read.shape for read in extended}
                shape = of.get((image.equation, image.tensor), own)
            self._known[key] = image.num_elements(shape, cut_dims(own, tensor.shape)) * tensor.itemsize
        return self._known[key]
