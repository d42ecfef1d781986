"""Operands that compilers which fuse into matrix products write nevertheless."""

from __future__ import annotations

from collections.abc import Iterable

from jaxplan.cost._product_outputs import computed_of
from jaxplan.ir import StepGraph
from jaxplan.mesh import ChipSpec


def batches_of_rows(graph: StepGraph, chip: ChipSpec, wide: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Operands that products of the forward pass read as batches of matrices whose rows are several dimensions (tokens
    of experts), and their batch dimensions.

    Compiled TPU programs wrote such operands, beside what they are computed from; but not attention weights that are
    computed of ``wide``, scores in float32 (`widened_outputs`).
    """
    if not chip.fuses_products:
        return {}
    of_wide = {u for t in wide for u in computed_of(graph, t)}
    found = {}
    for eqn in graph.program.equations:
        if eqn.name == "dot_general" and eqn.phase != "backward":
            for side, t in enumerate(eqn.operands):
                contracted, batch = (dims[side] for dims in eqn.params["dimension_numbers"])
                sizes = enumerate(graph.program.tensors[t].shape)
                rows = [d for d, size in sizes if size > 1 and d not in (*contracted, *batch)]
                if len(rows) > 1 and batch and t not in of_wide:
                    found[t] = tuple(batch)
    return found
