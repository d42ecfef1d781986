"""The primitive steps of resharding on labels, and which of them are tried.

Without a target all steps are allowed, in all orders. With one, only those that bring labels towards their final
place are tried, and a label in its final place, with all labels major to it in theirs, is not moved again: that
is for puzzles of many labels, whose number of steps otherwise grows as the factorial.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

Dims = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What decides the moves from a state.

    Attributes:
      caps: per dimension, the number that its splits must divide.
      sizes: per label, its number of devices.
      levels: per label, the level of the machine that it belongs to.
      target: labels of each dimension in the end, major to minor; None where every move is allowed.
    """

    caps: tuple[int, ...]
    sizes: tuple[int, ...]
    levels: tuple[int, ...]
    target: Dims | None = None

    def pieces(self, labels: tuple[int, ...]) -> int:
        """Product of the sizes of labels."""
        return math.prod(map(self.sizes.__getitem__, labels))

    def fits(self, dim: int, labels: tuple[int, ...]) -> bool:
        """Whether the dimension can be split by the labels."""
        return self.caps[dim] % self.pieces(labels) == 0

    def settled(self, dims: Dims) -> list[int]:
        """Per dimension, how many labels are in their final place and stay there."""
        if self.target is None:
            return [0] * len(dims)
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


def _move(
    kind: str,
    labels: tuple[int, ...],
    dim: int,
    to_dim: int,
    group: tuple[int, ...],
    dims: Dims,
    partial: tuple[int, ...],
) -> Move:
    """A move, made in half of the time that its own constructors take: there are a million of them."""
    return tuple.__new__(Move, (kind, labels, dim, to_dim, group, tuple.__new__(State, (dims, partial))))


def moves(rules: Rules, state: State) -> Iterator[Move]:
    """Every primitive step from a state that keeps all dimensions divisible, in the stated order of kinds."""
    settled = rules.settled(state.dims)
    used = {label for dim in state.dims for label in dim}.union(state.partial)
    free = [label for label in range(len(rules.sizes)) if label not in used]
    if free:
        yield from _slices(rules, state, free)
    yield from _all_gathers(state, settled)
    yield from _all_to_alls(rules, state, settled)
    yield from _permutes(rules, state, settled, free)
    if state.partial:
        yield from _reductions(rules, state)


def _replaced(dims: Dims, dim: int, labels: tuple[int, ...]) -> Dims:
    return (*dims[:dim], labels, *dims[dim + 1 :])


def _slices(rules: Rules, state: State, free: list[int]) -> Iterator[Move]:
    """Append free labels to the minor place of a dimension."""
    for dim, labels in enumerate(state.dims):
        for chosen in _slices_of(rules, dim, labels, free):
            if rules.fits(dim, labels + chosen):
                after = _replaced(state.dims, dim, labels + chosen)
                yield _move("slice", chosen, dim, -1, (), after, state.partial)


def _slices_of(rules: Rules, dim: int, labels: tuple[int, ...], free: list[int]) -> Iterator[tuple[int, ...]]:
    if rules.target is None:
        for count in range(1, len(free) + 1):
            yield from itertools.permutations(free, count)
        return
    wanted = _next_in_place(rules.target[dim], labels, free)
    yield from (wanted[:count] for count in range(1, len(wanted) + 1))


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
            after = _replaced(state.dims, dim, labels[:keep])
            yield _move("all-gather", dropped, dim, -1, tuple(sorted(dropped)), after, state.partial)


def _all_to_alls(rules: Rules, state: State, settled: list[int]) -> Iterator[Move]:
    """Move minor-most labels of a dimension to the minor place of another, order kept."""
    for dim, labels in enumerate(state.dims):
        for keep in range(settled[dim], len(labels)):
            moved = labels[keep:]
            group = tuple(sorted(moved))
            without = _replaced(state.dims, dim, labels[:keep])
            for to_dim, to_labels in enumerate(state.dims):
                goal = rules.target[to_dim] if rules.target else None
                if goal is not None and goal[: len(to_labels) + 1] != (*to_labels, moved[0]):
                    continue
                if to_dim != dim and rules.fits(to_dim, to_labels + moved):
                    after = _replaced(without, to_dim, to_labels + moved)
                    yield _move("all-to-all", moved, dim, to_dim, group, after, state.partial)


