"""Cheapest chains of steps on a board, from all its states to one, for one size of the tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxplan.mesh._board import KINDS, Board, Ints, State, board
from jaxplan.mesh._collectives import group_seconds, terms_of_sizes
from jaxplan.mesh._topology import Topology

Floats = npt.NDArray[np.float64]

# Times nearer to each other than this share are equal: sums of the same terms in another order are.
_ROUNDING = 1e-12
# More than the bytes of any chain, in units of the finest piece.
_COLLECTIVE = 1 << 32


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


class Chain(NamedTuple):
    """Steps to the goal: seconds in all, those that no bytes take, and kind, group and state after each step."""

    seconds: float
    latency: float
    steps: tuple[tuple[str, tuple[int, ...], State], ...]


class _Prices:
    """Steps of a board by their price: those of one kind, group and number of pieces have one."""

    def __init__(self, game: Game) -> None:
        self.game, self.board = game, board(game.caps, game.sizes)
        b, num_labels = self.board, len(game.sizes)
        most = int(b.pieces.max(initial=1)) + 1
        keys, self.key = np.unique((b.kind << num_labels | b.group) * most + b.pieces, return_inverse=True)
        kind_and_group, self._pieces = np.divmod(keys, most)
        labels = range(num_labels)
        spans = {
            one: (KINDS[one >> num_labels], game.spans(x for x in labels if one >> x & 1))
            for one in set(kind_and_group.tolist())
        }
        self._steps = [
            (*spans[one], pieces) for one, pieces in zip(kind_and_group.tolist(), self._pieces.tolist())
        ]
        if game.topology.profile is None:
            self._lines = [
                np.array(column) for column in zip(*(self._line(*step[:2]) for step in self._steps))
            ]
        # Fewer collectives, then fewer bytes, break ties: both in one number.
        whole = math.prod(game.sizes)
        is_slice = kind_and_group >> num_labels == 0
        self.tie: Ints = np.where(is_slice, 0, _COLLECTIVE + whole // self._pieces)[self.key]

    def _line(self, kind: str, spans: tuple[int, ...]) -> tuple[float, float]:
        if kind == "slice":
            return self.game.topology.chip.launch_seconds, 0.0
        return terms_of_sizes(self.game.topology, kind, spans)

    def of_step(self, step: int, num_bytes: float) -> float:
        """Seconds of one step for a tensor of so many bytes."""
        return self._seconds(*self._steps[self.key[step]], num_bytes)

    def _seconds(self, kind: str, spans: tuple[int, ...], pieces: int, num_bytes: float) -> float:
        if kind == "slice":
            return self.game.topology.chip.launch_seconds
        return group_seconds(self.game.topology, kind, num_bytes / pieces, spans)

    def at(self, num_bytes: float) -> Floats:
        """Seconds of each step for a tensor of so many bytes."""
        if not self._steps:
            return np.zeros(0)
        if self.game.topology.profile is not None:
            return np.array([self._seconds(*step, num_bytes) for step in self._steps])[self.key]
        fixed, slope = self._lines
        return (fixed + slope * (num_bytes / self._pieces))[self.key]


class BoardSolver:
    """Cheapest chains to one state of a board."""

    def __init__(self, game: Game, goal: State) -> None:
        self._prices = _prices(game)
        self._board: Board = self._prices.board
        self._goal = self._board.index[goal]

    def seconds(self, source: State, num_bytes: float) -> float:
        """Of the cheapest chain; infinite where none leads to the goal."""
        return float(_solved(self, num_bytes)[self._board.index[source]])

    def chain(self, source: State, num_bytes: float) -> Chain:
        """The cheapest chain from a state that has one; ties go to fewer collectives, then fewer bytes, then the first
        step of the board."""
        return _chain(self, source, num_bytes)

    def bound(self, source: State, num_bytes: float) -> float:
        """Seconds that the cheapest chain is not below: its own."""
        return self.seconds(source, num_bytes)

    def follow(self, source: State, num_bytes: float) -> Chain:
        """`chain`, without a memory."""
        b, first, prices = self._board, _first_steps(self, num_bytes), self._prices
        place, seconds, latency, steps = b.index[source], 0.0, 0.0, []
        while place != self._goal:
            step = int(first[place])
            place = int(b.target[step])
            seconds += prices.of_step(step, num_bytes)
            latency += prices.of_step(step, 0.0)
            group = tuple(x for x in range(len(prices.game.sizes)) if int(b.group[step]) >> x & 1)
            steps.append((KINDS[int(b.kind[step])], group, b.states[place]))
        return Chain(seconds, latency, tuple(steps))

    def solve(self, num_bytes: float) -> Floats:
        """(S,) seconds of the cheapest chain from each state, by rounds of Bellman and Ford."""
        b, weight = self._board, self._prices.at(num_bytes)
        best = np.full(len(b.states), np.inf)
        best[self._goal] = 0.0
        while len(weight):
            least = np.minimum.reduceat(best[b.target] + weight, b.starts)
            least = np.minimum(least, best[b.movable])
            if np.array_equal(least, best[b.movable]):
                break
            best[b.movable] = least
        return best

    def first_steps(self, num_bytes: float) -> Ints:
        """(S,) the first step of the cheapest chain from each state, -1 where there is none."""
        b, best = self._board, _solved(self, num_bytes)
        through = best[b.target] + self._prices.at(num_bytes)
        tight = np.flatnonzero((through <= best[b.source] * (1 + _ROUNDING)) & np.isfinite(through))
        tight = tight[b.source[tight] != self._goal]
        source, target, tie = b.source[tight], b.target[tight], self._prices.tie[tight]
        movable, starts = np.unique(source, return_index=True)
        fewest = np.full(len(b.states), np.iinfo(np.int64).max // 2)
        fewest[self._goal] = 0
        while len(tight):
            least = np.minimum.reduceat(fewest[target] + tie, starts)
            if np.array_equal(least, fewest[movable]):
                break
            fewest[movable] = least
        first = np.full(len(b.states), -1)
        chosen = np.flatnonzero(fewest[target] + tie == fewest[source])[::-1]
        first[source[chosen]] = tight[chosen]  # in reverse: the first one is written last
        return first


@lru_cache(maxsize=2**8)
def _prices(game: Game) -> _Prices:
    return _Prices(game)


@lru_cache(maxsize=2**11)
def _solved(solver: BoardSolver, num_bytes: float) -> Floats:
    return solver.solve(num_bytes)


@lru_cache(maxsize=2**9)
def _first_steps(solver: BoardSolver, num_bytes: float) -> Ints:
    return solver.first_steps(num_bytes)


@lru_cache(maxsize=2**16)
def _chain(solver: BoardSolver, source: State, num_bytes: float) -> Chain:
    return solver.follow(source, num_bytes)
