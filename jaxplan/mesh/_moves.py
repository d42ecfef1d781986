"""Steps that bring labels towards one target, for boards of too many states to list them all.

A label in its final place, with all labels major to it in theirs, is not moved again. Labels that are idle may be
appended anywhere on the way, for smaller pieces are quicker summed and moved between nodes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from jaxplan.mesh._states import Dims, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The parameters that decide the moves from a state.

    Attributes:
      caps: per dimension, the number that its splits must divide.
      sizes: per label, its number of devices.
      target: labels of each dimension in the end, major to minor.
    """

    caps: tuple[int, ...]
    sizes: tuple[int, ...]
    target: Dims

    def pieces(self, labels: tuple[int, ...]) -> int:
        """Product of the sizes of labels."""
        return math.prod(map(self.sizes.__getitem__, labels))

    def fits(self, dim: int, labels: tuple[int, ...]) -> bool:
        """Whether the dimension can be split by the labels."""
        return self.caps[dim] % self.pieces(labels) == 0

    def settled(self, dims: Dims) -> list[int]:
        """Per dimension, how many labels are in their final place and stay there."""
        counts = []
        for labels, goal in zip(dims, self.target):
            count = 0
            while count < len(labels) and count < len(goal) and labels[count] == goal[count]:
                count += 1
            counts.append(count)
        return counts


class Move(NamedTuple):
    """One step: the labels that communicate, and the state after it."""

    kind: str
    group: tuple[int, ...]
    state: State


def _move(kind: str, group: tuple[int, ...], dims: Dims, partial: tuple[int, ...]) -> Move:
    """A move, made in half of the time that its own constructors take: there are a million of them."""
    return tuple.__new__(Move, (kind, group, tuple.__new__(State, (dims, partial))))


def moves(rules: Rules, state: State) -> Iterator[Move]:
    """The steps from a state that keep all dimensions divisible."""
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
    """Append free labels to the minor place of a dimension: those that would stand in their final place, any one, or
    all that fit."""
    for dim, labels in enumerate(state.dims):
        wanted = _next_in_place(rules.target[dim], labels, free)
        chosen = [wanted[:count] for count in range(1, len(wanted) + 1)]
        chosen += [(label,) for label in free]
        chosen.append(_as_many_as_fit(rules, dim, labels, free))
        for added in dict.fromkeys(filter(None, chosen)):
            if rules.fits(dim, labels + added):
                yield _move("slice", (), _replaced(state.dims, dim, labels + added), state.partial)


def _next_in_place(goal: tuple[int, ...], labels: tuple[int, ...], free: list[int]) -> tuple[int, ...]:
    """Free labels that would stand in their final place if appended."""
    if goal[: len(labels)] != labels:
        return tuple(label for label in goal if label in free)
    return tuple(itertools.takewhile(free.__contains__, goal[len(labels) :]))


def _as_many_as_fit(rules: Rules, dim: int, labels: tuple[int, ...], free: list[int]) -> tuple[int, ...]:
    """Free labels one after the other, innermost levels first, but those with which the dimension does not fit."""
    added: tuple[int, ...] = ()
    for label in reversed(free):
        if rules.fits(dim, (*labels, label, *added)):
            added = (label, *added)
    return added


def _all_gathers(state: State, settled: list[int]) -> Iterator[Move]:
    """Drop minor-most labels of a dimension."""
    for dim, labels in enumerate(state.dims):
        for keep in range(settled[dim], len(labels)):
            after = _replaced(state.dims, dim, labels[:keep])
            yield _move("all-gather", tuple(sorted(labels[keep:])), after, state.partial)


def _all_to_alls(rules: Rules, state: State, settled: list[int]) -> Iterator[Move]:
    """Move minor-most labels of a dimension to the minor place of another, order kept."""
    for dim, labels in enumerate(state.dims):
        for keep in range(settled[dim], len(labels)):
            moved = labels[keep:]
            without = _replaced(state.dims, dim, labels[:keep])
            for to_dim, to_labels in enumerate(state.dims):
                if rules.target[to_dim][: len(to_labels) + 1] != (*to_labels, moved[0]):
                    continue
                if to_dim != dim and rules.fits(to_dim, to_labels + moved):
                    after = _replaced(without, to_dim, to_labels + moved)
                    yield _move("all-to-all", tuple(sorted(moved)), after, state.partial)


def _permutes(rules: Rules, state: State, settled: list[int], free: list[int]) -> Iterator[Move]:
    """Put other labels, or the same in another order, where the local shape stays the same."""
    loose = [label for labels, count in zip(state.dims, settled) for label in labels[count:]]
    if not loose or len(loose) + len(free) == 1:
        return
    pool, before = sorted(loose + free), tuple(loose)
    is_even = len(set(rules.sizes)) == 1
    for arrangement in _towards_goal(rules, state, settled, pool):
        after = None if arrangement == before else _arranged(rules, state.dims, settled, arrangement, is_even)
        if after is not None:
            group = _changed(rules, state.dims, after)
            yield _move("collective-permute", group, after, state.partial)


def _changed(rules: Rules, before: Dims, after: Dims) -> tuple[int, ...]:
    """Labels that change their dimension or their stride in it."""
    here, there = _strides(rules, before), _strides(rules, after)
    return tuple(x for x in range(len(rules.sizes)) if here.get(x) != there.get(x))


def _strides(rules: Rules, dims: Dims) -> dict[int, tuple[int, int]]:
    found = {}
    for dim, labels in enumerate(dims):
        stride = 1
        for label in reversed(labels):
            found[label] = dim, stride
            stride *= rules.sizes[label]
    return found


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


def _towards_goal(
    rules: Rules, state: State, settled: list[int], pool: list[int]
) -> Iterator[tuple[int, ...]]:
    """For each set of dimensions: their places as the target has them, the others with the remaining axes."""
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
            wanted = [label for label in rules.target[dim] if label in chosen]
            order = (*wanted, *(label for label in chosen if label not in wanted))
            if rules.fits(dim, labels + order):
                after = _replaced(state.dims, dim, labels + order)
                yield _move("reduce-scatter", chosen, after, left)
        yield _move("all-reduce", chosen, state.dims, left)


def _summed(rules: Rules, partial: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Sets of labels to sum over at once: all, and those of one home."""
    homes = [tuple(label for label in partial if label in goal) for goal in rules.target]
    homes.append(tuple(label for label in partial if not any(label in goal for goal in rules.target)))
    return list(dict.fromkeys(filter(None, [*homes, partial])))