def _permutes(rules: Rules, state: State, settled: list[int], free: list[int]) -> Iterator[Move]:
    """Put other labels, or the same in another order, where the local shape stays the same."""
    loose = [label for labels, count in zip(state.dims, settled) for label in labels[count:]]
    if not loose or len(loose) + len(free) == 1:
        return
    pool, before = sorted(loose + free), tuple(loose)
    is_even = len(set(rules.sizes)) == 1
    arrangements = _any_order if rules.target is None else _towards_goal
    for arrangement in arrangements(rules, state, settled, pool):
        after = None if arrangement == before else _arranged(rules, state.dims, settled, arrangement, is_even)
        if after is not None:
            group = {x for pair in zip(before, arrangement) if pair[0] != pair[1] for x in pair}
            yield _move("collective-permute", (), -1, -1, tuple(sorted(group)), after, state.partial)


def _arranged(
    rules: Rules, dims: Dims, settled: list[int], arrangement: tuple[int, ...], is_even: bool
) -> Dims | None:
    """The dimensions with their loose places filled, or None if that changes the local shape: never where all labels
    have one size (`is_even`)."""
    after, start = [], 0
    for labels, count in zip(dims, settled):
        stop = start + len(labels) - count
        new = labels[:count] + arrangement[start:stop]
        if not is_even and rules.pieces(new) != rules.pieces(labels):
            return None
        after.append(new)
        start = stop
    return tuple(after)


def _any_order(rules: Rules, state: State, settled: list[int], pool: list[int]) -> Iterator[tuple[int, ...]]:
    """All arrangements of the pool in the loose places."""
    num_loose = sum(len(labels) - count for labels, count in zip(state.dims, settled))
    return itertools.permutations(pool, num_loose)


def _towards_goal(
    rules: Rules, state: State, settled: list[int], pool: list[int]
) -> Iterator[tuple[int, ...]]:
    """For each set of dimensions: their places as the target has them, the others with what is left."""
    assert rules.target is not None
    loose = [dim for dim, labels in enumerate(state.dims) if len(labels) > settled[dim]]
    for count in range(1, len(loose) + 1):
        for chosen in itertools.combinations(loose, count):
            goal = {dim: rules.target[dim][settled[dim] : len(state.dims[dim])] for dim in chosen}
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


def _reductions(rules: Rules, state: State) -> Iterator[Move]:
    """Sum over partial labels: scattered to the minor place of a dimension, or kept whole."""
    for chosen in _summed(rules, state.partial):
        left = tuple(label for label in state.partial if label not in chosen)
        for dim, labels in enumerate(state.dims):
            for order in _orders(rules, dim, chosen):
                if rules.fits(dim, labels + order):
                    after = _replaced(state.dims, dim, labels + order)
                    yield _move("reduce-scatter", order, dim, -1, chosen, after, left)
        yield _move("all-reduce", chosen, -1, -1, chosen, state.dims, left)


def _summed(rules: Rules, partial: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Sets of labels to sum over at once: every one; towards a target all labels and those of one home."""
    if rules.target is None:
        counts = range(1, len(partial) + 1)
        return [chosen for count in counts for chosen in itertools.combinations(partial, count)]
    homes = [tuple(label for label in partial if label in goal) for goal in rules.target]
    homes.append(tuple(label for label in partial if not any(label in goal for goal in rules.target)))
    return list(dict.fromkeys(filter(None, [*homes, partial])))


def _orders(rules: Rules, dim: int, labels: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Orders in which a dimension may receive labels: all, or as its target has them, then those it lacks."""
    if rules.target is None:
        yield from itertools.permutations(labels)
        return
    wanted = [label for label in rules.target[dim] if label in labels]
    yield (*wanted, *(label for label in labels if label not in wanted))
