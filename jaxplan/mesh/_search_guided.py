"""A* towards one target with moves that lead there, for puzzles of many labels; it remembers what it has found."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import NamedTuple

from jaxplan.mesh._collectives import collective_bounds, terms_of_sizes
from jaxplan.mesh._lines import BOUND_TICKS, Cost, Line, ticks
from jaxplan.mesh._moves import Move, Rules, State, moves
from jaxplan.mesh._topology import Topology


class _Edge(NamedTuple):
    """A move with its price; `moved`: bytes in units of the finest piece, 0 for a slice."""

    fixed: float
    slope: float
    moved: int
    move: Move


class GuidedSearch:
    """States on the way to `rules.target`, their moves priced once for all sources and sizes."""

    def __init__(self, rules: Rules, topology: Topology) -> None:
        assert rules.target is not None
        self._rules, self._topology, self._target = rules, topology, rules.target
        self._goal = State(rules.target, ())
        self._edges: dict[State, list[_Edge]] = {}
        self._bounds: dict[State, tuple[float, float]] = {}
        self._terms: dict[tuple[str, tuple[int, ...]], tuple[float, float]] = {}
        # Per size: from states on known best chains, cost and next move.
        self._known: dict[float, dict[State, tuple[Cost, _Edge | None]]] = {}
        self._least_fixed, self._fastest = collective_bounds(topology)
        self._launch = topology.chip.launch_seconds
        self._most = math.prod(rules.sizes)
        self._rates = _receiving_rates(topology) if topology.profile is None else ()
        self._overlaps: dict[tuple[int, tuple[int, ...]], tuple[float, ...]] = {}
        self._goal_shares = self._overlap(self._goal)
        self._goal_pieces = self._pieces(self._goal)
        self._goal_pieces_of_dim = [rules.pieces(dim) for dim in rules.target]

    def shortest(self, source: State, num_bytes: float) -> Line:
        """A* to the target: least time, then fewest collectives, then fewest bytes, then first found.

        A state whose best chain is known ends the search: nothing left on the heap can be better.
        """
        known = self._known.setdefault(num_bytes, {self._goal: ((0, 0, 0), None)})
        best: dict[State, Cost] = {source: (0, 0, 0)}
        came: dict[State, tuple[State, _Edge]] = {}
        heap = [((0, 0, 0), 0, (0, 0, 0), source)]
        counter = itertools.count(1)
        while heap:
            _, _, cost, state = heapq.heappop(heap)
            if state in known:
                return self._finish(source, state, came, known, num_bytes)
            if cost > best[state]:
                continue
            for edge in self._edges.get(state) or self._expand(state):
                after = edge.move.state
                total = _add(cost, edge, num_bytes)
                if after not in best or total < best[after]:
                    best[after], came[after] = total, (state, edge)
                    estimate = self._estimate(after, total, known, num_bytes)
                    heapq.heappush(heap, (estimate, next(counter), total, after))
        raise AssertionError(f"no chain for {source}")  # gathering and slicing always is one

    def _estimate(
        self, state: State, cost: Cost, known: dict[State, tuple[Cost, _Edge | None]], num_bytes: float
    ) -> Cost:
        if state in known:
            rest = known[state][0]
            return cost[0] + rest[0], cost[1] + rest[1], cost[2] + rest[2]
        if state not in self._bounds:
            self._bounds[state] = self.bound(state)
        fixed, slope = self._bounds[state]
        return cost[0] + int((fixed + slope * num_bytes) * BOUND_TICKS), cost[1], cost[2]

    def _finish(self, source, met, came, known, num_bytes: float) -> Line:
        """The chain through a state of known rest; its states are known from now on."""
        chain: list[tuple[State, _Edge]] = []
        state = met
        while state != source:
            state, edge = came[state]
            chain.append((state, edge))
        chain.reverse()
        rest = known[met][0]
        for state, edge in reversed(chain):
            rest = _add(rest, edge, num_bytes)
            known[state] = rest, edge
        edges = [edge for _, edge in chain]
        state = met
        while state != self._goal:
            edge = known[state][1]
            edges.append(edge)
            state = edge.move.state
        fixed, slope = sum(edge.fixed for edge in edges), sum(edge.slope for edge in edges)
        return Line(fixed, slope, tuple(edge.move for edge in edges))

    def bound(self, state: State) -> tuple[float, float]:
        """(seconds, seconds per byte) that are needed at least, for launches and for bytes.

        Every dimension that is split too finely needs a gather or all-to-all of its own, and a sum a
        reduction. A device receives all that it will have and has not now, and so do together those of a node, or
        below another level, through all of their links.
        """
        goal = self._target
        if not state.partial and all(want[: len(dim)] == dim for dim, want in zip(state.dims, goal)):
            return (0.0 if state.dims == goal else self._launch), 0.0
        num_collectives = 1 if state.partial else 0
        for dim, pieces in zip(state.dims, self._goal_pieces_of_dim):
            num_collectives += self._rules.pieces(dim) > pieces
        slope = self._missing(state) / self._fastest
        if not state.partial:
            for rate, both, whole in zip(self._rates, self._overlap(state), self._goal_shares):
                slope = max(slope, (whole - both) / rate)
        return max(1, num_collectives) * self._least_fixed, slope

    def _overlap(self, state: State) -> list[float]:
        """Per level, the share of the unsplit tensor that those below some child of it have now and in the end."""
        shares = [1.0] * len(self._rates)
        for d, labels in enumerate(state.dims):
            known = self._overlaps.get((d, labels))
            if known is None:
                known = self._overlaps[d, labels] = self._overlap_of(self._target[d], labels)
            shares = [share * of_dim for share, of_dim in zip(shares, known)]
        return shares

    def _overlap_of(self, goal: tuple[int, ...], labels: tuple[int, ...]) -> tuple[float, ...]:
        """The same of one dimension: the smaller of both blocks, and nothing where both are split by different labels
        of the level or above after the same ones: for some child the blocks are then apart."""
        sizes, levels = self._rules.sizes, self._rules.levels
        first = next(((a, b) for a, b in zip(goal, labels) if a != b), None)
        apart = max(levels[x] for x in first) if first else len(self._rates)
        found = []
        for level in range(len(self._rates)):
            pieces = [math.prod([sizes[x] for x in of if levels[x] <= level]) for of in (goal, labels)]
            found.append(0.0 if level >= apart else 1 / max(pieces))
        return tuple(found)

    def _missing(self, state: State) -> float:
        """Share of the unsplit tensor that a device has yet to receive, at least."""
        if not state.partial:
            return max(0.0, 1 / self._goal_pieces - 1 / self._pieces(state))
        # The sum is taken on pieces as small as can be, and the result gathered.
        summed = self._rules.pieces(state.partial)
        return (summed - 1) / self._most + max(0.0, 1 / self._goal_pieces - 1 / self._most)

    def _expand(self, state: State) -> list[_Edge]:
        pieces = self._pieces(state)
        self._edges[state] = edges = [self._priced(move, pieces) for move in moves(self._rules, state)]
        return edges

    def _priced(self, move: Move, pieces: int) -> _Edge:
        """A gather is counted by what comes out of it, everything else by what goes in."""
        if move.kind == "slice":
            return _Edge(self._launch, 0.0, 0, move)
        if move.kind == "all-gather":
            pieces //= self._rules.pieces(move.labels)
        fixed, slope = self._group_terms(move.kind, move.group)
        return _Edge(fixed, slope / pieces, self._most // pieces, move)

    def _group_terms(self, kind: str, group: tuple[int, ...]) -> tuple[float, float]:
        key = (kind, group)
        if key not in self._terms:
            sizes = [1] * len(self._topology.levels)
            for label in group:
                sizes[self._rules.levels[label]] *= self._rules.sizes[label]
            self._terms[key] = terms_of_sizes(self._topology, kind, tuple(sizes))
        return self._terms[key]

    def _pieces(self, state: State) -> int:
        pieces = 1
        for dim in state.dims:
            pieces *= self._rules.pieces(dim)
        return pieces


def _receiving_rates(topology: Topology) -> tuple[float, ...]:
    """Per level, bytes per second that all devices below one child of it receive at most from elsewhere.

    In an all-to-all all levels carry at once, so the rate of a device is that of its links of the level and above. In a
    gather over q children and r devices below each it takes (q r - 1) pieces at the rate of at most r links, of which
    q - 1 shares of the children come from elsewhere: not faster. A permute moves a piece per device and link.
    """
    rates, together = [], 0.0
    for number, level in enumerate(topology.levels):
        together += level.link.bandwidth_bytes_per_second
        below = math.prod(inner.size for inner in topology.levels[number + 1 :])
        rates.append(below * together)
    return tuple(rates)


def _add(cost: Cost, edge: _Edge, num_bytes: float) -> Cost:
    return (
        cost[0] + ticks(edge.fixed, edge.slope, num_bytes),
        cost[1] + (edge.moved > 0),
        cost[2] + edge.moved,
    )
