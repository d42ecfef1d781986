"""Names of mesh axes in a script: groups of atomic axes, as coarse as the program allows unless they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxplan.errors import ArgumentError
from jaxplan.mesh import Topology

_SPLIT_MSG = (
    "names={names}: the program uses {used} apart from the rest of {group!r}, {members}.\n"
    "  expected: groups of axes that the plan uses together everywhere\n"
    "  likely cause: some operator is split over a part of the group\n"
    "  fix: leave names out, and the coarsest groups are found"
)


class AxisNames:
    """Translates tuples of atomic axes into tuples of groups, and remembers those that it was asked for.

    Attributes:
      groups: name -> atomic axes by name, each in one group.
      seen: tuples of atomic axes that were translated.
    """

    def __init__(self, groups: Mapping[str, tuple[str, ...]]) -> None:
        self.groups = dict(groups)
        self.seen: set[tuple[str, ...]] = set()
        self._by_first = {group[0]: (name, group) for name, group in groups.items() if group}
        self._member_of = {axis: name for name, group in groups.items() for axis in group}

    def names(self, axes: Sequence[str]) -> tuple[str, ...]:
        """The groups that a tuple of axes is made of; axes of other meshes keep their names.

        Raises:
          ArgumentError: it splits a group.
        """
        axes = tuple(axes)
        self.seen.add(axes)
        found, place = [], 0
        while place < len(axes):
            name, group = self._by_first.get(axes[place], (axes[place], axes[place : place + 1]))
            if axes[place : place + len(group)] != group or self._member_of.get(axes[place], name) != name:
                owner = self._member_of[axes[place]]
                raise ArgumentError(
                    _SPLIT_MSG.format(
                        names=self.groups, used=axes, group=owner, members=" ".join(self.groups[owner])
                    )
                )
            found.append(name)
            place += len(group)
        return tuple(found)


def coarsest(topology: Topology, seen: set[tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Groups of neighbouring axes of one level that are never used apart.

    Example:
      >>> coarsest(Topology.parse("h100:2x8"), {("node",), ("gpu0", "gpu1", "gpu2")})
      {'node': ('node',), 'gpu': ('gpu0', 'gpu1', 'gpu2')}
    """
    runs: list[list[int]] = []
    axes = topology.axes
    for a, axis in enumerate(axes):
        joins = runs and axes[a - 1].level == axis.level and _always_together(axes[a - 1].name, axis.name, seen)
        if joins:
            runs[-1].append(a)
        else:
            runs.append([a])
    groups = {}
    for run in runs:
        names = tuple(axes[a].name for a in run)
        level = topology.levels[axes[run[0]].level]
        is_whole = len(run) == sum(axis.level == axes[run[0]].level for axis in axes)
        numbers = "".join(name.removeprefix(level.prefix) for name in names)
        groups[level.prefix if is_whole else level.prefix + numbers] = names
    return groups


def _always_together(first: str, second: str, seen: set[tuple[str, ...]]) -> bool:
    for axes in seen:
        if first in axes or second in axes:
            place = axes.index(first) if first in axes else len(axes)
            if axes[place + 1 : place + 2] != (second,):
                return False
    return True
