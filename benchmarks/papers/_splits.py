"""How the contractions of a plan are split: over the batch, other rows, input and output channels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxplan.ir import StepGraph
from jaxplan.plans._plan import Plan
from jaxplan.plans._summary import split_kind

CONTRACTIONS = ("dot_general", "conv_general_dilated")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractionSplit:
    """One contraction of the forward pass.

    Attributes:
      shape: of its second operand, the weight of a dense layer or convolution.
      parts: devices that share each of ``batch``, ``rows`` (other dimensions of the first operand and the result),
        ``in`` (summed), ``out`` (of the second operand and the result) and ``heads`` (of all three).
    """

    shape: tuple[int, ...]
    parts: dict[str, int]

    @property
    def text(self) -> str:
        """Such as ``batch 4 x out 8``; ``whole`` where nothing is split."""
        return " x ".join(f"{name} {n}" for name, n in self.parts.items()) or "whole"


def contraction_splits(plan: Plan, graph: StepGraph) -> list[ContractionSplit]:
    """The first contraction of every group that has one, in program order."""
    found = []
    for group, space, config in zip(graph.grouping.groups, graph.spaces, plan.configurations, strict=True):
        equations = [graph.program.equations[e] for e in group.equations]
        first = next((eqn for eqn in equations if eqn.name in CONTRACTIONS), None)
        if first is None:
            continue
        one, other, *_ = first.operands
        held = [{c for dim in space.tensor_dims[t] for c in dim} for t in (one, other, first.results[0])]
        parts: dict[str, int] = {}
        for c, axes in enumerate(config):
            if axes:
                name = _role(c, held, graph, space.classes[c].named_dimension)
                parts[name] = parts.get(name, 1) * math.prod(plan.topology.axes[a].size for a in axes)
        found.append(ContractionSplit(shape=graph.program.tensors[other].shape, parts=parts))
    return found


def _role(c: int, held: list[set[int]], graph: StepGraph, dimension: int) -> str:
    """The name of a class: the batch, or by the operands and the result that have it."""
    if dimension >= 0 and split_kind(graph, dimension) == "data":
        return "batch"
    in_first, in_second, in_result = (c in of for of in held)
    if in_first and in_second:
        return "heads" if in_result else "in"
    return "out" if in_second else "rows"


def stored_splits(plan: Plan, graph: StepGraph) -> dict[str, tuple[int, ...]]:
    """Devices that share each dimension of every parameter, by its path."""
    axes = plan.topology.axes
    found = {}
    for path, sharding in zip(plan.in_paths, plan.in_layouts, strict=True):
        found[path] = tuple(math.prod(axes[a].size for a in dim) for dim in sharding.dims)
    return found
