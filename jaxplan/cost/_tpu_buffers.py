"""Buffers of compiled TPU programs beside tensors and their copies, and the part outside of main memory."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.cost._inner import Extended, extended_operands, may_communicate, read_beside
from jaxplan.cost._model import CostModel
from jaxplan.cost._reads import sharding_of
from jaxplan.cost._tiles import padded_bytes, row_by_row_bytes, scattered_in_tiles
from jaxplan.cost._transfers import Transfer
from jaxplan.cost._updated_parts import is_gathered_update
from jaxplan.ir import Configuration
from jaxplan.mesh import COLLECTIVES
from jaxplan.xla._plan_effects import (
    CopyLargestUpdate,
    ExtendPoolings,
    HoldPieces,
    MoveTiles,
    OnChip,
    RoundTable,
    ShortLivedOnChip,
    TransposeUpdates,
    WriteForEdges,
)
from jaxplan.xla.rules.tpu.rounding import NARROW_BYTES

_UPDATES = 2
"""Operand of a scatter."""
Copy = tuple[int, int, int]
"""First and last equation between which something lives, and its bytes on one device."""
SentBytes = tuple[str, tuple[int, ...], int]
"""Kind of a collective, its axes, bytes per device."""


class TpuBuffers:
    """Of the plans of one model.

    Args:
      place: of each tensor that is made and is a buffer, its position among them.
    """

    def __init__(self, model: CostModel, place: Mapping[int, int]) -> None:
        self._model, self._graph, program = model, model.graph, model.graph.program
        self._axes, self._target = model.topology.axes, model.buffers.target
        self._windowed = [g.index for g in self._graph.grouping.groups if may_communicate(self._graph, g.index)]
        found = model.buffers.found
        self._written_beside = {effect.tensor for effect in found.of(WriteForEdges)}
        self._scattered = found.of(TransposeUpdates)
        self._tables = {effect.tensor: (effect.first, effect.last) for effect in found.of(RoundTable)}
        self._replaced, self._sending = program.replaced, Memo()
        self._stacked = [place[effect.tensor] for effect in found.of(OnChip) if effect.tensor in place]
        self._short_lived = sum(effect.share for effect in found.of(ShortLivedOnChip))
        self._extends, self._holds_pieces = found.has(ExtendPoolings), found.has(HoldPieces)
        self._copies_update, self._moves_tiles = found.has(CopyLargestUpdate), found.has(MoveTiles)

    def sent(self, transfer: Transfer) -> tuple[SentBytes, ...]:
        """`Transfer.collectives` with reduce-scatters in whole tiles, where they are (`scattered_in_tiles`)."""
        number = self._sending.number(transfer)
        if number not in self._sending:
            steps = [step for step in transfer.path.steps if step.kind in COLLECTIVES]
            steps = steps[len(steps) - len(transfer.collectives) :]
            shape, sent = self._graph.program.tensors[transfer.tensor].shape, list(transfer.collectives)
            for i, step in enumerate(steps):
                if step.kind == "reduce-scatter" and self._moves_tiles:
                    part = tuple(step.target.local_shape(shape, self._axes))
                    padded = scattered_in_tiles(part, transfer.itemsize)
                    if padded is not None:
                        parts = math.prod(self._axes[a].size for a in step.axes)
                        sent[i] = (*sent[i][:2], parts * padded)
            self._sending[number] = tuple(sent)
        return self._sending[number]

    def in_main_memory(self, sizes: np.ndarray) -> tuple[np.ndarray, float]:
        """Of the bytes of all results those in main memory, and the bytes on the chip that are left for short-lived
        values: stacks of loops of the forward pass lie there, in program order, as far as it goes."""
        sizes, left = sizes.copy(), self._target.on_chip_bytes
        for place in self._stacked:
            if sizes[place] <= left:
                left -= sizes[place]
                sizes[place] = 0
        return sizes, min(left, self._short_lived * self._target.on_chip_bytes)

    def copies(self, chosen: Sequence[Configuration], transfers: Sequence[Transfer]) -> Iterator[Copy]:
        """The second copies in a plan of these configurations and transfers."""
        yield from self._extended(chosen) if self._extends else ()
        yield from self._beside(chosen)
        yield from self._rounded(chosen, transfers)
        yield from self._copied(transfers) if self._copies_update else ()
        yield from self._transposed_updates(chosen)
        yield from self._sent(transfers) if self._holds_pieces else ()

    def _extended(self, chosen: Sequence[Configuration]) -> Iterator[Copy]:
        """Operands of poolings extended by the edges of neighbours' blocks; without other readers the array without
        edges is gone behind the first.

        Permutes start as early as they can, so that the operand of a pooling's gradient is live from the forward pass
        on.
        """
        graph, topology, buffers = self._graph, self._model.topology, self._model.buffers
        readers: dict[int, list[Extended]] = defaultdict(list)
        for v in self._windowed:
            for read in extended_operands(graph, topology, v, chosen[v], "window"):
                readers[read.tensor].append(read)
        for t, reads in readers.items():
            ends: dict[tuple[int, ...], int] = {}
            for read in reads:
                ends[read.shape] = max(read.equation, ends.get(read.shape, -1))
            is_alone = buffers.materialised[t] and {r.equation for r in reads}.issuperset(graph.values.consumers[t])
            latest = max(ends, key=ends.__getitem__)
            for shape, last in ends.items():
                size = self._padded_bytes(t, shape)
                if is_alone and shape == latest:
                    size -= self._padded_bytes(t, reads[0].own)
                yield graph.values.producer[t], last, size

    def _beside(self, chosen: Sequence[Configuration]) -> Iterator[Copy]:
        """Images recomputed inside of convolutions (results of a rectifier) with edges that go to neighbours: the edges
        are cut out of them."""
        graph, topology = self._graph, self._model.topology
        ends: dict[tuple[int, tuple[int, ...]], int] = {}
        for v in self._windowed:
            for e, t in read_beside(graph, topology, v, chosen[v]):
                if t in self._written_beside:
                    sharding = sharding_of(graph, chosen, graph.grouping.tensor_group[t], t, produced=True)
                    key = t, tuple(sharding.local_shape(graph.program.tensors[t].shape, self._axes))
                    ends[key] = max(e, ends.get(key, -1))
        for (t, shape), last in ends.items():
            yield graph.values.producer[t], last, self._padded_bytes(t, shape)

    def _padded_bytes(self, t: int, shape: Sequence[int]) -> int:
        return padded_bytes(shape, self._graph.program.tensors[t].itemsize, self._model.buffers.storage_of(t).inner)

    def _transposed_updates(self, chosen: Sequence[Configuration]) -> Iterator[Copy]:
        """Updates of scatters in the order in which they are scattered, where the memory beside the cores has no room
        for them."""
        graph = self._graph
        for effect in self._scattered:
            eqn = graph.program.equations[effect.equation]
            t, group = eqn.operands[_UPDATES], graph.grouping.equation_group[eqn.index]
            sharding = sharding_of(graph, chosen, group, t, produced=False)
            shape = sharding.local_shape(graph.program.tensors[t].shape, self._axes)
            size = padded_bytes(tuple(shape), graph.program.tensors[t].itemsize)
            if size > effect.num_bytes:
                yield eqn.index, eqn.index, size

    def _rounded(self, chosen: Sequence[Configuration], transfers: Sequence[Transfer]) -> Iterator[Copy]:
        """Tables in which look-ups are made where they are stored: rounded all of them at once, and row by row."""
        graph, moved = self._graph, {transfer.tensor for transfer in transfers}
        spans = {t: span for t, span in self._tables.items() if t not in moved}
        for t in spans:
            sharding = sharding_of(graph, chosen, graph.grouping.tensor_group[t], t, produced=True)
            shape = sharding.local_shape(graph.program.tensors[t].shape, self._axes)
            first, last = min(first for first, _ in spans.values()), max(last for _, last in spans.values())
            yield first, last, row_by_row_bytes(shape, NARROW_BYTES)

    def _sent(self, transfers: Sequence[Transfer]) -> Iterator[Copy]:
        """Pieces that would be recomputed inside of their readers (a parameter, rounded), while they are gathered."""
        for transfer in transfers:
            t, sharding = transfer.tensor, transfer.path.shardings[0]
            if self._model.buffers.materialised[t] or transfer.path.steps[0].kind != "all-gather":
                continue
            shape = sharding.local_shape(self._graph.program.tensors[t].shape, self._axes)
            for span in transfer.spans:
                yield span.first, span.first, padded_bytes(shape, transfer.itemsize)

    def _copied(self, transfers: Sequence[Transfer]) -> Iterator[Copy]:
        """The largest parameter that is gathered after its update is gathered into another buffer than its own, and
        copied at the beginning."""
        program, consumers = self._graph.program, self._graph.values.consumers
        end = len(program.equations)
        sizes = {
            transfer.tensor: self._model.pricer.local_bytes(program.tensors[transfer.tensor], transfer.target)
            for transfer in transfers
            if is_gathered_update(self._replaced, end, transfer)
        }
        if sizes:
            t = max(sizes, key=sizes.__getitem__)
            yield 0, max(consumers[self._replaced[t]], default=0), sizes[t]
            yield end, end, sizes[t]

