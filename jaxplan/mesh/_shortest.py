"""Cheapest chains of steps on a board, from all its states to one, for one size of the tensor.

A permute with a price that depends only on its levels is not listed: one leads from a state to every state of
its class, so the cheapest is found by the least of each class. There are three times as many permutes as other steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxplan.mesh._board import KINDS, PERMUTE, Classes, Steps, board
from jaxplan.mesh._collectives import group_seconds, terms_of_sizes
from jaxplan.mesh._states import Ints, State
from jaxplan.mesh._symmetry import Symmetry, orbits, symmetry
from jaxplan.mesh._topology import Topology

Floats = npt.NDArray[np.float64]

# Times nearer to each other than this share are equal: sums of the same terms in another order are.
_ROUNDING = 1e-12
# More than the bytes of any chain, in units of the finest piece.
_COLLECTIVE = 1 << 32
_NEVER = np.iinfo(np.int64).max // 2


class Game(NamedTuple):
    """A board on a machine: ``levels`` holds, for each label, the level that it belongs to."""

    caps: tuple[int, ...]
    sizes: tuple[int, ...]
    levels: tuple[int, ...]
    topology: Topology

    def spans(self, group: Iterable[int]) -> tuple[int, ...]:
        """How many children of each level a group of labels spans."""
        spans = [1] * len(self.topology.levels)
        for label in group:
            spans[self.levels[label]] *= self.sizes[label]
        return tuple(spans)

    def seconds(self, kind: str, group: Iterable[int], pieces: int, num_bytes: float) -> float:
        """Seconds of a step for a tensor of so many bytes, the larger side of which is split into ``pieces``."""
        if kind == "slice":
            return self.topology.chip.launch_seconds
        return group_seconds(self.topology, kind, num_bytes / pieces, self.spans(group))


class Chain(NamedTuple):
    """Steps to the goal: seconds in all, those that no bytes take, and kind, group and state after each step."""

    seconds: float
    latency: float
    steps: tuple[tuple[str, tuple[int, ...], State], ...]


class _Prices:
    """Prices of the listed steps of a board, of which those of one kind, group and number of pieces have one, and of
    permutes over each set of levels, by classes of states."""

    def __init__(self, game: Game) -> None:
        self.game, self.board = game, board(game.caps, game.sizes)
        # By levels alone: a part of a ring has half of its rate, and a profile has any price for any group.
        listed = game.topology.profile is not None or any(level.link.wraps for level in game.topology.levels)
        self.steps: Steps = self.board.all_steps if listed else self.board.steps
        self.permutes = [] if listed else list(self._by_levels())
        # Fewer collectives, then fewer bytes, break ties: both in one number.
        self.whole = math.prod(game.sizes)
        self.tie: Ints = np.where(self.steps.kind == 0, 0, _COLLECTIVE + self.whole // self.steps.pieces)

    def _by_levels(self) -> Iterable[tuple[Classes, float, float]]:
        """Classes of states, and seconds and seconds per byte of a permute within one."""
        present = sorted(set(self.game.levels))
        for count in range(1, len(present) + 1):
            for levels in itertools.combinations(present, count):
                changing = tuple(level in levels for level in self.game.levels)
                spans = self.game.spans(x for x, changes in enumerate(changing) if changes)
                terms = terms_of_sizes(self.game.topology, "collective-permute", spans)
                yield self.board.classes(changing), *terms

    @cached_property
    def keys(self) -> tuple[list[tuple[str, tuple[int, ...], int]], Ints]:
        """Kind, group and pieces of every price, and which of them each step has."""
        steps, num_labels = self.steps, len(self.game.sizes)
        most = int(steps.pieces.max(initial=1)) + 1
        codes = (steps.kind << num_labels | steps.group) * most + steps.pieces
        is_there = np.zeros(int(codes.max(initial=0)) + 1, dtype=bool)
        is_there[codes] = True
        keys, key = np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[codes]
        kind_and_group, pieces = np.divmod(keys, most)
        found = [
            (KINDS[one >> num_labels], labels_of(one & ((1 << num_labels) - 1)), n)
            for one, n in zip(kind_and_group.tolist(), pieces.tolist())
        ]
        return found, key

    @cached_property
    def _lines(self) -> tuple[Floats, Floats]:
        """Seconds, and seconds per byte, of every price, where prices are lines in the bytes."""
        fixed = [self.game.seconds(*key, 0.0) for key in self.keys[0]]
        slope = [
            0.0
            if kind == "slice"
            else terms_of_sizes(self.game.topology, kind, self.game.spans(group))[1] / n
            for kind, group, n in self.keys[0]
        ]
        return np.array(fixed), np.array(slope)

    def at(self, num_bytes: float, some: slice = slice(None)) -> Floats:
        """Seconds of some steps, or all, for a tensor of so many bytes."""
        return _of_keys(self, num_bytes)[self.keys[1][some]]

    def of_keys(self, num_bytes: float) -> Floats:
        """The prices of a tensor of so many bytes."""
        if self.game.topology.profile is not None:
            return np.array([self.game.seconds(*one, num_bytes) for one in self.keys[0]], dtype=np.float64)
        fixed, slope = self._lines
        return fixed + slope * num_bytes

    def permutes_at(self, num_bytes: float) -> list[tuple[Classes, Floats]]:
        """Classes of states, and (S,) seconds of a permute from each state within its class."""
        return [
            (classes, fixed + slope * (num_bytes / self.board.pieces))
            for classes, fixed, slope in self.permutes
        ]


def labels_of(bits: int) -> tuple[int, ...]:
    """The labels of a group."""
    return tuple(x for x in range(bits.bit_length()) if bits >> x & 1)


def _least_of(classes: Classes, values: npt.NDArray) -> npt.NDArray:
    """(S,) the least value in the class of each state."""
    return np.minimum.reduceat(values[classes.order], classes.starts)[classes.of_state]


class _ClassPermutes(NamedTuple):
    """Permutes between classes of states that are alike as seen from a goal: ``members`` are the classes that have a
    state in each class of the board between which a permute leads, ``starts`` where those of each begin, ``of_class``
    (C,) the class of the board that holds the first state of each."""

    members: Ints
    starts: Ints
    of_class: Ints

    @classmethod
    def of(cls, classes: Classes, of_state: Ints, first: Ints) -> _ClassPermutes:
        pairs = np.unique(classes.of_state * len(first) + of_state)
        among, members = np.divmod(pairs, len(first))
        return cls(members, np.flatnonzero(np.diff(among, prepend=-1)), classes.of_state[first])

    def least(self, values: Floats) -> Floats:
        """(C,) the least value in the class of the board."""
        return np.minimum.reduceat(values[self.members], self.starts)[self.of_class]


class _ClassSteps(NamedTuple):
    """Steps between classes of states that are alike as seen from a goal.

    Attributes:
      of_state, first: (S,) the class of each state, (C,) the first state of each class.
      rows, key, target: steps of these first states, the price of each and the class that it leads to.
      source, starts: classes that steps lead from, and where the steps of each begin.
      permutes: those of each set of levels.
    """

    of_state: Ints
    first: Ints
    rows: Ints
    key: Ints
    target: Ints
    source: Ints
    starts: Ints
    permutes: tuple[_ClassPermutes, ...]


@lru_cache(maxsize=2**8)
def _steps_of_classes(prices: _Prices, alike: Symmetry) -> _ClassSteps:
    of_state, first = orbits(prices.game.caps, prices.game.sizes, alike)
    is_first = np.zeros(len(of_state), dtype=bool)
    is_first[first] = True
    rows = np.flatnonzero(is_first[prices.steps.source])
    sources = prices.steps.source[rows]
    starts = np.flatnonzero(np.diff(sources, prepend=-1))
    target = of_state[prices.steps.target[rows]]
    permutes = tuple(_ClassPermutes.of(classes, of_state, first) for classes, *_ in prices.permutes)
    source, key = of_state[sources[starts]], prices.keys[1][rows]
    return _ClassSteps(of_state, first, rows, key, target, source, starts, permutes)


class BoardSolver:
    """Cheapest chains to one state of a board."""

    def __init__(self, game: Game, goal: State) -> None:
        self._prices = _prices(game)
        self._board = self._prices.board
        self._goal = self._board.table.position(goal)
        self._alike = _steps_of_classes(self._prices, symmetry(goal, game.caps, game.sizes, game.levels))

    def position(self, source: State) -> int:
        """The state, for the methods below."""
        return self._board.table.position(source)

    def seconds(self, source: int, num_bytes: float) -> float:
        """Of the cheapest chain; infinite where none leads to the goal."""
        return float(_solved(self, num_bytes)[source])

    def digit(self, label: int) -> int:
        """The digit of a label in the code of a state, see `StateTable`."""
        return int(self._board.table.digit[label])

    def positions(self, codes: Ints) -> Ints:
        """`position` of the states of these codes."""
        return np.searchsorted(self._board.table.codes, codes)

    def seconds_from(self, sources: Ints, num_bytes: float) -> Floats:
        """`seconds` from several states."""
        return _solved(self, num_bytes)[sources]

    def chain(self, source: int, num_bytes: float) -> Chain:
        """The cheapest chain from a state that has one; ties go to fewer collectives, then fewer bytes, then the first
        step of the board."""
        return _chain(self, source, num_bytes)

    def bound(self, source: int, num_bytes: float) -> float:
        """Seconds that the cheapest chain is not below: its own."""
        return self.seconds(source, num_bytes)

    def solve(self, num_bytes: float) -> Floats:
        """(S,) seconds of the cheapest chain from each state, by rounds of Bellman and Ford over classes of states."""
        prices, steps, weight = self._prices, self._alike, _of_keys(self._prices, num_bytes)[self._alike.key]
        permutes = [seconds[steps.first] for _, seconds in prices.permutes_at(num_bytes)]
        best = np.full(len(steps.first), np.inf)
        best[steps.of_state[self._goal]] = 0.0
        while True:
            after = best.copy()
            if len(weight):
                through = np.minimum.reduceat(best[steps.target] + weight, steps.starts)
                after[steps.source] = np.minimum(best[steps.source], through)
            for of, seconds in zip(steps.permutes, permutes, strict=True):
                np.minimum(after, of.least(best) + seconds, out=after)
            if np.array_equal(after, best):
                return best[steps.of_state]
            best = after

    def ties(self, num_bytes: float) -> Ints:
        """(S,) collectives and bytes of the chain of fewest, among the cheapest, from each state."""
        prices, steps, every = self._prices, self._alike, _solved(self, num_bytes)
        best, first = every[steps.first], steps.first
        enough = best * (1 + _ROUNDING)
        through = best[steps.target] + _of_keys(prices, num_bytes)[steps.key]
        counts = np.diff(steps.starts, append=len(through))
        tight = np.flatnonzero((through <= np.repeat(enough[steps.source], counts)) & np.isfinite(through))
        source, target = np.repeat(steps.source, counts)[tight], steps.target[tight]
        tie, starts = prices.tie[steps.rows[tight]], np.flatnonzero(np.diff(source, prepend=-1))
        movable = source[starts]
        permutes = [
            (
                classes,
                every <= _least_of(classes, every) * (1 + _ROUNDING),
                (_least_of(classes, every) + seconds)[first] <= enough,
            )
            for classes, seconds in prices.permutes_at(num_bytes)
        ]
        of_permute = (_COLLECTIVE + prices.whole // self._board.pieces)[first]
        fewest = np.full(len(best), _NEVER)
        fewest[steps.of_state[self._goal]] = 0
        while True:
            after = fewest.copy()
            if len(tight):
                after[movable] = np.minimum(
                    fewest[movable], np.minimum.reduceat(fewest[target] + tie, starts)
                )
            for classes, is_least, is_tight in permutes:
                few = np.where(is_least, fewest[steps.of_state], _NEVER)
                np.minimum(after, np.where(is_tight, _least_of(classes, few)[first] + of_permute, _NEVER), out=after)
            if np.array_equal(after, fewest):
                return fewest[steps.of_state]
            fewest = after

    def follow(self, source: int, num_bytes: float) -> Chain:
        """`chain`, without a memory."""
        game, place, seconds, latency, steps = self._prices.game, source, 0.0, 0.0, []
        while place != self._goal:
            kind, group, pieces, place = _first(self, place, num_bytes)
            seconds += game.seconds(kind, group, pieces, num_bytes)
            latency += game.seconds(kind, group, pieces, 0.0)
            steps.append((kind, group, self._board.table.state(place)))
        return Chain(seconds, latency, tuple(steps))

    def first(self, place: int, num_bytes: float) -> tuple[str, tuple[int, ...], int, int]:
        """Kind, group, pieces and state after the first step of the chain from a state."""
        prices, steps = self._prices, self._prices.steps
        best, ties = _solved(self, num_bytes), _ties(self, num_bytes)
        enough, tie = best[place] * (1 + _ROUNDING), ties[place]
        low, high = (
            np.searchsorted(steps.source, place, "left"),
            np.searchsorted(steps.source, place, "right"),
        )
        target = steps.target[low:high]
        is_next = best[target] + prices.at(num_bytes, slice(low, high)) <= enough
        is_next &= ties[target] + prices.tie[low:high] == tie
        chosen = [(int(steps.kind[i]), i) for i in (low + np.flatnonzero(is_next)[:1]).tolist()]
        if not chosen or chosen[0][0] > PERMUTE:
            after = self._permuted(place, enough, tie, num_bytes)
            if after is not None:
                group = self._board.moved(np.array([place]), np.array([after]))[0]
                return KINDS[PERMUTE], labels_of(int(group)), int(self._board.pieces[place]), after
        kind, i = chosen[0]
        return KINDS[kind], labels_of(int(steps.group[i])), int(steps.pieces[i]), int(steps.target[i])

    def _permuted(self, place: int, enough: float, tie: int, num_bytes: float) -> int | None:
        """The state after a permute with which the chain from a state begins, or None."""
        best, ties = _solved(self, num_bytes), _ties(self, num_bytes)
        of_permute = _COLLECTIVE + self._prices.whole // int(self._board.pieces[place])
        for classes, fixed, slope in self._prices.permutes:
            seconds = fixed + slope * (num_bytes / self._board.pieces[place])
            members = classes.members(place)
            is_next = (best[members] + seconds <= enough) & (ties[members] + of_permute == tie)
            if is_next.any():
                return int(members[np.argmax(is_next)])
        return None


@lru_cache(maxsize=2**12)
def board_solver(game: Game, goal: State) -> BoardSolver:
    """The solver of a board towards one state, which keeps its prices for all sources."""
    return BoardSolver(game, goal)


@lru_cache(maxsize=2**8)
def _prices(game: Game) -> _Prices:
    return _Prices(game)


@lru_cache(maxsize=2**11)
def _of_keys(prices: _Prices, num_bytes: float) -> Floats:
    return prices.of_keys(num_bytes)


@lru_cache(maxsize=2**11)
def _solved(solver: BoardSolver, num_bytes: float) -> Floats:
    return solver.solve(num_bytes)


@lru_cache(maxsize=2**8)
def _ties(solver: BoardSolver, num_bytes: float) -> Ints:
    return solver.ties(num_bytes)


@lru_cache(maxsize=2**16)
def _first(solver: BoardSolver, place: int, num_bytes: float) -> tuple[str, tuple[int, ...], int, int]:
    return solver.first(place, num_bytes)


@lru_cache(maxsize=2**16)
def _chain(solver: BoardSolver, source: int, num_bytes: float) -> Chain:
    return solver.follow(source, num_bytes)
