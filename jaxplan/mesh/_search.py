"""Shortest paths between layouts, on the part of them that differs.

A `Puzzle` is what is left of two layouts when common prefixes, untouched dimensions and names are taken away: labels
0, 1, ... stand for one atomic axis, or for several of one level that stay together. Puzzles of different tensors and
axes are the same, so few are ever solved. The price of a path is a line in the bytes of the tensor; `envelope` finds
every path that is cheapest for some size.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from jaxplan.mesh._collectives import terms_of_sizes
from jaxplan.mesh._topology import Topology

Dims = tuple[tuple[int, ...], ...]
# Above this many labels, only the reorderings that bring a dimension to its goal are tried (n! otherwise).
_MAX_LABELS_REORDERED = 4
# Times are compared as whole units of 1e-14 s, so that sums in any order tie exactly and plans are deterministic.
_TICKS_PER_SECOND = 1e14
# Sizes between which the cheapest paths are found: one byte, and more than any tensor.
_LEAST_BYTES, _MOST_BYTES = 1.0, 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """Attributes:
    source, target: labels of each differing dimension beyond the common prefix.
    partial: labels to be resolved, a sum over each.
    caps: per dimension, the number that its splits must divide.
    sizes: per label, its number of devices.
    levels: per label, the level it belongs to.
    """

    source: Dims
    target: Dims
    partial: tuple[int, ...]
    caps: tuple[int, ...]
    sizes: tuple[int, ...]
    levels: tuple[int, ...]


class State(NamedTuple):
    dims: Dims
    partial: tuple[int, ...]


class Move(NamedTuple):
    """One step on labels; `group` are the labels that communicate."""

    kind: str
    labels: tuple[int, ...]
    dim: int
    to_dim: int
    group: tuple[int, ...]
    state: State


class Line(NamedTuple):
    """Price of a path for a tensor of which `x` bytes lie on a device when no label splits it: fixed + slope x."""

    fixed: float
    slope: float
    moves: tuple[Move, ...]


@lru_cache(maxsize=2**16)
def envelope(puzzle: Puzzle, topology: Topology) -> tuple[Line, ...]:
    """The lines that are lowest for some size, ascending size."""
    first, last = (shortest(puzzle, topology, size) for size in (_LEAST_BYTES, _MOST_BYTES))
    return tuple(_between(puzzle, topology, first, last))


def _between(puzzle: Puzzle, topology: Topology, low: Line, high: Line) -> list[Line]:
    if low.moves == high.moves or low.slope <= high.slope:
        return [low]
    crossing = (high.fixed - low.fixed) / (low.slope - high.slope)
    middle = shortest(puzzle, topology, crossing)
    gain = low.fixed + low.slope * crossing - middle.fixed - middle.slope * crossing
    if gain * _TICKS_PER_SECOND <= len(middle.moves) + len(low.moves):  # no more than the rounding of ticks
        return [low, high]
    left, right = _between(puzzle, topology, low, middle), _between(puzzle, topology, middle, high)
    return left + right[1:]


def shortest(puzzle: Puzzle, topology: Topology, num_bytes: float) -> Line:
    """Dijkstra from source to target: least time, then fewest collectives, then fewest bytes, then first found."""
    prices = _Prices(puzzle, topology, num_bytes)
    start, goal = State(puzzle.source, puzzle.partial), State(puzzle.target, ())
    best: dict[State, tuple[int, int, int]] = {start: (0, 0, 0)}
    came: dict[State, tuple[State, Move]] = {}
    heap: list[tuple[tuple[int, int, int], int, State]] = [((0, 0, 0), 0, start)]
    counter = itertools.count(1)
    while heap:
        cost, _, state = heapq.heappop(heap)
        if state == goal:
            break
        if cost > best[state]:
            continue
        pieces = _pieces(puzzle, state)
        for move in moves(puzzle, state):
            ticks, num_collectives, moved = prices(move, pieces)
            total = (cost[0] + ticks, cost[1] + num_collectives, cost[2] + moved)
            if move.state not in best or total < best[move.state]:
                best[move.state] = total
                came[move.state] = (state, move)
                heapq.heappush(heap, (total, next(counter), move.state))
    return _trace(prices, puzzle, came, start, goal)


def _trace(
    prices: _Prices, puzzle: Puzzle, came: dict[State, tuple[State, Move]], start: State, state: State
) -> Line:
    path: list[Move] = []
    fixed = slope = 0.0
    while state != start:
        state, move = came[state]
        step_fixed, step_slope = prices.line(move, _pieces(puzzle, state))
        fixed, slope = fixed + step_fixed, slope + step_slope
        path.append(move)
    return Line(fixed, slope, tuple(reversed(path)))


class _Prices:
    """Price of a move from a state of so many pieces, remembered per kind and group."""

    def __init__(self, puzzle: Puzzle, topology: Topology, num_bytes: float) -> None:
        self._puzzle, self._topology, self._num_bytes = puzzle, topology, num_bytes
        self._most = math.prod(puzzle.sizes)
        self._terms: dict[tuple[str, tuple[int, ...]], tuple[float, float]] = {}

    def line(self, move: Move, pieces: int) -> tuple[float, float]:
        """(seconds, seconds per byte of the unsplit tensor)."""
        if move.kind == "slice":
            return self._topology.chip.launch_seconds, 0.0
        fixed, slope = self._group_terms(move)
        return fixed, slope / self._pieces_moved(move, pieces)

    def __call__(self, move: Move, pieces: int) -> tuple[int, int, int]:
        """(ticks, number of collectives, bytes in units of the finest piece)."""
        fixed, slope = self.line(move, pieces)
        ticks = round((fixed + slope * self._num_bytes) * _TICKS_PER_SECOND)
        if move.kind == "slice":
            return ticks, 0, 0
        return ticks, 1, self._most // self._pieces_moved(move, pieces)

    def _pieces_moved(self, move: Move, pieces: int) -> int:
        """A gather is counted by what comes out of it, everything else by what goes in."""
        if move.kind != "all-gather":
            return pieces
        return pieces // math.prod(self._puzzle.sizes[label] for label in move.labels)

    def _group_terms(self, move: Move) -> tuple[float, float]:
        key = (move.kind, move.group)
        if key not in self._terms:
            sizes = [1] * len(self._topology.levels)
            for label in move.group:
                sizes[self._puzzle.levels[label]] *= self._puzzle.sizes[label]
            self._terms[key] = terms_of_sizes(self._topology, move.kind, tuple(sizes))
        return self._terms[key]


def _pieces(puzzle: Puzzle, state: State) -> int:
    pieces = 1
    for dim in state.dims:
        for label in dim:
            pieces *= puzzle.sizes[label]
    return pieces


def moves(puzzle: Puzzle, state: State) -> Iterator[Move]:
    """Every primitive step from a state that keeps all dimensions divisible, in the stated order of kinds."""
    yield from _slices(puzzle, state)
    yield from _all_gathers(state)
    yield from _all_to_alls(puzzle, state)
    yield from _permutes(puzzle, state)
    yield from _reductions(puzzle, state)


def _fits(puzzle: Puzzle, dim: int, labels: tuple[int, ...]) -> bool:
    pieces = 1
    for label in labels:
        pieces *= puzzle.sizes[label]
    return puzzle.caps[dim] % pieces == 0


def _with(state: State, **changes: tuple[int, ...]) -> State:
    dims = list(state.dims)
    for name, labels in changes.items():
        dims[int(name[1:])] = labels
    return State(tuple(dims), state.partial)


def _free(puzzle: Puzzle, state: State) -> tuple[int, ...]:
    used = {label for dim in state.dims for label in dim} | set(state.partial)
    return tuple(label for label in range(len(puzzle.sizes)) if label not in used)


def _slices(puzzle: Puzzle, state: State) -> Iterator[Move]:
    """Append free labels that belong to the dimension in the end, in the order of the target."""
    free = set(_free(puzzle, state))
    for dim, labels in enumerate(state.dims):
        wanted = tuple(label for label in puzzle.target[dim] if label in free)
        for count in range(1, len(wanted) + 1):
            for chosen in itertools.combinations(wanted, count):
                if _fits(puzzle, dim, labels + chosen):
                    yield Move("slice", chosen, dim, -1, (), _with(state, **{f"d{dim}": labels + chosen}))


def _all_gathers(state: State) -> Iterator[Move]:
    """Drop minor-most labels of a dimension."""
    for dim, labels in enumerate(state.dims):
        for keep in range(len(labels)):
            dropped = labels[keep:]
            yield Move(
                "all-gather",
                dropped,
                dim,
                -1,
                tuple(sorted(dropped)),
                _with(state, **{f"d{dim}": labels[:keep]}),
            )


def _all_to_alls(puzzle: Puzzle, state: State) -> Iterator[Move]:
    """Move minor-most labels of a dimension to the minor place of another, order kept."""
    for dim, labels in enumerate(state.dims):
        for to_dim, to_labels in enumerate(state.dims):
            if to_dim == dim:
                continue
            for keep in range(len(labels)):
                moved = labels[keep:]
                if _fits(puzzle, to_dim, to_labels + moved):
                    after = _with(state, **{f"d{dim}": labels[:keep], f"d{to_dim}": to_labels + moved})
                    yield Move("all-to-all", moved, dim, to_dim, tuple(sorted(moved)), after)


def _permutes(puzzle: Puzzle, state: State) -> Iterator[Move]:
    """Put other labels, or the same in another order, where the local shape stays the same."""
    slots = [label for dim in state.dims for label in dim]
    if not slots:
        return
    pool = sorted({*slots, *_free(puzzle, state)})
    few = len(pool) <= _MAX_LABELS_REORDERED
    arrangements = itertools.permutations(pool, len(slots)) if few else _towards_goal(puzzle, state, pool)
    for arrangement in arrangements:
        dims, start, same_shape = [], 0, True
        for labels in state.dims:
            new = tuple(arrangement[start : start + len(labels)])
            same_shape &= _size(puzzle, new) == _size(puzzle, labels)
            dims.append(new)
            start += len(labels)
        after = tuple(dims)
        if same_shape and after != state.dims:
            group = tuple(sorted({x for old, new in zip(state.dims, after) if old != new for x in old + new}))
            yield Move("collective-permute", (), -1, -1, group, State(after, state.partial))


def _size(puzzle: Puzzle, labels: tuple[int, ...]) -> int:
    return math.prod(puzzle.sizes[label] for label in labels)


def _towards_goal(puzzle: Puzzle, state: State, pool: list[int]) -> Iterator[tuple[int, ...]]:
    """For every set of dimensions: their slots filled as the target has them, the others with what is left, in order."""
    occupied = [dim for dim, labels in enumerate(state.dims) if labels]
    for count in range(1, len(occupied) + 1):
        for chosen in itertools.combinations(occupied, count):
            goal = {dim: puzzle.target[dim][: len(state.dims[dim])] for dim in chosen}
            taken = {label for labels in goal.values() for label in labels}
            if not taken <= set(pool):
                continue
            rest = [x for dim in state.dims for x in dim if x not in taken]
            rest += [x for x in pool if x not in taken and x not in rest]
            arrangement: list[int] = []
            for dim, labels in enumerate(state.dims):
                new = list(goal.get(dim, ()))
                while len(new) < len(labels):
                    new.append(rest.pop(0))
                arrangement += new
            yield tuple(arrangement)


def _reductions(puzzle: Puzzle, state: State) -> Iterator[Move]:
    """Sum over partial labels: scattered to the minor place of a dimension, or kept whole."""
    for count in range(1, len(state.partial) + 1):
        for chosen in itertools.combinations(state.partial, count):
            left = tuple(label for label in state.partial if label not in chosen)
            for dim, labels in enumerate(state.dims):
                goal = puzzle.target[dim]
                order = tuple(sorted(chosen, key=lambda x: (goal.index(x) if x in goal else len(goal), x)))
                if _fits(puzzle, dim, labels + order):
                    after = State(_with(state, **{f"d{dim}": labels + order}).dims, left)
                    yield Move("reduce-scatter", order, dim, -1, chosen, after)
            yield Move("all-reduce", chosen, -1, -1, chosen, State(state.dims, left))
