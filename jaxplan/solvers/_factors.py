"""Tables of Pareto lists over named nodes, with the way back from a point to its configurations.

Equal operations on equal tables are done once (`Workshop`), so equal layers cost one layer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.solvers._edge import Edge
from jaxplan.solvers._kernel import aligned
from jaxplan.solvers._pareto import Lists, product, reduce_lists, union_first_axis
from jaxplan.solvers._problem import Problem

_MAX_NODES_OF_FACTOR = 30
"""Arrays have at most 32 dimensions in numpy 1 and in its broadcasting; two are for the lists."""


class ListsOverflow(Exception):
    """The lists need more candidates than the caller allowed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factor:
    """A table of lists over some nodes.

    Attributes:
      lists: the table, one axis of cells for each of `names`.
      names: the nodes of the axes.
      kind: how it was made.
      parents: the factors it was made of.
      index: the node that was removed or fixed, or the edge it comes from; -1 otherwise.
      label: the configuration that `index` was fixed to.
    """

    lists: Lists
    names: tuple[int, ...]
    kind: Literal["node", "edge", "product", "union", "fixed"]
    parents: tuple[Factor, ...] = ()
    index: int = -1
    label: int = -1


@dataclass(slots=True, kw_only=True)
class Workshop:
    """Makes factors, each different operation once.

    Attributes:
      cap: most points of a list; None for exact lists.
      budget: candidates that may still be looked at, over all operations.
      is_exact: whether no list was thinned and no node was fixed.
    """

    cap: int | None
    budget: int
    is_exact: bool = True
    _made: Memo = field(default_factory=Memo)

    def node(self, problem: Problem, node: int) -> Factor:
        time, memory = problem.time[node], problem.memory[node]
        key = ("node", *self._made.numbers((time, memory)))
        if key not in self._made:
            self._made[key] = reduce_lists(time[:, None], memory[:, None])
        return Factor(lists=self._made[key], names=(node,), kind="node", index=node)

    def edge(self, edge: Edge, index: int) -> Factor:
        key = ("edge", *self._made.numbers((edge.time, edge.memory)))
        if key not in self._made:
            time = edge.time.reshape(*edge.time.shape[:2], -1)
            memory = (
                np.zeros(time.shape, np.int64) if edge.memory is None else edge.memory.reshape(time.shape)
            )
            self._made[key] = reduce_lists(time, memory)
        return Factor(lists=self._made[key], names=(edge.source, edge.target), kind="edge", index=index)

    def product(self, first: Factor, second: Factor) -> Factor:
        """Return the sums of two factors, over the nodes of both."""
        names = (*first.names, *(name for name in second.names if name not in first.names))
        if len(names) > _MAX_NODES_OF_FACTOR:
            raise ListsOverflow
        axes = tuple(names.index(name) for name in second.names)
        key = ("product", *self._made.numbers((first.lists, second.lists)), axes)
        if key not in self._made:
            one = _expanded(first.lists, tuple(range(len(first.names))), len(names))
            two = _expanded(second.lists, axes, len(names))
            num_cells = int(np.prod(np.broadcast_shapes(one.cells, two.cells), dtype=np.int64))
            self._spend(num_cells * one.length * two.length)
            self._keep(key, product(one, two, self.cap))
        return Factor(lists=self._made[key], names=names, kind="product", parents=(first, second))

    def products(self, factors: Iterable[Factor]) -> Factor:
        """Return the sums of several factors; short lists and few nodes first."""
        ordered = sorted(factors, key=lambda factor: (len(factor.names), factor.lists.time.size))
        result = ordered[0]
        for factor in ordered[1:]:
            result = self.product(result, factor)
        return result

    def union(self, factor: Factor, name: int) -> Factor:
        """Remove a node: take the best points over its configurations."""
        axis = factor.names.index(name)
        key = ("union", self._made.number(factor.lists), axis)
        if key not in self._made:
            self._spend(factor.lists.time.size)
            lists = factor.lists
            moved = [np.moveaxis(array, axis, 0) for array in (lists.time, lists.memory, lists.source)]
            turned = Lists(time=moved[0], memory=moved[1], source=moved[2])
            self._keep(key, union_first_axis(turned, self.cap))
        names = factor.names[:axis] + factor.names[axis + 1 :]
        return Factor(lists=self._made[key], names=names, kind="union", parents=(factor,), index=name)

    def fixed(self, factor: Factor, name: int, label: int) -> Factor:
        """Give a node one configuration."""
        self.is_exact = False
        axis = factor.names.index(name)
        key = ("fixed", self._made.number(factor.lists), axis, label)
        if key not in self._made:
            lists = factor.lists
            taken = [np.take(array, label, axis=axis) for array in (lists.time, lists.memory, lists.source)]
            self._made[key] = Lists(time=taken[0], memory=taken[1], source=taken[2])
        names = factor.names[:axis] + factor.names[axis + 1 :]
        return Factor(
            lists=self._made[key], names=names, kind="fixed", parents=(factor,), index=name, label=label
        )

    def _keep(self, key: Hashable, lists: Lists) -> None:
        self.is_exact &= lists.is_exact
        self._made[key] = lists

    def _spend(self, num_candidates: int) -> None:
        self.budget -= num_candidates
        if self.budget < 0:
            raise ListsOverflow


def _expanded(lists: Lists, axes: tuple[int, ...], num_axes: int) -> Lists:
    """Return views with `num_axes` axes of cells, those of `lists` at `axes`."""
    places = (*axes, num_axes)
    time, memory, source = (
        aligned(array, places, num_axes + 1) for array in (lists.time, lists.memory, lists.source)
    )
    return Lists(time=time, memory=memory, source=source)


def unroll(factor: Factor, num_nodes: int, num_edges: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (P, V) configurations and (P, E) choices behind the P points of a factor that has no axes left.

    The way back passes the same factors for every point, so all points go back together.
    """
    num_points = int(np.isfinite(factor.lists.time).sum())
    assignments = np.zeros((num_points, num_nodes), np.intp)
    choices = np.zeros((num_points, num_edges), np.intp)
    pending = [(factor, np.arange(num_points))]
    while pending:
        factor, points = pending.pop()
        source = factor.lists.source[(*(assignments[:, name] for name in factor.names), points)]
        if factor.kind == "edge":
            choices[:, factor.index] = source
        elif factor.kind == "product":
            first, second = factor.parents
            one, two = np.divmod(source, second.lists.length)
            pending += [(first, one), (second, two)]
        elif factor.kind == "union":
            (parent,) = factor.parents
            assignments[:, factor.index], place = np.divmod(source, parent.lists.length)
            pending.append((parent, place))
        elif factor.kind == "fixed":
            assignments[:, factor.index] = factor.label
            pending.append((factor.parents[0], points))
    return assignments, choices
