"""The cheapest chains of moves for a puzzle, for tensors of every size at once.

The price of a chain is a line in the bytes of the tensor: `envelope` finds every chain that is cheapest for
some size, each by A* at one size, so a price is exact and a puzzle is solved a few times in all.
"""

from __future__ import annotations

import heapq
import itertools
from functools import lru_cache
from typing import NamedTuple

from jaxplan.mesh._collectives import terms_of_sizes
from jaxplan.mesh._puzzle import Move, Puzzle, State, most_pieces, moves
from jaxplan.mesh._topology import Topology

# Times are compared as whole units of 1e-14 s, so that sums in any order tie exactly and plans are
# deterministic.
_TICKS_PER_SECOND = 1e14
# A lower bound stays one however its sums are rounded.
_BOUND_TICKS = _TICKS_PER_SECOND * (1 - 1e-9)
# Differences of prices below this are rounding.
_ROUNDING_TICKS = 16
# Sizes between which the cheapest chains are found: one byte, and more than any tensor.
_LEAST_BYTES, _MOST_BYTES = 1.0, 1e15


class Line(NamedTuple):
    """A chain and its price, fixed + slope x, for x bytes on a device when no label splits the tensor."""

    fixed: float
    slope: float
    moves: tuple[Move, ...]


class _Edge(NamedTuple):
    """A move with its price; `moved`: bytes in units of the finest piece, 0 for a slice."""

    fixed: float
    slope: float
    moved: int
    move: Move


@lru_cache(maxsize=2**16)
def envelope(puzzle: Puzzle, topology: Topology) -> tuple[Line, ...]:
    """The chains that are cheapest for some size, by ascending size."""
    graph = _Graph(puzzle, topology)
    return tuple(_between(graph, graph.shortest(_LEAST_BYTES), graph.shortest(_MOST_BYTES)))


def _between(graph: _Graph, low: Line, high: Line) -> list[Line]:
    """Dichotomy: a chain below both lines at their crossing, if any, splits the range."""
    if low.moves == high.moves or low.slope <= high.slope:
        return [low]
    crossing = (high.fixed - low.fixed) / (low.slope - high.slope)
    middle = graph.shortest(crossing)
    gain = low.fixed + low.slope * crossing - middle.fixed - middle.slope * crossing
    if gain * _TICKS_PER_SECOND <= _ROUNDING_TICKS or middle.slope in (low.slope, high.slope):
        return [low, high]
    return _between(graph, low, middle)[:-1] + _between(graph, middle, high)


class _Graph:
    """States of one puzzle, their edges priced once for all sizes."""

    def __init__(self, puzzle: Puzzle, topology: Topology) -> None:
        self._puzzle, self._topology = puzzle, topology
        self._start, self._goal = State(puzzle.source, puzzle.partial), State(puzzle.target, ())
        self._edges: dict[State, list[_Edge]] = {}
        self._bounds: dict[State, tuple[float, float]] = {}
        self._terms: dict[tuple[str, tuple[int, ...]], tuple[float, float]] = {}
        self._fastest = max(level.link.bandwidth_bytes_per_second for level in topology.levels)
        quickest = min(level.link.latency_seconds for level in topology.levels)
        self._least_fixed = topology.chip.collective_launch_seconds + quickest
        self._launch = topology.chip.launch_seconds
        self._most = most_pieces(puzzle)
        self._goal_pieces = self._pieces(self._goal)
        self._goal_pieces_of_dim = [puzzle.pieces(dim) for dim in puzzle.target]

    def shortest(self, num_bytes: float) -> Line:
        """A* to the target: least time, then fewest collectives, then fewest bytes, then first found."""
        best = {self._start: (0, 0, 0)}
        came: dict[State, tuple[State, _Edge]] = {}
        heap = [((0, 0, 0), 0, (0, 0, 0), self._start)]
        counter = itertools.count(1)
        while heap:
            _, _, cost, state = heapq.heappop(heap)
            if state == self._goal:
                return self._trace(came)
            if cost > best[state]:
                continue
            for edge in self._edges.get(state) or self._expand(state):
                ticks = round((edge.fixed + edge.slope * num_bytes) * _TICKS_PER_SECOND)
                total = (cost[0] + ticks, cost[1] + (edge.moved > 0), cost[2] + edge.moved)
                after = edge.move.state
                if after not in best or total < best[after]:
                    best[after], came[after] = total, (state, edge)
                    if after not in self._bounds:
                        self._bounds[after] = self._bound(after)
                    least = self._bounds[after][0] + self._bounds[after][1] * num_bytes
                    estimate = (total[0] + int(least * _BOUND_TICKS), total[1], total[2])
                    heapq.heappush(heap, (estimate, next(counter), total, after))
        raise AssertionError(f"no chain for {self._puzzle}")  # gathering and slicing always is one

    def _trace(self, came: dict[State, tuple[State, _Edge]]) -> Line:
        edges: list[_Edge] = []
        state = self._goal
        while state != self._start:
            state, edge = came[state]
            edges.append(edge)
        edges.reverse()
        fixed, slope = sum(edge.fixed for edge in edges), sum(edge.slope for edge in edges)
        return Line(fixed, slope, tuple(edge.move for edge in edges))

    def _bound(self, state: State) -> tuple[float, float]:
        """(seconds, seconds per byte) that are needed at least, for launches and for bytes.

        Every dimension that is split too finely needs a gather or all-to-all of its own, and a sum a
        reduction. A device receives all that it will have more than now, and no link is faster than the
        fastest.
        """
        goal = self._puzzle.target
        if not state.partial and all(want[: len(dim)] == dim for dim, want in zip(state.dims, goal)):
            return (0.0 if state.dims == goal else self._launch), 0.0
        num_collectives = 1 if state.partial else 0
        for dim, pieces in zip(state.dims, self._goal_pieces_of_dim):
            num_collectives += self._puzzle.pieces(dim) > pieces
        return max(1, num_collectives) * self._least_fixed, self._missing(state) / self._fastest

    def _missing(self, state: State) -> float:
        """Share of the unsplit tensor that a device has yet to receive, at least."""
        if not state.partial:
            return max(0.0, 1 / self._goal_pieces - 1 / self._pieces(state))
        # The sum is taken on pieces as small as can be, and the result gathered.
        summed = self._puzzle.pieces(state.partial)
        return (summed - 1) / self._most + max(0.0, 1 / self._goal_pieces - 1 / self._most)

    def _expand(self, state: State) -> list[_Edge]:
        pieces = self._pieces(state)
        self._edges[state] = edges = [self._priced(move, pieces) for move in moves(self._puzzle, state)]
        return edges

    def _priced(self, move: Move, pieces: int) -> _Edge:
        """A gather is counted by what comes out of it, everything else by what goes in."""
        if move.kind == "slice":
            return _Edge(self._launch, 0.0, 0, move)
        if move.kind == "all-gather":
            pieces //= self._puzzle.pieces(move.labels)
        fixed, slope = self._group_terms(move.kind, move.group)
        return _Edge(fixed, slope / pieces, self._most // pieces, move)

    def _group_terms(self, kind: str, group: tuple[int, ...]) -> tuple[float, float]:
        key = (kind, group)
        if key not in self._terms:
            sizes = [1] * len(self._topology.levels)
            for label in group:
                sizes[self._puzzle.levels[label]] *= self._puzzle.sizes[label]
            self._terms[key] = terms_of_sizes(self._topology, kind, tuple(sizes))
        return self._terms[key]

    def _pieces(self, state: State) -> int:
        pieces = 1
        for dim in state.dims:
            pieces *= self._puzzle.pieces(dim)
        return pieces
