"""The configurations of every group that a cost model is built for, within limits."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from jaxplan.core._interner import Memo
from jaxplan.cost._reads import Read
from jaxplan.cost._tiny import tiny_groups
from jaxplan.ir import (
    UNGROUPED,
    ClassLimit,
    Configuration,
    StepGraph,
    allowed_by,
    are_all,
    common_block_devices,
    enumerate_configurations,
    enumerate_restricted,
)
from jaxplan.mesh import Topology


class ConfigurationTable:
    """Of the groups of one step on one topology; equal groups share one object.

    Args:
      always: per group, configurations that the cap on their number never leaves out.
      limits: per group, those of its classes of dimensions.
      memo: of the cost model that is built.

    Attributes:
      tiny: groups that stay whole.
    """

    def __init__(
        self,
        graph: StepGraph,
        topology: Topology,
        reads: Sequence[Read],
        always: Sequence[frozenset[Configuration]],
        limits: Sequence[Sequence[ClassLimit]],
        memo: Memo,
    ) -> None:
        self._graph, self._topology, self._reads, self._memo = graph, topology, reads, memo
        self._always = always or (frozenset(),) * len(graph.grouping.groups)
        self.limits = tuple(map(tuple, limits)) or ((),) * len(graph.grouping.groups)
        self.tiny = tiny_groups(graph)

    def of(self, most: int) -> list[tuple[tuple[Configuration, ...], frozenset[Configuration]]]:
        """Of each group its configurations, and which of them are kept under every cap."""
        sizes, levels = self.axes
        front = self._graph.named.front
        spaces = [space.classes for space in self._graph.spaces]
        blocks = common_block_devices(spaces, sizes, levels, front, most)
        result = []
        for group, space, always in zip(self._graph.grouping.groups, self._graph.spaces, self._always, strict=True):
            if self.limits[group.index]:
                result.append((self._restricted(group.index, most), frozenset()))
                continue
            key = ("configs", self._class_keys[group.index], always, most)
            if key not in self._memo:
                found = enumerate_configurations(space.classes, sizes, levels, front, blocks, most)
                added = always.difference(found)
                found += tuple(sorted(added))
                # One object: equal groups share their tables.
                self._memo[key] = self._memo.setdefault(found, found), added
            found, added = self._memo[key]
            result.append((found[:1], frozenset()) if group.index in self.tiny else (found, added))
        return self._with_updates_of(result, {v for v, limits in enumerate(self.limits) if limits})

    def with_more(
        self, configurations: Sequence[tuple[Configuration, ...]], more: Mapping[int, Iterable[Configuration]]
    ) -> tuple[tuple[Configuration, ...], ...]:
        """Configurations of all groups and ``more`` of some, those that limits rule out left out."""
        sizes, result = self.axes[0], []
        for v, known in enumerate(configurations):
            allowed = {c for c in more.get(v, ()) if v not in self.tiny and allowed_by(self.limits[v], c, sizes)}
            result.append((known + tuple(sorted(allowed.difference(known))), frozenset[Configuration]()))
        extended = self._with_updates_of(result, more.keys())
        return tuple(self._memo.setdefault(configs, configs) for configs, _ in extended)

    def has_all(self) -> bool:
        """Whether `configurations` leaves no way to split out."""
        sizes, levels = self.axes
        front = self._graph.named.front
        spaces = dict.fromkeys(tuple(space.classes) for space in self._graph.spaces)
        return all(are_all(classes, sizes, levels, front) for classes in spaces)

    def is_splittable(self, v: int) -> bool:
        """Whether a group has more than the replicated configuration to choose from."""
        sizes = {axis.size for axis in self._topology.axes}
        return v not in self.tiny and any(
            cls.divisible_by(size) for cls in self._graph.spaces[v].classes for size in sizes
        )

    @property
    def axes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes and levels of the atomic axes."""
        axes = self._topology.axes
        return tuple(axis.size for axis in axes), tuple(axis.level for axis in axes)

    @functools.cached_property
    def updates(self) -> frozenset[tuple[int, int]]:
        """(group of the update, group of the parameter) where they are two."""
        groups = self._graph.grouping.groups
        ends = [(read.producer, read.consumer) for read in self._reads if read.is_output]
        return frozenset(
            (u, v) for u, v in ends if UNGROUPED not in (u, v) and u != v and groups[v].kind == "parameter"
        )

    def _with_updates_of(
        self, found: list[tuple[tuple[Configuration, ...], frozenset[Configuration]]], stored: Collection[int]
    ) -> list[tuple[tuple[Configuration, ...], frozenset[Configuration]]]:
        """The same; the updates of parameters in the groups ``stored`` can run on the pieces that these store.

        Each device updates a part of its own pieces, and such groups may have layouts that are not dealt otherwise.
        """
        result = list(found)
        for read in self._reads:
            u, v = read.producer, read.consumer
            if not read.is_output or (u, v) not in self.updates or v not in stored or self.limits[u]:
                continue
            ours, theirs = (self._graph.spaces[w].tensor_dims.get(read.tensor) for w in (u, v))
            if ours is None or theirs is None:
                continue
            configurations, added = result[u]
            mirrored = {
                config for of in result[v][0] if (config := self._mirrored(u, ours, theirs, of)) is not None
            }
            new = tuple(sorted(mirrored.difference(configurations)))
            if new:
                extended = configurations + new
                result[u] = self._memo.setdefault(extended, extended), added
        return result

    def _mirrored(
        self, u: int, ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]], config: Configuration
    ) -> Configuration | None:
        """The configuration of a group that splits a tensor as another group does; None where it cannot."""
        classes, sizes = self._graph.spaces[u].classes, self.axes[0]
        chosen: list[tuple[int, ...]] = [()] * len(classes)
        for mine, other in zip(ours, theirs, strict=True):
            axes = tuple(a for c in other for a in config[c])
            if not axes:
                continue
            if len(mine) != 1 or not classes[mine[0]].divisible_by(math.prod(sizes[a] for a in axes)):
                return None
            chosen[mine[0]] = axes
        return tuple(chosen)

    def _restricted(self, v: int, most: int) -> tuple[Configuration, ...]:
        """The configurations of a group that its limits allow; tiny groups stay whole unless a limit splits them."""
        key = ("restricted", self._class_keys[v], self.limits[v], most)
        if key not in self._memo:
            classes, front = self._graph.spaces[v].classes, self._graph.named.front
            self._memo[key] = enumerate_restricted(classes, *self.axes, self.limits[v], front, most)
        found = self._memo[key]
        return found[:1] if v in self.tiny and not any(found[0]) else found

    @functools.cached_property
    def _class_keys(self) -> list[int]:
        """Per group a number, equal where all that decides its configurations is."""
        numbers: dict[tuple, int] = {}
        front = self._graph.named.front
        return [
            numbers.setdefault(
                tuple([(c.sizes, c.most_parts, c.named_dimension == front, c.user_axes) for c in space.classes]),
                len(numbers),
            )
            for space in self._graph.spaces
        ]
