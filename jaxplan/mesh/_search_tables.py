"""Shortest chains on a board: from all states to one target at a few sizes by arrays, in between by A*.

The time to the target is concave in the bytes, so between two sizes it is at least the chord, which guides A* so
well that it hardly leaves the best chain.
"""

from __future__ import annotations

import functools
import heapq
import itertools

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

_GRID = np.array([LEAST_BYTES, 2.0**16, 2.0**20, 2.0**24, 2.0**28, MOST_BYTES])
# Ties go to fewer collectives, then to fewer bytes: so many seconds each, less than any two prices differ by.
_SECONDS_PER_COLLECTIVE, _SECONDS_PER_WHOLE = 1e-12, 1e-13
# More than those can add up to in a chain.
_MARGIN_SECONDS = 2e-11

# Stands for never in lower bounds: more than any chain that is looked for.
_MOST_SECONDS = 1e9


class TableSearch:
    """Chains to `goal` from every state of a board."""

    def __init__(self, rules: Rules, goal: State, topology: Topology) -> None:
        self._board = board(rules.caps, rules.sizes, rules.levels, topology)
        self._goal = self._board.skeleton.index[goal]
        self._next = self._cheapest_moves()
        self._fixed, self._slope = self._follow()

    @functools.cached_property
    def _bounds(self) -> npt.NDArray[np.float64]:
        """(grid, S) seconds that are needed at least from each state at each size."""
        seconds = self._fixed + self._slope * _GRID - _MARGIN_SECONDS
        return np.ascontiguousarray(np.clip(seconds, 0.0, _MOST_SECONDS).T)

    def _cheapest_moves(self) -> np.ndarray:
        """(S, grid) the first move of a cheapest chain, by rounds of Bellman and Ford."""
        b = self._board
        most = max(1, int(b.moved.max(initial=1)))
        ties = np.where(b.moved > 0, _SECONDS_PER_COLLECTIVE, 0.0) + b.moved * (_SECONDS_PER_WHOLE / most)
        weight = b.slope[:, None] * _GRID + (b.fixed + ties)[:, None]
        best = np.full((len(b.skeleton.states), len(_GRID)), np.inf)
        best[self._goal] = 0.0
        while True:
            through = best[b.target] + weight
            after = best.copy()
            after[b.movable] = np.minimum(best[b.movable], np.minimum.reduceat(through, b.starts, axis=0))
            if np.array_equal(after, best):
                break
            best = after
        position = np.where(through == best[b.source], np.arange(len(b.edges))[:, None], len(b.edges))
        first = np.full(best.shape, -1)
        first[b.movable] = np.minimum.reduceat(position, b.starts, axis=0)
        first[self._goal] = -1
        first[~np.isfinite(best)] = -1
        return first

    def _follow(self) -> tuple[np.ndarray, np.ndarray]:
        """(S, grid) fixed seconds and slopes of the whole chains; infinite where there is none."""
        b = self._board
        moving = self._next >= 0
        step_fixed = np.where(moving, b.fixed[self._next], np.inf)
        step_slope = np.where(moving, b.slope[self._next], 0.0)
        step_fixed[self._goal] = 0.0
        after = np.where(moving, b.target[self._next], np.arange(len(moving))[:, None])
        columns = np.arange(len(_GRID))
        fixed, slope, place = step_fixed, step_slope, after
        while (place != self._goal)[np.isfinite(fixed)].any():
            fixed = fixed + np.where(place == self._goal, 0.0, step_fixed[place, columns])
            slope = slope + np.where(place == self._goal, 0.0, step_slope[place, columns])
            place = after[place, columns]
        return fixed, slope

    def lines(self, source: State) -> list[Line]:
        """The cheapest chains at the sizes of the grid, without repetition."""
        start = self._board.skeleton.index[source]
        chains: dict[tuple[int, ...], Line] = {}
        for k in range(len(_GRID)):
            chain, state = [], start
            while state != self._goal:
                position = int(self._next[state, k])
                chain.append(position)
                state = int(self._board.target[position])
            if tuple(chain) not in chains:
                chains[tuple(chain)] = self._line(chain)
        return list(chains.values())

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
        high = int(np.clip(np.searchsorted(_GRID, num_bytes), 1, len(_GRID) - 1))
        share = (num_bytes - _GRID[high - 1]) / (_GRID[high] - _GRID[high - 1])
        return (self._bounds[high - 1] * (1 - share) + self._bounds[high] * share) * BOUND_TICKS

    def _trace(self, start: int, came: dict[int, tuple[int, int]]) -> Line:
        chain, state = [], self._goal
        while state != start:
            state, position = came[state]
            chain.append(position)
        return self._line(chain[::-1])
