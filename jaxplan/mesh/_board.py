"""All shardings of one tensor and all primitive steps between them, as arrays.

A *board* has dimensions with their caps and labels with their sizes; a label stands for an atomic axis, or for several
of one level. A *state* says where each label is: in a dimension, idle, or partial. Steps depend on neither the machine
nor the bytes.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from jaxplan.mesh._states import Ints, StateTable

# In the order in which ties are broken.
KINDS = ("slice", "all-gather", "all-to-all", "collective-permute", "reduce-scatter", "all-reduce")
PERMUTE = KINDS.index("collective-permute")


class Steps(NamedTuple):
    """E steps, by the state that they start from: positions of states before and after, kinds, labels that communicate
    as bits (none for a slice).

    ``pieces``: number of pieces into which the larger side of a step splits the tensor: the result of an all-gather,
    the operand of all other collectives.
    """

    source: Ints
    target: Ints
    kind: Ints
    group: Ints
    pieces: Ints


class Classes(NamedTuple):
    """States of one class, (S,) the class of each; ``order`` sorts the states by class, ``starts`` says where each
    class begins in it."""

    of_state: Ints
    order: Ints
    starts: Ints

    def members(self, state: int) -> Ints:
        """The states of the class of one, ascending."""
        number = self.of_state[state]
        stop = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.order)
        return self.order[self.starts[number] : stop]


class Board:
    """States and steps; ``table`` holds the states."""

    def __init__(self, caps: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        self.table = StateTable(caps, sizes)
        self.pieces: Ints = self.table.splits.prod(axis=1)

    @cached_property
    def steps(self) -> Steps:
        """All but the permutes."""
        table = self.table
        makers = (_slices, _gathers, _exchanges, None, _scatters, _sums)
        found = [
            (rows, after, np.full(rows.shape, kind), group)
            for kind, make in enumerate(makers)
            if make is not None
            for rows, after, group in make(table)
        ]
        found = found or [(np.zeros(0, dtype=np.int64),) * 4]  # one device: nothing to reshard
        return self._sorted(*(np.concatenate(column) for column in zip(*found)))

    @cached_property
    def all_steps(self) -> Steps:
        """Every one, the permutes listed."""
        source, target, group = self._permutes()
        kind = np.full(source.shape, PERMUTE)
        parts = zip(self.steps[:4], (source, target, kind, group))
        return self._sorted(*(np.concatenate(pair) for pair in parts))

    def _sorted(self, source: Ints, target: Ints, kind: Ints, group: Ints) -> Steps:
        order = np.argsort((source * len(KINDS) + kind) * len(self.pieces) + target, kind="stable")
        source, target, kind, group = source[order], target[order], kind[order], group[order]
        is_gather = kind == KINDS.index("all-gather")
        return Steps(
            source, target, kind, group, np.where(is_gather, self.pieces[target], self.pieces[source])
        )

    def classes(self, changing: tuple[bool, ...]) -> Classes:
        """Classes of states between which a permute over some of the labels leads: the pieces of every dimension, the
        partial labels, and the places of the labels that do not change are the same.

        The place of a label is its dimension and its stride there.
        """
        table, key = self.table, np.zeros(len(self.pieces), dtype=np.int64)
        columns = [table.splits[:, d] for d in range(table.num_dims)]
        columns.append((table.home == table.partial) @ (1 << np.arange(table.num_labels)))
        for label, changes in enumerate(changing):
            if not changes:
                columns += [table.home[:, label], table.stride[:, label]]
        for column in columns:
            _, key = np.unique(key * (int(column.max(initial=0)) + 1) + column, return_inverse=True)
        order = np.argsort(key, kind="stable")
        return Classes(key, order, np.flatnonzero(np.diff(key[order], prepend=-1)))

    def _permutes(self) -> tuple[Ints, Ints, Ints]:
        """Positions of the states before and after, and groups as bits."""
        classes = self.classes((True,) * self.table.num_labels)
        counts = np.diff(classes.starts, append=len(classes.order))[classes.of_state]
        source = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
        target = classes.order[classes.starts[classes.of_state[source]] + within]
        source, target = source[source != target], target[source != target]
        return source, target, self.moved(source, target)

    def moved(self, source: Ints, target: Ints) -> Ints:
        """Labels that change their dimension or their stride in it, as bits."""
        table = self.table
        changed = (table.home[source] != table.home[target]) | (table.stride[source] != table.stride[target])
        return changed @ (1 << np.arange(table.num_labels))


@lru_cache(maxsize=2**7)
def board(caps: tuple[int, ...], sizes: tuple[int, ...]) -> Board:
    """The board of dimensions with numbers of pieces that divide ``caps``, and labels of ``sizes``."""
    return Board(caps, sizes)


@lru_cache(maxsize=2**14)
def num_states(caps: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    """States of a board: a label is idle, partial, or at one of the places that the labels before it leave."""
    nothing = ((0, 1),) * len(caps)  # labels in each dimension, and pieces
    ways = {nothing: 1}
    for size in sizes:
        after: dict[tuple[tuple[int, int], ...], int] = defaultdict(int)
        for dims, count in ways.items():
            after[dims] += 2 * count
            for d, (length, pieces) in enumerate(dims):
                if caps[d] % (pieces * size) == 0:
                    after[(*dims[:d], (length + 1, pieces * size), *dims[d + 1 :])] += count * (length + 1)
        ways = after
    return sum(ways.values())


_Found = Iterator[tuple[Ints, Ints, Ints]]
"""Positions of states before and after, and groups as bits."""


def _slices(table: StateTable) -> _Found:
    """Idle labels become the minor-most of a dimension."""
    for source, target, _ in _appended(table, table.idle):
        yield source, target, np.zeros_like(source)


def _scatters(table: StateTable) -> _Found:
    """Partial labels become the minor-most of a dimension."""
    yield from _appended(table, table.partial)


def _appended(table: StateTable, home: int) -> _Found:
    """Labels of a home become the minor-most of a dimension, in any order: one, then one more, and so on."""
    for dim in range(table.num_dims):
        ones = [_one_appended(table, home, dim, label) for label in range(table.num_labels)]
        single = source, target, group = [np.concatenate(column) for column in zip(*ones)]
        order = np.argsort(source, kind="stable")
        ones_source, ones_target, ones_group = (column[order] for column in single)
        while len(source):
            yield source, target, group
            low, high = (np.searchsorted(ones_source, target, side) for side in ("left", "right"))
            count = high - low
            each = np.repeat(np.arange(len(source)), count)
            one = np.arange(len(each)) - np.repeat(np.cumsum(count) - count, count) + low[each]
            source, target = source[each], ones_target[one]
            group = group[each] + ones_group[one]  # other labels, so other bits


def _one_appended(table: StateTable, home: int, dim: int, label: int) -> tuple[Ints, Ints, Ints]:
    rows = np.flatnonzero(table.home[:, label] == home)
    slot = dim * table.num_labels + table.lengths[rows, dim]
    return table.find(
        rows, table.codes[rows] + (slot - table.slot[rows, label]) * table.digit[label], 1 << label
    )


def _gathers(table: StateTable) -> _Found:
    """The minor-most labels of a dimension become idle."""
    for dim, count in itertools.product(range(table.num_dims), range(1, table.num_labels + 1)):
        rows, chosen, group = table.minor_most(dim, count)
        change = np.where(chosen, table.idle * table.num_labels - table.slot[rows], 0)
        yield table.find(rows, table.codes[rows] + change @ table.digit, group)


def _exchanges(table: StateTable) -> _Found:
    """The minor-most labels of a dimension become those of another, in the same order."""
    for dim, to_dim in itertools.permutations(range(table.num_dims), 2):
        for count in range(1, table.num_labels + 1):
            rows, chosen, group = table.minor_most(dim, count)
            first = table.lengths[rows, to_dim] - table.lengths[rows, dim] + count
            slot = to_dim * table.num_labels + table.place[rows] + first[:, None]
            change = np.where(chosen, slot - table.slot[rows], 0)
            yield table.find(rows, table.codes[rows] + change @ table.digit, group)


def _sums(table: StateTable) -> _Found:
    """Partial labels become idle."""
    for bits in range(1, 1 << table.num_labels):
        labels = [x for x in range(table.num_labels) if bits >> x & 1]
        rows = np.flatnonzero((table.home[:, labels] == table.partial).all(axis=1))
        change = (table.idle - table.partial) * table.num_labels * table.digit[labels].sum()
        yield table.find(rows, table.codes[rows] + change, bits)
