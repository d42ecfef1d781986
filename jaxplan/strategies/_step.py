"""A step as strategies see it, and a strategy on it: a configuration for every group."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jaxplan.cost import tiny_groups
from jaxplan.ir import Configuration, Entry, Group, StepGraph, fixed_axes, stored_entries
from jaxplan.mesh import Topology
from jaxplan.strategies._axes import Axes, dividing
from jaxplan.strategies._weights import Weights

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyPlan:
    """The result of applying a strategy to a step.

    Attributes:
      configurations: one per group.
      repeat_gathers: gather parameters again for the backward pass instead of keeping the gathered copies.
    """

    configurations: tuple[Configuration, ...]
    repeat_gathers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """Why a strategy does not apply to a step, as the rest of a sentence."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """Input of every strategy: the analysed step, its topology, and the uses of parameters in it."""

    graph: StepGraph
    topology: Topology
    weights: Weights
    _known: dict[Hashable, Any] = field(default_factory=dict)
    _names: tuple[tuple[int, ...], ...] = field(init=False)
    _fixed: tuple[Mapping[int, Axes], ...] = field(init=False)

    def __post_init__(self) -> None:
        sizes = [axis.size for axis in self.topology.axes]
        classes = [space.classes for space in self.graph.spaces]
        object.__setattr__(self, "_names", tuple(tuple([c.named_dimension for c in of]) for of in classes))
        object.__setattr__(self, "_fixed", tuple(fixed_axes(of, sizes) for of in classes))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return ``make()``, computed at the first call with this key."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def named(self, v: int) -> tuple[int, ...]:
        """Named dimension of each class of a group."""
        return self._names[v]

    def fixed(self, v: int) -> Mapping[int, Axes]:
        """Classes of a group that the step's own sharding constraints fix -> their axes."""
        return self._fixed[v]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The places where loops take in stored arrays."""
        graph = self.graph
        return self.once(
            "entries", lambda: stored_entries(graph.program, graph.rules, graph.values, graph.grouping)
        )

    @property
    def tiny(self) -> frozenset[int]:
        """Groups of stored arrays that are too small to split: whole on every device."""
        return self.once("tiny", lambda: tiny_groups(self.graph))

    def held_together(self, v: int) -> frozenset[frozenset[int]]:
        """Sets of classes that occur in one operator or tensor of a group, so no axis may split two of a set."""
        space = self.graph.spaces[v]

        def found() -> frozenset[frozenset[int]]:
            tensors = {tuple(c for dim in t for c in dim) for t in set(space.tensor_dims.values())}
            return frozenset(map(frozenset, tensors.union(space.factor_class.values())))

        return self.once(("held", v), found)

    def size(self, dimension: int) -> int:
        return self.graph.named.dimensions[dimension].size

    def name(self, dimension: int) -> str:
        return self.graph.named.dimensions[dimension].name


Wishes = Mapping[int, Axes]
"""Class of a group -> the axes that should split it; only axes that divide the class are used."""
Rule = Callable[[Group], Wishes]


def configuration(step: Step, v: int, wishes: Wishes) -> Configuration:
    """A valid configuration close to the wishes: an axis wished twice in one operator or tensor goes to the first."""
    space = step.graph.spaces[v]
    chosen: list[Axes] = [()] * len(space.classes)
    fixed = step.fixed(v)
    for c, axes in fixed.items():
        chosen[c] = axes
    for c, axes in wishes.items():
        if c in fixed:
            continue
        taken = [other for other, of in enumerate(chosen) if of]
        if taken:
            held = [classes for classes in step.held_together(v) if c in classes]
            used = {a for other in taken if any(other in classes for classes in held) for a in chosen[other]}
            axes = tuple(a for a in axes if a not in used)
        chosen[c] = dividing(space.classes[c], axes, step.topology)
    return tuple(chosen)
