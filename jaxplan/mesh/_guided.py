"""A* towards one target with moves that lead there, for boards of too many states to list them all."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import NamedTuple

from jaxplan.mesh._collectives import collective_bounds, group_seconds
from jaxplan.mesh._moves import Move, Rules, moves
from jaxplan.mesh._shortest import Chain, Game
from jaxplan.mesh._states import Dims, State
from jaxplan.mesh._topology import Topology

# Times are compared as whole units of 1e-14 s, so that sums in any order tie exactly and plans are deterministic.
_TICKS_PER_SECOND = 1e14
# A lower bound stays one however its sums are rounded.
_BOUND_TICKS = _TICKS_PER_SECOND * (1 - 1e-9)

_Cost = tuple[int, int, int]
"""Time in ticks, number of collectives, bytes in units of the finest piece: compared in this order."""


class _Edge(NamedTuple):
    """A move, the children of each level that its group spans, and the pieces of its larger side."""

    move: Move
    spans: tuple[int, ...]
    pieces: int


class GuidedSolver:
    """Chains to one target by A*; states on the way, their moves and their ends are kept for all sources."""

    def __init__(self, game: Game, target: Dims) -> None:
        self._game, self._topology, self._target = game, game.topology, target
        self._rules = rules = Rules(caps=game.caps, sizes=game.sizes, target=target)
        self._goal = State(target, ())
        self._edges: dict[State, list[_Edge]] = {}
        self._bounds: dict[State, tuple[float, float]] = {}
        # Per size: prices, and from states on known best chains, cost and next move.
        self._prices: dict[float, dict[tuple[str, tuple[int, ...], int], float]] = {}
        self._known: dict[float, dict[State, tuple[_Cost, _Edge | None]]] = {}
        self._least_fixed, self._fastest = collective_bounds(self._topology)
        self._launch = self._topology.chip.launch_seconds
        self._most = math.prod(rules.sizes)
        self._rates = _receiving_rates(self._topology) if self._topology.profile is None else ()
        self._overlaps: dict[tuple[int, tuple[int, ...]], tuple[float, ...]] = {}
        self._goal_shares = self._overlap(self._goal)
        self._goal_pieces = self._pieces(self._goal)
        self._goal_pieces_of_dim = [rules.pieces(dim) for dim in target]

    def position(self, source: State) -> State:
        """The state, for the methods below."""
        return source

    def seconds(self, source: State, num_bytes: float) -> float:
        """Of the cheapest chain found."""
        return self.chain(source, num_bytes).seconds

    def chain(self, source: State, num_bytes: float) -> Chain:
        """The cheapest chain found; ties go to fewer collectives, then fewer bytes, then the first found."""
        known = self._known.setdefault(num_bytes, {self._goal: ((0, 0, 0), None)})
        if source not in known:
            self._search(source, known, num_bytes)
        seconds, latency, steps, state = 0.0, 0.0, [], source
        while state != self._goal:
            edge = known[state][1]
            assert edge is not None
            seconds, latency = seconds + self._price(edge, num_bytes), latency + self._price(edge, 0.0)
            state = edge.move.state
            steps.append((edge.move.kind, edge.move.group, state))
        return Chain(seconds, latency, tuple(steps))

    def _search(
        self, source: State, known: dict[State, tuple[_Cost, _Edge | None]], num_bytes: float
    ) -> None:
        """A* to a state with a known best chain: nothing left on the heap can then be better."""
        best: dict[State, _Cost] = {source: (0, 0, 0)}
        came: dict[State, tuple[State, _Edge]] = {}
        heap = [((0, 0, 0), 0, (0, 0, 0), source)]
        counter = itertools.count(1)
        while heap:
            _, _, cost, state = heapq.heappop(heap)
            if state in known:
                return self._remember(source, state, came, known, num_bytes)
            if cost > best[state]:
                continue
            for edge in self._edges.get(state) or self._expand(state):
                after = edge.move.state
                total = self._add(cost, edge, num_bytes)
                if after not in best or total < best[after]:
                    best[after], came[after] = total, (state, edge)
                    estimate = self._estimate(after, total, known, num_bytes)
                    heapq.heappush(heap, (estimate, next(counter), total, after))
        raise AssertionError(f"no chain for {source}")  # gathering and slicing always is one

    def _estimate(
        self, state: State, cost: _Cost, known: dict[State, tuple[_Cost, _Edge | None]], num_bytes: float
    ) -> _Cost:
        if state in known:
            rest = known[state][0]
            return cost[0] + rest[0], cost[1] + rest[1], cost[2] + rest[2]
        return cost[0] + int(self.bound(state, num_bytes) * _BOUND_TICKS), cost[1], cost[2]

    def _remember(self, source: State, met: State, came, known, num_bytes: float) -> None:
        """States of the chain through a state of known rest are known from now on."""
        state, rest = met, known[met][0]
        while state != source:
            state, edge = came[state]
            rest = self._add(rest, edge, num_bytes)
            known[state] = rest, edge

    def _add(self, cost: _Cost, edge: _Edge, num_bytes: float) -> _Cost:
        ticks = round(self._price(edge, num_bytes) * _TICKS_PER_SECOND)
        if edge.move.kind == "slice":
            return cost[0] + ticks, cost[1], cost[2]
        return cost[0] + ticks, cost[1] + 1, cost[2] + self._most // edge.pieces

    def _price(self, edge: _Edge, num_bytes: float) -> float:
        if edge.move.kind == "slice":
            return self._launch
        prices = self._prices.setdefault(num_bytes, {})
        key = edge.move.kind, edge.spans, edge.pieces
        if key not in prices:
            prices[key] = group_seconds(self._topology, edge.move.kind, num_bytes / edge.pieces, edge.spans)
        return prices[key]

    def bound(self, state: State, num_bytes: float) -> float:
        """Seconds that the cheapest chain is not below, without a search."""
        if state not in self._bounds:
            self._bounds[state] = self._bound(state)
        fixed, slope = self._bounds[state]
        if self._topology.profile is None:
            return fixed + slope * num_bytes
        return max(fixed, slope * num_bytes)

    def _bound(self, state: State) -> tuple[float, float]:
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
        sizes, levels = self._rules.sizes, self._game.levels
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
        self._edges[state] = edges = [self._counted(move, pieces) for move in moves(self._rules, state)]
        return edges

    def _counted(self, move: Move, pieces: int) -> _Edge:
        """Bytes of a gather are those of its result; of all other moves those of the operand."""
        if move.kind == "all-gather":
            pieces //= self._rules.pieces(move.group)
        return _Edge(move, self._game.spans(move.group), pieces)

    def _pieces(self, state: State) -> int:
        pieces = 1
        for dim in state.dims:
            pieces *= self._rules.pieces(dim)
        return pieces


def _receiving_rates(topology: Topology) -> tuple[float, ...]:
    """Per level, bytes per second that all devices below one child of it receive at most from elsewhere.

    In an all-to-all all levels carry at once, so the rate of a device is that of its links of the level and above. In a
    gather over q children and r devices below each it takes (q r - 1) pieces at the rate of at most r links, of which
    q - 1 shares of the children come from elsewhere: not faster. A permute moves a piece per device and link. The
    dimensions of a torus carry at once.
    """
    rates, together = [], 0.0
    torus = sum(level.link.bandwidth_bytes_per_second for level in topology.levels if level.link.ring)
    for number, level in enumerate(topology.levels):
        if level.link.ring:
            together, torus = together + torus, 0.0
        else:
            together += level.link.bandwidth_bytes_per_second
        below = math.prod(inner.size for inner in topology.levels[number + 1 :])
        rates.append(below * together)
    return tuple(rates)
