"""Sums that a library makes while it multiplies."""

from __future__ import annotations

from typing import NamedTuple

from jaxplan.cost._fusion import is_outer_product
from jaxplan.ir import StepGraph
from jaxplan.mesh import ChipSpec


class Accumulation(NamedTuple):
    """A sum (an equation) to which a product is added: the tensors of the product and of the other summand."""

    equation: int
    product: int
    other: int


def accumulations(graph: StepGraph, chip: ChipSpec) -> list[Accumulation]:
    """Sums of which one summand is a matrix product that nothing else reads, C = A B + C.

    XLA makes one library call of them, whose result is written over C, or over a copy where C is read later: the
    product has no buffer of its own. Compiled GPU programs were seen to add up input gradients and residual streams so.
    https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/gemm_rewriter.cc (``FuseMatrixBiasAdd``)
    """
    if not chip.is_gpu or chip.fuses_products:
        return []
    program, values, found = graph.program, graph.values, []
    for eqn in program.equations:
        summands = set(eqn.operands)
        if eqn.name not in ("add", "add_any") or len(summands) < 2 or any(values.free[t] for t in summands):
            continue
        types = [(program.tensors[t].shape, program.tensors[t].dtype) for t in (*summands, *eqn.results)]
        products = [t for t in summands if _is_only_for(graph, t, eqn.index)]
        if products and len(set(types)) == 1:
            product = max(products, key=values.producer.__getitem__)
            found.append(Accumulation(eqn.index, product, (summands - {product}).pop()))
    return found


def _is_only_for(graph: StepGraph, t: int, equation: int) -> bool:
    """Whether a tensor is a matrix product that one equation of the same body alone reads."""
    program, made = graph.program, graph.values.producer[t]
    return (
        made >= 0
        and graph.rules[made].family == "contraction"
        and not is_outer_product(graph, made)
        and graph.values.consumers[t] == (equation,)
        and program.equations[made].region == program.equations[equation].region
        and t not in program.outputs
    )
