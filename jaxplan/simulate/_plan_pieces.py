"""The part of a simulated plan that one group's configuration decides: its compute, and moves of its tensors.

Tensors of one value share steps of their paths (`jaxplan.cost._transfers`), so their moves are one piece; equal pieces
are looked up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.cost._inner import inner_collectives, inner_of_plan, may_communicate
from jaxplan.cost._pricing import REPEAT
from jaxplan.cost._transfers import Transfer, changed_reads, make_transfers
from jaxplan.ir import UNGROUPED
from jaxplan.mesh import Sharding, collective_seconds
from jaxplan.simulate._simulated_plan import PlanSimulator

PoolKey = tuple[str, tuple[int, ...]]
"""Kind and axes of collectives that the compiler combines: they pay one latency together."""


class Step(NamedTuple):
    """One collective of a move: its seconds in each trip, and the pool that shares its latency, if any."""

    seconds: float
    pool: PoolKey | None


class Move(NamedTuple):
    """One execution of a transfer, as `PlanSimulator` orders and times it.

    Attributes:
      order: sort key of moves; the kernel that waits first comes first.
      wait: equation of the kernel that waits for it first.
      made: position before which its operand is computed.
      moves_data: it sums nothing, and so starts no earlier than the reader of the one before it.
      trips: how often each step runs.
    """

    order: tuple
    wait: int
    made: int
    moves_data: bool
    trips: int
    steps: tuple[Step, ...]


class Piece(NamedTuple):
    """The moves of one value under some configurations; pool -> collectives in it; the transfers that they execute."""

    moves: tuple[Move, ...]
    pooled: Mapping[PoolKey, int]
    transfers: tuple[Transfer, ...]


class PlanPieces:
    """Pieces of all plans of one cost model.

    Attributes:
      num_pieces: of moves.
      pieces_of: per group, those that its configuration decides on.
    """

    def __init__(self, simulator: PlanSimulator) -> None:
        self.simulator = simulator
        self.model = model = simulator.model
        graph, reads = model.graph, model.reads
        numbers: dict[int, int] = {}
        self._reads: list[list[int]] = []
        for index, read in enumerate(reads):
            value = graph.values.merged[model.buffers.dtypes.source(read.tensor)]
            piece = numbers.setdefault(value, len(numbers))
            if piece == len(self._reads):
                self._reads.append([])
            self._reads[piece].append(index)
        self.num_pieces = len(self._reads)
        self._groups = [
            sorted({v for i in of for v in (reads[i].producer, reads[i].consumer)} - {UNGROUPED})
            for of in self._reads
        ]
        pieces: list[list[int]] = [[] for _ in graph.grouping.groups]
        for piece, groups in enumerate(self._groups):
            for v in groups:
                pieces[v].append(piece)
        self.pieces_of = tuple(map(tuple, pieces))
        self._edge_of = {f: e for e, of in enumerate(model.edge_reads) for f in of if reads[f].in_both_phases}
        self._repeats: dict[tuple[int, int], np.ndarray] = {}
        self._known: dict[tuple, Piece] = {}
        self._communicating = [v for v in range(len(pieces)) if may_communicate(graph, v)]
        self._talks: dict[tuple[int, int], bool] = {}

    def piece(self, piece: int, assignment: Sequence[int]) -> Piece:
        """The moves of one piece; the same object for the same configurations of its groups."""
        groups = self._groups[piece]
        key = (piece, *[assignment[v] for v in groups])
        if key not in self._known:
            self._known[key] = self._make(piece, assignment)
        return self._known[key]

    def compute(self, group: int, label: int) -> Mapping[int, float]:
        """Equation -> seconds of compute of a group, those above zero."""
        return self.simulator.compute_seconds(group, label)

    def inner(self, assignment: Sequence[int], pieces: Sequence[Piece]) -> dict[int, tuple[float, ...]]:
        """Equation -> seconds of each collective inside of it."""
        model = self.model
        if not any(self._may_talk(v, assignment[v]) for v in self._communicating):
            return {}
        transfers = [transfer for piece in pieces for transfer in piece.transfers]
        found: dict[int, list[float]] = defaultdict(list)
        chosen = model.chosen(assignment)
        of = chosen, transfers, model.buffers
        for c in inner_of_plan(model.graph, model.topology, self._communicating, *of):
            found[c.equation].append(c.visible_seconds(model.topology))
        return {e: tuple(of) for e, of in found.items()}

    def _may_talk(self, v: int, label: int) -> bool:
        if (v, label) not in self._talks:
            model = self.model
            config = model.configurations[v][label]
            of = inner_collectives(model.graph, model.topology, v, config, model.buffers)
            self._talks[v, label] = any(True for _ in of)
        return self._talks[v, label]

    def _make(self, piece: int, assignment: Sequence[int]) -> Piece:
        model, reads = self.model, self.model.reads
        chosen = {v: model.configurations[v][assignment[v]] for v in self._groups[piece]}
        changed: list[tuple[int, Sharding, Sharding]] = []
        for index in self._reads[piece]:
            changed += [
                (index, source, target)
                for _, source, target in changed_reads(model.graph, (reads[index],), chosen)  # pyright: ignore[reportArgumentType]
            ]
        repeated = frozenset(index for index, *_ in changed if self._is_repeated(index, assignment))
        transfers = make_transfers(
            model.graph, model.topology, reads, changed, repeated, Memo(), model.buffers
        )
        moves: list[Move] = []
        pooled: dict[PoolKey, int] = defaultdict(int)
        for place, transfer in enumerate(transfers):
            if not model.latency_shares.get(transfer.tensor, 1.0):
                for kind, axes, _ in transfer.collectives:
                    pooled[kind, tuple(sorted(axes))] += transfer.trips
            moves += self._moves_of(transfer, place)
        return Piece(moves=tuple(moves), pooled=dict(pooled), transfers=transfers)

    def _moves_of(self, transfer: Transfer, place: int) -> list[Move]:
        model, moves = self.model, []
        collectives = transfer.collectives
        for turn, span in enumerate(transfer.spans if collectives else ()):
            share = 1.0 if turn else model.latency_shares.get(transfer.tensor, 1.0)
            wait = min(self.simulator.kernel[e] for e in span.readers)
            moves.append(
                Move(
                    order=(wait, transfer.spans[0].first, transfer.tensor, transfer.target.dims, place, turn),
                    wait=wait,
                    made=model.graph.values.producer[transfer.tensor] + 1,
                    moves_data=not transfer.path.shardings[0].partial,
                    trips=transfer.trips,
                    steps=tuple(
                        Step(
                            seconds=collective_seconds(model.topology, kind, size, axes, share),
                            pool=None if share else (kind, tuple(sorted(axes))),
                        )
                        for kind, axes, size in collectives
                    ),
                )
            )
        return moves

    def _is_repeated(self, read: int, assignment: Sequence[int]) -> bool:
        """Whether the fastest choice of a read in both passes is to make the copy again."""
        edge = self._edge_of.get(read)
        if edge is None:
            return False
        of = self.model.problem.edges[edge]
        labels = np.array([assignment[of.source]]), np.array([assignment[of.target]])
        time, memory = of.costs_at(*labels)
        return bool(np.lexsort((memory[0], time[0]))[0] == REPEAT) if time.shape[1] > REPEAT else False
