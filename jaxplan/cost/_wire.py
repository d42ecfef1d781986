"""In what width a tensor travels and its copies are held."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from jaxplan.ir import CONTRACTION_FAMILIES, StepGraph, Tensor
from jaxplan.mesh import Topology

_NARROW_BYTES = 2
_FULL_PRECISION = ("HIGH", "HIGHEST")


def wire_tensor(graph: StepGraph, topology: Topology, t: int, readers: Iterable[int]) -> Tensor:
    """A tensor as it travels to some of its readers (equations).

    Where products of float32 are made in bfloat16, the compiler rounds what products alone read before it is
    gathered: compiled TPU programs move and hold half of the bytes.
    """
    tensor = graph.program.tensors[t]
    if topology.chip.f32_matmul != "bf16" or tensor.dtype != np.float32:
        return tensor
    equations = [graph.program.equations[e] for e in readers if e < len(graph.program.equations)]
    rounded = equations and all(
        graph.rules[eqn.index].family in CONTRACTION_FAMILIES
        and not any(name in str(eqn.params.get("precision")) for name in _FULL_PRECISION)
        for eqn in equations
    )
    return dataclasses.replace(tensor, itemsize=_NARROW_BYTES) if rounded else tensor
