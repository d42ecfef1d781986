"""Operands of convolutions extended by the edges of neighbours' blocks, on GPUs: an array of its own.

Libraries read whole arrays, so compiled programs put blocks and edges together before a convolution. An operand
without other readers is written in this form only, and saved so for the gradient of the kernel: 9 rows of 28 pixels
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from jaxplan.cost._inner import Extended, extended_operands
from jaxplan.cost._model import CostModel
from jaxplan.cost._padded_images import cut_dims
from jaxplan.ir import Configuration, StepGraph
from jaxplan.xla._plan_effects import ExtendImages


class ExtendedImages:
    """Of the plans of one model.

    Args:
      read_end: equation -> when it is done, with all that is computed in the same pass.
    """

    def __init__(self, model: CostModel, read_end: Sequence[int]) -> None:
        self._model, self._read_end = model, read_end
        graph = model.graph
        extends = model.buffers.found.has(ExtendImages)
        self._groups = graph.derive("convolved", None, lambda: _convolved(graph)) if extends else []
        self._known: dict[tuple[int, int], tuple[Extended, ...]] = {}
        self._padded = [(b.readers, b.image) for b in model.buffers.bordered if b.image.is_whole]

    def copies(self, assignment: Sequence[int], chosen: Sequence[Configuration]) -> Iterator[tuple[int, int, int]]:
        """(first, last equation, bytes) of each; only the edges, for values that have no other form.

        None where all of its readers read one padded copy of it (`PaddedImages`): one fusion writes that.
        """
        graph, topology = self._model.graph, self._model.topology
        readers: dict[tuple[int, tuple[int, ...], tuple[int, ...]], list[int]] = defaultdict(list)
        for v in self._groups:
            key = v, assignment[v]
            if key not in self._known:
                self._known[key] = tuple(extended_operands(graph, topology, v, chosen[v], "convolution"))
            for read in self._known[key]:
                readers[read.tensor, read.shape, read.own].append(read.equation)
        for (t, shape, own), equations in readers.items():
            cut = cut_dims(own, graph.program.tensors[t].shape)
            if any(set(equations) <= set(read) and image.num_elements(shape, cut) for read, image in self._padded):
                continue
            is_beside = graph.values.producer[t] < 0 or set(graph.values.consumers[t]).difference(equations)
            elements = math.prod(shape) - (0 if is_beside else math.prod(own))
            last = max(self._read_end[e] for e in equations)
            yield min(equations), last, elements * graph.program.tensors[t].itemsize


def _convolved(graph: StepGraph) -> list[int]:
    """Groups with convolutions."""
    groups = graph.grouping.groups
    return [of.index for of in groups if any(graph.rules[e].family == "convolution" for e in of.equations)]
