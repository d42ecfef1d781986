"""All layouts of one tensor and all primitive steps between them, as arrays.

A *board* has dimensions with their caps and labels with their sizes; a label stands for an atomic axis, or for several
of one level. A *state* says where each label is: in a dimension, idle, or partial. Steps depend on neither the machine
nor the bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Dims = tuple[tuple[int, ...], ...]

# In the order in which ties are broken.
KINDS = ("slice", "all-gather", "all-to-all", "collective-permute", "reduce-scatter", "all-reduce")
_PERMUTE = KINDS.index("collective-permute")


class State(NamedTuple):
    """Labels of each dimension, major to minor, and the labels not yet summed over, ascending."""

    dims: Dims
    partial: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Board:
    """S states and E steps, ordered by the state that they start from, then by kind.

    Attributes:
      states: all that the caps allow.
      index: the position of each state.
      source, target: (E,) positions of the states before and after.
      movable: positions of the states that have steps, ascending.
      starts: where the steps of each of those begin.
      kind: (E,) position in `KINDS`.
      group: (E,) labels that communicate, as bits; none for a slice.
      pieces: (E,) into how many pieces the larger side of a step splits the tensor: what comes out of an all-gather,
        what goes into all others.
    """

    states: tuple[State, ...]
    index: dict[State, int]
    source: Ints
    target: Ints
    movable: Ints
    starts: Ints
    kind: Ints
    group: Ints
    pieces: Ints


def num_states(num_dims: int, num_labels: int) -> int:
    """States of a board whose caps allow everything: some labels used, in some order, cut into dimensions; each other
    label idle or partial."""
    return sum(
        math.perm(num_labels, used) * math.comb(used + max(1, num_dims) - 1, used) * 2 ** (num_labels - used)
        for used in range(num_labels + 1)
        if num_dims or not used
    )


@lru_cache(maxsize=2**7)
def board(caps: tuple[int, ...], sizes: tuple[int, ...]) -> Board:
    """The board of dimensions whose pieces divide ``caps``, and labels of ``sizes``."""
    states = tuple(_all_states(caps, sizes))
    table = _StateTable(states, caps, sizes)
    found = [
        _Steps(rows, after, np.full(rows.shape, kind), group)
        for kind, make in enumerate((_slices, _gathers, _exchanges, _permutes, _scatters, _sums))
        for rows, after, group in make(table)
    ]
    source, target, kind, group = (np.concatenate(column) for column in zip(*found))
    order = np.lexsort((target, kind, source))
    source, target, kind, group = source[order], target[order], kind[order], group[order]
    total = table.splits.prod(axis=1)
    movable, starts = np.unique(source, return_index=True)
    return Board(
        states=states,
        index={state: i for i, state in enumerate(states)},
        source=source,
        target=target,
        movable=movable,
        starts=starts,
        kind=kind,
        group=group,
        pieces=np.where(kind == KINDS.index("all-gather"), total[target], total[source]),
    )


class _Steps(NamedTuple):
    """Positions of states before and after, kinds, and groups as bits."""

    source: Ints
    target: Ints
    kind: Ints
    group: Ints


_Found = Iterator[tuple[Ints, Ints, Ints]]
"""Positions of states before and after, and groups as bits."""


def _all_states(caps: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[State]:
    """Each label idle, partial, or at any place of any dimension that it divides."""
    num_dims, labels = len(caps), range(len(sizes))
    for homes in itertools.product(range(-2, num_dims), repeat=len(sizes)):
        inside = [[x for x in labels if homes[x] == d] for d in range(num_dims)]
        if all(cap % math.prod([sizes[x] for x in of]) == 0 for cap, of in zip(caps, inside)):
            partial = tuple(x for x in labels if homes[x] == -2)
            for dims in itertools.product(*(tuple(itertools.permutations(of)) for of in inside)):
                yield State(dims, partial)


class _StateTable:
    """States as arrays of S rows, and the position of a state by its code.

    The slot of a label is its home times the number of labels, plus its place there; a home is a dimension, IDLE or
    PARTIAL. The code of a state is the number that has the slots as digits.

    Attributes:
      home, place, slot, stride: (S, labels); the stride counts the pieces minor to the label in its dimension.
      lengths, splits: (S, dimensions) labels in it, and pieces.
    """

    def __init__(self, states: tuple[State, ...], caps: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        self.num_dims, self.num_labels, self.sizes = len(caps), len(sizes), sizes
        self.idle, self.partial = self.num_dims, self.num_dims + 1
        self.home = np.full((len(states), self.num_labels), self.idle)
        self.place, self.stride = np.zeros_like(self.home), np.ones_like(self.home)
        self.lengths = np.zeros((len(states), self.num_dims), dtype=np.int64)
        self.splits = np.ones_like(self.lengths)
        for i, state in enumerate(states):
            self.home[i, list(state.partial)] = self.partial
            for d, dim in enumerate(state.dims):
                self._fill(i, d, dim)
        self.slot = self.home * max(1, self.num_labels) + self.place
        self.digit = np.array(
            [(max(1, self.num_labels) * (self.num_dims + 2)) ** x for x in range(self.num_labels)],
            dtype=np.int64,
        )
        codes = self.slot @ self.digit
        self._order = np.argsort(codes)
        self._codes = codes[self._order]
        self.codes = codes

    def _fill(self, row: int, dim: int, labels: tuple[int, ...]) -> None:
        pieces = 1
        for place in reversed(range(len(labels))):
            label = labels[place]
            self.home[row, label], self.place[row, label], self.stride[row, label] = dim, place, pieces
            pieces *= self.sizes[label]
        self.lengths[row, dim], self.splits[row, dim] = len(labels), pieces

    def find(self, rows: Ints, codes: Ints, group: int | Ints) -> tuple[Ints, Ints, Ints]:
        """Those of the steps from ``rows`` whose code is that of a state."""
        where = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        found = self._codes[where] == codes
        return rows[found], self._order[where[found]], np.broadcast_to(group, rows.shape)[found]

    def rows_with(self, labels: tuple[int, ...], home: int) -> Ints:
        """States in which all of the labels are idle, or all partial."""
        return np.flatnonzero((self.home[:, list(labels)] == home).all(axis=1))

    def appended(self, labels: tuple[int, ...], home: int, dim: int) -> tuple[Ints, Ints]:
        """Rows in which all labels have this home, and their codes once the labels are minor-most in a dimension."""
        rows = self.rows_with(labels, home)
        codes = self.codes[rows]
        for i, label in enumerate(labels):
            slot = dim * self.num_labels + self.lengths[rows, dim] + i
            codes = codes + (slot - self.slot[rows, label]) * self.digit[label]
        return rows, codes

    def minor_most(self, dim: int, count: int) -> tuple[Ints, npt.NDArray[np.bool_], Ints]:
        """Rows with that many labels in a dimension, which labels the minor-most are, and the same as bits."""
        rows = np.flatnonzero(self.lengths[:, dim] >= count)
        first = self.lengths[rows, dim] - count
        chosen = (self.home[rows] == dim) & (self.place[rows] >= first[:, None])
        return rows, chosen, chosen @ (1 << np.arange(self.num_labels))


def _bits(labels: tuple[int, ...]) -> int:
    return sum(1 << x for x in labels)


def _ordered(count: int) -> Iterator[tuple[int, ...]]:
    """Every selection of labels in every order."""
    for chosen in range(1, count + 1):
        yield from itertools.permutations(range(count), chosen)


def _slices(table: _StateTable) -> _Found:
    """Idle labels become the minor-most of a dimension."""
    for labels in _ordered(table.num_labels):
        for dim in range(table.num_dims):
            yield table.find(*table.appended(labels, table.idle, dim), 0)


def _gathers(table: _StateTable) -> _Found:
    """The minor-most labels of a dimension become idle."""
    for dim, count in itertools.product(range(table.num_dims), range(1, table.num_labels + 1)):
        rows, chosen, group = table.minor_most(dim, count)
        change = np.where(chosen, table.idle * table.num_labels - table.slot[rows], 0)
        yield table.find(rows, table.codes[rows] + change @ table.digit, group)


def _exchanges(table: _StateTable) -> _Found:
    """The minor-most labels of a dimension become those of another, in the same order."""
    for dim, to_dim in itertools.permutations(range(table.num_dims), 2):
        for count in range(1, table.num_labels + 1):
            rows, chosen, group = table.minor_most(dim, count)
            first = table.lengths[rows, to_dim] - table.lengths[rows, dim] + count
            slot = to_dim * table.num_labels + table.place[rows] + first[:, None]
            change = np.where(chosen, slot - table.slot[rows], 0)
            yield table.find(rows, table.codes[rows] + change @ table.digit, group)


def _permutes(table: _StateTable) -> _Found:
    """Labels that are not partial take each other's slots, and the pieces of each dimension stay as many.

    A label takes part unless its dimension and its stride there stay.
    """
    size = len(table.home)
    pairs = [np.zeros(0, dtype=np.int64)]
    for names in itertools.permutations(range(table.num_labels)):
        renamed = [x for x in range(table.num_labels) if names[x] != x]
        if renamed:
            rows = np.flatnonzero((table.home[:, renamed] != table.partial).all(axis=1))
            rows, after, _ = table.find(rows, table.slot[rows] @ table.digit[list(names)], 0)
            pairs.append((rows * size + after)[rows != after])
    source, target = np.divmod(np.unique(np.concatenate(pairs)), size)
    alike = (table.splits[source] == table.splits[target]).all(axis=1)
    source, target = source[alike], target[alike]
    moved = (table.home[source] != table.home[target]) | (table.stride[source] != table.stride[target])
    yield source, target, moved @ (1 << np.arange(table.num_labels))


def _scatters(table: _StateTable) -> _Found:
    """Partial labels become the minor-most of a dimension."""
    for labels in _ordered(table.num_labels):
        for dim in range(table.num_dims):
            yield table.find(*table.appended(labels, table.partial, dim), _bits(labels))


def _sums(table: _StateTable) -> _Found:
    """Partial labels become idle."""
    for count in range(1, table.num_labels + 1):
        for labels in itertools.combinations(range(table.num_labels), count):
            rows = table.rows_with(labels, table.partial)
            change = (table.idle - table.partial) * table.num_labels * table.digit[list(labels)].sum()
            yield table.find(rows, table.codes[rows] + change, _bits(labels))
