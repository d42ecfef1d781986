"""What coarsening finds: groups of equations that share one configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GroupKind = Literal["state", "contraction", "sum", "elementwise", "input", "user"]
UNGROUPED = -1
CONTRACTION_FAMILIES = frozenset({"contraction", "convolution"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Equations and inputs that share one configuration.

    Attributes:
      index: position in ``Grouping.groups``.
      kind: how the group came to be.
      equations: equation indices in program order.
      inputs: tensor indices of the program inputs that live in this group's layout.
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
