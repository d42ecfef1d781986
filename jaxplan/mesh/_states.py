"""The states of a board as arrays, and their positions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Dims = tuple[tuple[int, ...], ...]


class State(NamedTuple):
    """Labels of each dimension, major to minor, and the labels not yet summed over, ascending."""

    dims: Dims
    partial: tuple[int, ...]


class StateTable:
    """All S states of dimensions with caps and labels with sizes.

    The slot of a label is its home times the number of labels, plus its place there; a home is a dimension, IDLE or
    PARTIAL. The code of a state is the number that has the slots as digits.

    Attributes:
      home, place, slot, stride: (S, labels); the stride counts the pieces minor to the label in its dimension.
      lengths, splits: (S, dimensions) labels in it, and pieces.
      codes: (S,) ascending.
    """

    def __init__(self, caps: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        self.num_dims, self.num_labels = len(caps), len(sizes)
        self.idle, self.partial = self.num_dims, self.num_dims + 1
        base = max(1, self.num_labels) * (self.num_dims + 2)
        self.digit = np.array([base**x for x in range(self.num_labels)], dtype=np.int64)
        home, place = _all_placed(caps, sizes)
        codes = (home * max(1, self.num_labels) + place) @ self.digit
        order = np.argsort(codes)
        self.codes, self.home, self.place = codes[order], home[order], place[order]
        self.slot = self.home * max(1, self.num_labels) + self.place
        self.lengths = (
            np.stack([(self.home == d).sum(axis=1) for d in range(self.num_dims)], axis=1)
            if caps
            else (np.zeros((len(codes), 0), dtype=np.int64))
        )
        self.splits = np.ones_like(self.lengths)
        self.stride = np.ones_like(self.home)
        for x, size in enumerate(sizes):
            for d in range(self.num_dims):
                self.splits[:, d] *= np.where(self.home[:, x] == d, size, 1)
            is_major = (self.home == self.home[:, x : x + 1]) & (self.place < self.place[:, x : x + 1])
            self.stride *= np.where(is_major & (self.home < self.idle), size, 1)

    def find(self, rows: Ints, codes: Ints, group: int | Ints) -> tuple[Ints, Ints, Ints]:
        """Steps from ``rows`` with the code of a state: their positions, the states' positions, and their groups."""
        where = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        found = self.codes[where] == codes
        return rows[found], where[found], np.broadcast_to(group, rows.shape)[found]

    def minor_most(self, dim: int, count: int) -> tuple[Ints, npt.NDArray[np.bool_], Ints]:
        """Rows with that many labels in a dimension, which labels the minor-most are, and the same as bits."""
        rows = np.flatnonzero(self.lengths[:, dim] >= count)
        first = self.lengths[rows, dim] - count
        chosen = (self.home[rows] == dim) & (self.place[rows] >= first[:, None])
        return rows, chosen, chosen @ (1 << np.arange(self.num_labels))

    @cached_property
    def _position(self) -> dict[int, int]:
        return {code: i for i, code in enumerate(self.codes.tolist())}

    def position(self, state: State) -> int:
        """Row of a state."""
        slots = [self.idle * self.num_labels] * self.num_labels
        for label in state.partial:
            slots[label] = self.partial * self.num_labels
        for d, labels in enumerate(state.dims):
            for place, label in enumerate(labels):
                slots[label] = d * self.num_labels + place
        return self._position[sum(slot * digit for slot, digit in zip(slots, self.digit.tolist()))]

    def state(self, row: int) -> State:
        """The state of a row."""
        home, place = self.home[row].tolist(), self.place[row].tolist()
        inside = [sorted((place[x], x) for x, at in enumerate(home) if at == d) for d in range(self.num_dims)]
        partial = tuple(x for x, at in enumerate(home) if at == self.partial)
        return State(tuple(tuple(x for _, x in labels) for labels in inside), partial)


def _all_placed(caps: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Ints, Ints]:
    """(S, labels) homes and places: each label in turn goes to every place of every dimension that it divides."""
    home, place = np.zeros((1, 0), dtype=np.int64), np.zeros((1, 0), dtype=np.int64)
    for x in range(len(sizes)):
        parts = list(_with_one_more(home, place, caps, sizes[: x + 1]))
        home, place = (np.concatenate(column) for column in zip(*parts))
    return home, place


def _with_one_more(
    home: Ints, place: Ints, caps: tuple[int, ...], sizes: tuple[int, ...]
) -> Iterator[tuple[Ints, Ints]]:
    *before, size = sizes
    for outside in (len(caps), len(caps) + 1):
        yield _column(home, outside), _column(place, 0)
    for d, cap in enumerate(caps):
        pieces = np.where(home == d, before, 1).prod(axis=1) * size if before else np.full(len(home), size)
        fits = cap % pieces == 0
        length = (home == d).sum(axis=1)
        for at in range(len(sizes)):
            rows = fits & (length >= at)
            shifted = place[rows] + ((home[rows] == d) & (place[rows] >= at))
            yield _column(home[rows], d), _column(shifted, at)


def _column(table: Ints, value: int) -> Ints:
    return np.concatenate([table, np.full((len(table), 1), value, dtype=np.int64)], axis=1)
