"""Sums that a library makes while it multiplies."""

from __future__ import annotations

from typing import NamedTuple

from jaxplan.cost._fusion import is_outer_product
from jaxplan.ir import Equation, StepGraph
from jaxplan.mesh import ChipSpec


class Accumulation(NamedTuple):
    """A sum (an equation) to which a product is added: the tensors of the product and of the other summand, and whether
    the sum is written over that."""

    equation: int
    product: int
    other: int
    in_place: bool


def accumulations(graph: StepGraph, chip: ChipSpec) -> list[Accumulation]:
    """Sums of which one summand is a matrix product that nothing else reads, C = A B + C.

    XLA makes one library call of them, whose result is written over C, or over a copy where C is read later: the
    product has no buffer of its own. Compiled GPU programs were seen to add up input gradients and residual streams so.
    Input gradients of convolutions of one pixel are added to others by the library as well, into a buffer of their own.
    https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/gemm_rewriter.cc (``FuseMatrixBiasAdd``) and
    https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/cudnn_fused_conv_rewriter.cc
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
            is_matrix = graph.rules[values.producer[product]].family == "contraction"
            found.append(Accumulation(eqn.index, product, (summands - {product}).pop(), is_matrix))
    return found


def _is_only_for(graph: StepGraph, t: int, equation: int) -> bool:
    """Whether a tensor is a product that a library may add, and one equation of the same body alone reads it."""
    program, made = graph.program, graph.values.producer[t]
    return (
        made >= 0
        and _adds_up(graph, program.equations[made])
        and graph.values.consumers[t] == (equation,)
        and program.equations[made].region == program.equations[equation].region
        and t not in program.outputs
    )


def _adds_up(graph: StepGraph, eqn: Equation) -> bool:
    if graph.rules[eqn.index].family == "contraction":
        return not is_outer_product(graph, eqn.index)
    if eqn.name != "conv_general_dilated" or eqn.phase != "backward":
        return False
    kernel = graph.program.tensors[eqn.operands[1]].shape
    steps = (*eqn.params["window_strides"], *eqn.params["lhs_dilation"])
    return all(n == 1 for n in (*steps, *(kernel[d] for d in eqn.params["dimension_numbers"].rhs_spec[2:])))
