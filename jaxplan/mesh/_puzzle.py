"""What is left of a resharding when names are taken away, and the primitive steps on it.

A `Puzzle` drops untouched dimensions and common major prefixes; labels 0, 1, ... stand for one atomic axis,
or for several of one level that stay together. Puzzles of different tensors and axes are the same, so few are
ever solved.

A label in its final place, with all labels major to it in theirs, is not moved again. A puzzle of many labels
is `large`, and tries only moves that bring labels towards their final place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

Dims = tuple[tuple[int, ...], ...]
# Above this many labels, only moves that bring labels towards their final place are tried: their number
# otherwise grows as the factorial.
_MAX_LABELS_FREELY_MOVED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """Two layouts of one tensor, canonical.

    Attributes:
      source, target: labels of each differing dimension beyond the common prefix, major to minor.
      partial: labels to be resolved: the value is a sum over each.
      caps: per dimension, the number that its splits must divide.
      sizes: per label, its number of devices.
      levels: per label, the level of the machine that it belongs to.
    """

    source: Dims
    target: Dims
    partial: tuple[int, ...]
    caps: tuple[int, ...]
    sizes: tuple[int, ...]
    levels: tuple[int, ...]

    @property
    def large(self) -> bool:
        return len(self.sizes) > _MAX_LABELS_FREELY_MOVED

    def pieces(self, labels: tuple[int, ...]) -> int:
        """Product of the sizes of labels."""
        return math.prod(map(self.sizes.__getitem__, labels))

    def fits(self, dim: int, labels: tuple[int, ...]) -> bool:
        """Whether the dimension can be split by the labels."""
        return self.caps[dim] % self.pieces(labels) == 0

    def settled(self, dims: Dims) -> list[int]:
        """Per dimension, how many labels are in their final place."""
        counts = []
        for labels, goal in zip(dims, self.target):
            count = 0
            while count < len(labels) and count < len(goal) and labels[count] == goal[count]:
                count += 1
            counts.append(count)
        return counts


class State(NamedTuple):
    """Labels of each dimension, and the labels not yet summed over, ascending."""

    dims: Dims
    partial: tuple[int, ...]


class Move(NamedTuple):
    """One step: `labels` move from `dim` (to `to_dim`; -1: none), `group` communicates, then `state`."""

    kind: str
    labels: tuple[int, ...]
    dim: int
    to_dim: int
    group: tuple[int, ...]
    state: State


def moves(puzzle: Puzzle, state: State) -> Iterator[Move]:
    """Every primitive step from a state that keeps all dimensions divisible, in the stated order of kinds."""
    settled = puzzle.settled(state.dims)
    used = {label for dim in state.dims for label in dim}.union(state.partial)
    free = [label for label in range(len(puzzle.sizes)) if label not in used]
    if free:
        yield from _slices(puzzle, state, free)
    yield from _all_gathers(state, settled)
    yield from _all_to_alls(puzzle, state, settled)
    yield from _permutes(puzzle, state, settled, free)
    if state.partial:
        yield from _reductions(puzzle, state)


def _replaced(dims: Dims, dim: int, labels: tuple[int, ...]) -> Dims:
    return (*dims[:dim], labels, *dims[dim + 1 :])


def _slices(puzzle: Puzzle, state: State, free: list[int]) -> Iterator[Move]:
    """Append free labels, those that belong to the dimension first, in the order of the target."""
    for dim, labels in enumerate(state.dims):
        for chosen in _slices_of(puzzle, dim, labels, free):
            if puzzle.fits(dim, labels + chosen):
                after = State(_replaced(state.dims, dim, labels + chosen), state.partial)
                yield Move("slice", chosen, dim, -1, (), after)


def _slices_of(
    puzzle: Puzzle, dim: int, labels: tuple[int, ...], free: list[int]
) -> Iterator[tuple[int, ...]]:
    if puzzle.large:
        wanted = _next_in_place(puzzle.target[dim], labels, free)
        yield from (wanted[:count] for count in range(1, len(wanted) + 1))
        return
    wanted = _in_order_of(puzzle.target[dim], tuple(free))
    for count in range(1, len(wanted) + 1):
        yield from itertools.combinations(wanted, count)


def _next_in_place(goal: tuple[int, ...], labels: tuple[int, ...], free: list[int]) -> tuple[int, ...]:
    """Free labels that would stand in their final place if appended."""
    if goal[: len(labels)] != labels:
        return tuple(label for label in goal if label in free)
    return tuple(itertools.takewhile(free.__contains__, goal[len(labels) :]))


def _all_gathers(state: State, settled: list[int]) -> Iterator[Move]:
    """Drop minor-most labels of a dimension."""
    for dim, labels in enumerate(state.dims):
        for keep in range(settled[dim], len(labels)):
            dropped = labels[keep:]
            after = State(_replaced(state.dims, dim, labels[:keep]), state.partial)
            yield Move("all-gather", dropped, dim, -1, tuple(sorted(dropped)), after)


def _all_to_alls(puzzle: Puzzle, state: State, settled: list[int]) -> Iterator[Move]:
    """Move minor-most labels of a dimension to the minor place of another, order kept."""
    for dim, labels in enumerate(state.dims):
        for keep in range(settled[dim], len(labels)):
            moved = labels[keep:]
            group = tuple(sorted(moved))
            without = _replaced(state.dims, dim, labels[:keep])
            for to_dim, to_labels in enumerate(state.dims):
                if puzzle.large and (*to_labels, moved[0]) != puzzle.target[to_dim][: len(to_labels) + 1]:
                    continue
                if to_dim != dim and puzzle.fits(to_dim, to_labels + moved):
                    after = State(_replaced(without, to_dim, to_labels + moved), state.partial)
                    yield Move("all-to-all", moved, dim, to_dim, group, after)


def _permutes(puzzle: Puzzle, state: State, settled: list[int], free: list[int]) -> Iterator[Move]:
    """Put other labels, or the same in another order, where the local shape stays the same."""
    loose = [label for labels, count in zip(state.dims, settled) for label in labels[count:]]
    if not loose or len(loose) + len(free) == 1:
        return
    pool = sorted(loose + free)
    arrangements = _towards_goal if puzzle.large else _any_order
    for arrangement in arrangements(puzzle, state, settled, pool):
        after = _arranged(puzzle, state.dims, settled, arrangement)
        if after is not None:
            group = {x for old, new in zip(state.dims, after) if old != new for x in {*old, *new}}
            group -= {x for old, new in zip(state.dims, after) for x, y in zip(old, new) if x == y}
            yield Move("collective-permute", (), -1, -1, tuple(sorted(group)), State(after, state.partial))


def _arranged(puzzle: Puzzle, dims: Dims, settled: list[int], arrangement: tuple[int, ...]) -> Dims | None:
    """The dimensions with their loose places filled, or None if that changes nothing or the local shape."""
    after, start = [], 0
    for labels, count in zip(dims, settled):
        stop = start + len(labels) - count
        new = labels[:count] + arrangement[start:stop]
        if puzzle.pieces(new) != puzzle.pieces(labels):
            return None
        after.append(new)
        start = stop
    return None if tuple(after) == dims else tuple(after)


def _any_order(
    puzzle: Puzzle, state: State, settled: list[int], pool: list[int]
) -> Iterator[tuple[int, ...]]:
    """All arrangements of the pool in the loose places."""
    num_loose = sum(len(labels) - count for labels, count in zip(state.dims, settled))
    return itertools.permutations(pool, num_loose)


def _towards_goal(
    puzzle: Puzzle, state: State, settled: list[int], pool: list[int]
) -> Iterator[tuple[int, ...]]:
    """For each set of dimensions: their places as the target has them, the others with what is left."""
    loose = [dim for dim, labels in enumerate(state.dims) if len(labels) > settled[dim]]
    for count in range(1, len(loose) + 1):
        for chosen in itertools.combinations(loose, count):
            goal = {dim: puzzle.target[dim][settled[dim] : len(state.dims[dim])] for dim in chosen}
            taken = {label for labels in goal.values() for label in labels}
            if not taken.issubset(pool):
                continue
            rest = [x for dim in loose for x in state.dims[dim][settled[dim] :] if x not in taken]
            rest += [x for x in pool if x not in taken and x not in rest]
            arrangement: list[int] = []
            for dim in loose:
                new = list(goal.get(dim, ()))
                while len(new) < len(state.dims[dim]) - settled[dim]:
                    new.append(rest.pop(0))
                arrangement += new
            yield tuple(arrangement)


def _reductions(puzzle: Puzzle, state: State) -> Iterator[Move]:
    """Sum over partial labels: scattered to the minor place of a dimension, or kept whole."""
    for chosen in _summed(puzzle, state.partial):
        left = tuple(label for label in state.partial if label not in chosen)
        for dim, labels in enumerate(state.dims):
            order = _in_order_of(puzzle.target[dim], chosen)
            if puzzle.fits(dim, labels + order):
                after = State(_replaced(state.dims, dim, labels + order), left)
                yield Move("reduce-scatter", order, dim, -1, chosen, after)
        yield Move("all-reduce", chosen, -1, -1, chosen, State(state.dims, left))


def _summed(puzzle: Puzzle, partial: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Sets of labels to sum over at once: every one; in a large puzzle all labels and those of one home."""
    if not puzzle.large:
        counts = range(1, len(partial) + 1)
        return [chosen for count in counts for chosen in itertools.combinations(partial, count)]
    homes = [tuple(label for label in partial if label in goal) for goal in puzzle.target]
    homes.append(tuple(label for label in partial if not any(label in goal for goal in puzzle.target)))
    return list(dict.fromkeys(filter(None, [*homes, partial])))


def _in_order_of(goal: tuple[int, ...], labels: tuple[int, ...]) -> tuple[int, ...]:
    """Labels as the goal orders them, then those that it lacks."""
    wanted = [label for label in goal if label in labels]
    return (*wanted, *(label for label in labels if label not in wanted))


def most_pieces(puzzle: Puzzle) -> int:
    """Pieces of a tensor that all labels split."""
    return math.prod(puzzle.sizes)
