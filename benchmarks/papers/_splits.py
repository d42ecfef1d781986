"""How the contractions of a plan are split: over the batch, other rows, input and output channels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxplan.ir import Configuration, StepGraph
from jaxplan.ir._program import Equation
from jaxplan.mesh import Topology
from jaxplan.plans._plan import Plan
from jaxplan.plans._summary import split_kind

CONTRACTIONS = ("dot_general", "conv_general_dilated")
Parts = Mapping[str, int]
"""Devices that share a dimension, by the names of `ContractionSplit`."""


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


def contraction_groups(graph: StepGraph) -> dict[int, Equation]:
    """The first contraction of every group that has one, in program order."""
    found = {}
    for group in graph.grouping.groups:
        equations = (graph.program.equations[e] for e in group.equations)
        first = next((eqn for eqn in equations if eqn.name in CONTRACTIONS), None)
        if first is not None:
            found[group.index] = first
    return found


def roles(graph: StepGraph, v: int, contraction: Equation) -> list[str]:
    """The name of each class of a contraction's group."""
    space = graph.spaces[v]
    one, other, *_ = contraction.operands
    held = [{c for dim in space.tensor_dims[t] for c in dim} for t in (one, other, contraction.results[0])]
    return [_role(c, held, graph, cls.named_dimension) for c, cls in enumerate(space.classes)]


def contraction_splits(plan: Plan, graph: StepGraph) -> list[ContractionSplit]:
    """How the contractions of a plan are split, in program order."""
    found = []
    for v, contraction in contraction_groups(graph).items():
        parts: dict[str, int] = {}
        for name, axes in zip(roles(graph, v, contraction), plan.configurations[v], strict=True):
            if axes:
                parts[name] = parts.get(name, 1) * math.prod(plan.topology.axes[a].size for a in axes)
        found.append(
            ContractionSplit(shape=graph.program.tensors[contraction.operands[1]].shape, parts=parts)
        )
    return found


def configuration(
    graph: StepGraph, topology: Topology, v: int, names: Sequence[str], parts: Parts
) -> Configuration:
    """The configuration of a group that splits its largest class of each name into so many parts, outermost axes first.

    Raises `ValueError` where no class of a name divides, or the axes do not make up the parts.
    """
    space, left = graph.spaces[v], list(range(len(topology.axes)))
    found: list[tuple[int, ...]] = [()] * len(space.classes)
    for name, wanted in parts.items():
        classes = [c for c, own in enumerate(names) if own == name and space.classes[c].divisible_by(wanted)]
        taken: list[int] = []
        while left and math.prod(topology.axes[a].size for a in taken) < wanted:
            taken.append(left.pop(0))
        if not classes or math.prod(topology.axes[a].size for a in taken) != wanted:
            raise ValueError(f"group {v} has no class {name} to split into {wanted}")
        found[max(classes, key=lambda c: max(space.classes[c].sizes))] = tuple(taken)
    return tuple(found)


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
    for path, sharding in zip(plan.in_paths, plan.input_shardings, strict=True):
        found[path] = tuple(math.prod(axes[a].size for a in dim) for dim in sharding.dims)
    return found
