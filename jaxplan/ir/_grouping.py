"""Result of coarsening: groups of equations that share one configuration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxplan.ir._program import Program
from jaxplan.ir._union import UnionFind

GroupKind = Literal["parameter", "state", "contraction", "sum", "elementwise", "input", "user"]
STORED_KINDS = frozenset({"parameter", "state"})
"""Groups of arrays that a step keeps from call to call."""
UNGROUPED = -1
CONTRACTION_FAMILIES = frozenset({"contraction", "convolution"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Equations and inputs that share one configuration.

    Attributes:
      index: position in ``Grouping.groups``.
      kind: how the group came to be.
      equations: equation indices in program order.
      inputs: tensor indices of the program inputs that live in this group's sharding.
    """

    index: int
    kind: GroupKind
    equations: tuple[int, ...]
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """All groups, and for each equation and tensor the group it belongs to (`UNGROUPED` when in none)."""

    groups: tuple[Group, ...]
    equation_group: tuple[int, ...]
    tensor_group: tuple[int, ...]


def grouping_of(program: Program, kind: Mapping[int, GroupKind], union: UnionFind) -> Grouping:
    """The groups that sets of nodes make, in program order.

    Args:
      kind: of each node that is in a group; nodes are equations, then inputs (offset by the number of equations).
      union: which nodes are together; the kind of a group is that of its set's representative.
    """
    num_equations = len(program.equations)
    members: dict[int, list[int]] = defaultdict(list)
    for node in range(num_equations + len(program.inputs)):
        if node in kind:
            members[union.find(node)].append(node)
    groups: list[Group] = []
    equation_group = [UNGROUPED] * num_equations
    tensor_group = [UNGROUPED] * len(program.tensors)
    for root in sorted(members, key=lambda r: min(members[r])):
        nodes = members[root]
        equations = tuple(n for n in nodes if n < num_equations)
        inputs = tuple(program.inputs[n - num_equations] for n in nodes if n >= num_equations)
        groups.append(Group(index=len(groups), kind=kind[root], equations=equations, inputs=inputs))
        for e in equations:
            equation_group[e] = groups[-1].index
            for t in program.equations[e].results:
                tensor_group[t] = groups[-1].index
        for t in inputs:
            tensor_group[t] = groups[-1].index
    return Grouping(
        groups=tuple(groups), equation_group=tuple(equation_group), tensor_group=tuple(tensor_group)
    )
