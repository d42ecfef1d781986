"""Which operators run inside the kernels of others, and what they compute again there."""

from __future__ import annotations

import math

from jaxplan.ir import CONTRACTION_FAMILIES, STORED_KINDS, UNGROUPED, StepGraph
from jaxplan.xla._target import Target
from jaxplan.xla.rules.both.fusion import OUTER_PRODUCTS, REDUCTIONS_READ_FUSED
from jaxplan.xla.rules.both.in_place import LARGE_PARAMETER_BYTES
from jaxplan.xla.rules.gpu.functions import (
    ERFC_ARGUMENTS,
    ERFC_OF_CONVOLUTIONS,
    SAVED_FUNCTIONS,
    SAVED_FUNCTIONS_OF_16_BITS,
)
from jaxplan.xla.rules.gpu.fusion import DISJOINT_WINDOWS_FUSED, LOOK_UPS_FUSED, SCATTER_UPDATES_FUSED
from jaxplan.xla.rules.gpu.pooling import is_disjoint
from jaxplan.xla.rules.tpu.fusion import DOTS_READ_FUSED, INTERLEAVED, REARRANGED
from jaxplan.xla.rules.tpu.fusion import SAVED_FUNCTIONS as SAVED_ON_TPU
from jaxplan.xla.rules.tpu.rearranged import is_rearranged
from jaxplan.xla.rules.tpu.slices import pads_between

FUSIBLE_FAMILIES = frozenset({"elementwise", "shape", "source", "rng"})
NOT_RECOMPUTED = frozenset({"tanh", "erfc", "erf_inv", "pow", "digamma", "lgamma"})
"""Functions that programs compiled for GPUs save, of perceptrons with each of them between their products (``tanh`` and
``erfc`` in GELU); ``exp`` of attention and loss was seen recomputed, and ``erf``, ``tan``, ``cbrt`` there."""
NOT_RECOMPUTED_IN_16_BITS = frozenset({"sin", "cos", "atan", "atan2", "expm1"})
"""Those that are saved as well where element-wise arithmetic is of 16 bits."""
NOT_RECOMPUTED_ON_TPU = frozenset({"erf", "erf_inv", "sin", "cos", "lgamma", "digamma"})
"""Those that programs compiled for v5e save, of perceptrons with each of them between their products; not saved there
are ``tanh``, ``tan``, ``atan2``, ``pow`` and ``cbrt``, nor ``erfc`` of GELU but for a bit (`costly_images`)."""


def runs_inside_readers(graph: StepGraph, target: Target, equation: int) -> bool:
    """Whether an equation has no kernel of its own: each of its readers computes what it needs of the result.

    So do look-ups on GPUs: compiled message passing has no buffer of the size of the edges. Rows of large parameters
    are there before the next such table is, the lowering asks for it. A product that sums over nothing is a
    multiplication to the compiler.
    """
    family = graph.rules[equation].family
    if family == "gather":
        table = graph.program.equations[equation].operands[0]
        return LOOK_UPS_FUSED.applies_to(target) and not _is_large_parameter(graph, table)
    if INTERLEAVED.applies_to(target) and pads_between(graph.program.equations[equation]):
        return False
    if REARRANGED.applies_to(target) and is_rearranged(graph, equation):
        return False
    is_multiplication = OUTER_PRODUCTS.applies_to(target) and is_outer_product(graph, equation)
    return family in FUSIBLE_FAMILIES or is_multiplication


def _is_large_parameter(graph: StepGraph, t: int) -> bool:
    group = graph.grouping.tensor_group[t]
    is_stored = group != UNGROUPED and graph.grouping.groups[group].kind in STORED_KINDS
    return is_stored and graph.program.tensors[t].num_bytes >= LARGE_PARAMETER_BYTES


def is_outer_product(graph: StepGraph, equation: int) -> bool:
    """Whether an equation is a matrix product whose sums have one summand."""
    eqn = graph.program.equations[equation]
    if eqn.name != "dot_general":
        return False
    (contracting, _), _ = eqn.params["dimension_numbers"]
    shape = graph.program.tensors[eqn.operands[0]].shape
    return math.prod(shape[axis] for axis in contracting) == 1


def fuses_into(graph: StepGraph, target: Target, equation: int, t: int) -> bool:
    """Whether an operand is computed inside the kernel that reads it.

    A reduction does, a reshape that is written (`is_rearranged`), on GPUs a scatter (but for what it writes over) and
    windows that do not overlap, and a product of no library.
    """
    eqn, family = graph.program.equations[equation], graph.rules[equation].family
    if t not in eqn.operands:
        return False
    if family == "scatter":
        return SCATTER_UPDATES_FUSED.applies_to(target) and t != eqn.operands[0]
    if family == "window":
        return DISJOINT_WINDOWS_FUSED.applies_to(target) and is_disjoint(eqn)
    if eqn.name == "reshape":
        return True
    if family == "reduction":
        return REDUCTIONS_READ_FUSED.applies_to(target)
    return family in CONTRACTION_FAMILIES and DOTS_READ_FUSED.applies_to(target)


def is_recomputed(graph: StepGraph, target: Target, equation: int) -> bool:
    """Whether the fusions of the backward pass compute an equation again.

    On GPUs ``erfc`` becomes many operators that read its argument, and what makes that is saved, too. Not so where it
    is computed of a convolution's result; where arithmetic is wide, that takes as much, because it is float32.
    """
    equations = graph.program.equations
    eqn = equations[equation]
    is_argument = any(equations[c].name == "erfc" for t in eqn.results for c in graph.values.consumers[t])
    if ERFC_ARGUMENTS.applies_to(target) and is_argument:
        return ERFC_OF_CONVOLUTIONS.applies_to(target) and _is_of_convolution(graph, eqn.results[0])
    return eqn.name not in _saved_functions(target) and runs_inside_readers(graph, target, equation)


def _is_of_convolution(graph: StepGraph, t: int) -> bool:
    """Whether a value is computed element by element of what a convolution makes."""
    stack, size = [t], graph.program.tensors[t].num_elements
    while stack:
        made_by = graph.values.producer[stack.pop()]
        if made_by < 0:
            continue
        if graph.rules[made_by].family == "convolution":
            return True
        if graph.rules[made_by].family == "elementwise":
            operands = graph.program.equations[made_by].operands
            stack += [u for u in operands if graph.program.tensors[u].num_elements == size]
    return False


def _saved_functions(target: Target) -> frozenset[str]:
    saved = NOT_RECOMPUTED if SAVED_FUNCTIONS.applies_to(target) else frozenset()
    if SAVED_FUNCTIONS_OF_16_BITS.applies_to(target):
        saved |= NOT_RECOMPUTED_IN_16_BITS
    return saved | NOT_RECOMPUTED_ON_TPU if SAVED_ON_TPU.applies_to(target) else saved
