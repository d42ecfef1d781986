"""Shortest chains on a board: from all states to one target at a few sizes by arrays, in between by A*.

The time to the target is concave in the bytes, so between two sizes it is at least the chord, which guides A* so
well that it hardly leaves the best chain.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxplan.mesh._board import board
from jaxplan.mesh._lines import (
    BOUND_TICKS,
    LEAST_BYTES,
    MOST_BYTES,
    ROUNDING_TICKS,
    TICKS_PER_SECOND,
    Cost,
    Line,
)
from jaxplan.mesh._moves import Rules, State
from jaxplan.mesh._topology import Topology

_SIZES = [LEAST_BYTES, 2.0**16, 2.0**20, 2.0**24, 2.0**28, MOST_BYTES]
_GRID = np.array(_SIZES)
NUM_SIZES = len(_GRID)
# More than the seconds by which a board breaks ties can add up to in a chain.
_MARGIN_SECONDS = 2e-11

# Stands for never in lower bounds: more than any chain that is looked for.
_MOST_SECONDS = 1e9


def size_above(num_bytes: float) -> int:
    """The first size of the grid, but for the least, that is not below so many bytes; else the last."""
    return min(max(bisect.bisect_left(_SIZES, num_bytes), 1), NUM_SIZES - 1)


class _Column(NamedTuple):
    """Cheapest chains at one size of the grid, from each of S states.

    Attributes:
      move: position of the first move of the chain, -1 where there is none.
      bound: seconds that are needed at least.
    """

    move: npt.NDArray[np.int64]
    bound: npt.NDArray[np.float64]


class TableSearch:
    """Chains to `goal` from every state of a board."""

    def __init__(self, rules: Rules, goal: State, topology: Topology) -> None:
        self._board = board(rules.caps, rules.sizes, rules.levels, topology)
        self._goal = self._board.skeleton.index[goal]
        self._columns: dict[int, _Column] = {}

    def _column(self, k: int) -> _Column:
        """What is cheapest at the size k of the grid; found when it is first asked for."""
        if k not in self._columns:
            move = self._cheapest_moves(_GRID[k])
            fixed, slope = self._follow(move)
            bound = np.clip(fixed + slope * _GRID[k] - _MARGIN_SECONDS, 0.0, _MOST_SECONDS)
            self._columns[k] = _Column(move, bound)
        return self._columns[k]

    def _cheapest_moves(self, num_bytes: float) -> npt.NDArray[np.int64]:
        """(S,) the first move of a cheapest chain, by rounds of Bellman and Ford."""
        b = self._board
        weight = b.slope * num_bytes + b.fixed_with_ties
        best = np.full(len(b.skeleton.states), np.inf)
        best[self._goal] = 0.0
        while True:
            through = best[b.target] + weight
            after = best.copy()
            after[b.movable] = np.minimum(best[b.movable], np.minimum.reduceat(through, b.starts))
            if np.array_equal(after, best):
                break
            best = after
        position = np.where(through == best[b.source], np.arange(len(b.edges)), len(b.edges))
        first = np.full(best.shape, -1)
        first[b.movable] = np.minimum.reduceat(position, b.starts)
        first[self._goal] = -1
        first[~np.isfinite(best)] = -1
        return first

    def _follow(self, move: npt.NDArray[np.int64]) -> tuple[np.ndarray, np.ndarray]:
        """(S,) fixed seconds and slopes of the whole chains; infinite where there is none."""
        b = self._board
        moving = move >= 0
        step_fixed = np.where(moving, b.fixed[move], np.inf)
        step_slope = np.where(moving, b.slope[move], 0.0)
        step_fixed[self._goal] = 0.0
        after = np.where(moving, b.target[move], np.arange(len(moving)))
        fixed, slope, place = step_fixed, step_slope, after
        while (place != self._goal)[np.isfinite(fixed)].any():
            fixed = fixed + np.where(place == self._goal, 0.0, step_fixed[place])
            slope = slope + np.where(place == self._goal, 0.0, step_slope[place])
            place = after[place]
        return fixed, slope

    def lines(self, source: State) -> list[Line]:
        """The cheapest chains at the sizes of the grid, without repetition."""
        return list(dict.fromkeys(self.line(source, k) for k in range(NUM_SIZES)))

    def line(self, source: State, k: int) -> Line:
        """The cheapest chain at the size k of the grid."""
        chain, state, move = [], self._board.skeleton.index[source], self._column(k).move
        while state != self._goal:
            position = int(move[state])
            chain.append(position)
            state = int(self._board.target[position])
        return self._line(chain)

    def _line(self, chain: list[int]) -> Line:
        b = self._board
        moves = tuple(b.skeleton.moves[b.edges[position]] for position in chain)
        return Line(float(sum(b.fixed[chain])), float(sum(b.slope[chain])), moves)

    def cheaper(self, source: State, num_bytes: float, seconds: float) -> Line | None:
        """The cheapest chain at one size if it takes less than `seconds`, else None.

        A*: least time, then fewest collectives, then fewest bytes, then first found. What cannot beat `seconds` by
        its lower bound is never looked at, which is nearly everything.
        """
        b, least = self._board, self._least_ticks(num_bytes)
        limit = seconds * TICKS_PER_SECOND - ROUNDING_TICKS
        start = b.skeleton.index[source]
        best: dict[int, Cost] = {start: (0, 0, 0)}
        came: dict[int, tuple[int, int]] = {}
        heap = [((0, 0, 0), 0, (0, 0, 0), start)]
        counter = itertools.count(1)
        while heap:
            _, _, cost, state = heapq.heappop(heap)
            if state == self._goal:
                return self._trace(start, came)
            if cost > best[state]:
                continue
            low, high = b.ranges[state], b.ranges[state + 1]
            target = b.target[low:high]
            step = np.rint((b.fixed[low:high] + b.slope[low:high] * num_bytes) * TICKS_PER_SECOND)
            hopeful = np.flatnonzero(step + least[target] < limit - cost[0]).tolist()
            for i in hopeful:
                after, moved = int(target[i]), int(b.moved[low + i])
                total = (cost[0] + int(step[i]), cost[1] + (moved > 0), cost[2] + moved)
                if after not in best or total < best[after]:
                    best[after], came[after] = total, (state, low + i)
                    estimate = (total[0] + int(least[after]), total[1], total[2])
                    heapq.heappush(heap, (estimate, next(counter), total, after))
        return None

    def _least_ticks(self, num_bytes: float) -> npt.NDArray[np.float64]:
        """(S,) ticks that are needed at least from each state: the chord between two sizes of the grid."""
        high = size_above(num_bytes)
        share = (num_bytes - _GRID[high - 1]) / (_GRID[high] - _GRID[high - 1])
        low_bound, high_bound = self._column(high - 1).bound, self._column(high).bound
        return (low_bound * (1 - share) + high_bound * share) * BOUND_TICKS

    def _trace(self, start: int, came: dict[int, tuple[int, int]]) -> Line:
        chain, state = [], self._goal
        while state != start:
            state, position = came[state]
            chain.append(position)
        return self._line(chain[::-1])
