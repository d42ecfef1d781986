"""Predicted cost of one plan: compute, each collective, and peak memory by live ranges."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxplan.core._interner import Memo, Remembered
from jaxplan.cost._changed import ChangedReads
from jaxplan.cost._gradient_barriers import AskedGradients
from jaxplan.cost._inner import InnerCollective, inner_of_plan, may_communicate
from jaxplan.cost._live_ranges import TEMPORARIES, LiveRanges
from jaxplan.cost._model import CostModel
from jaxplan.cost._offload import forward_seconds, host_seconds, waiting_seconds
from jaxplan.cost._residents import BATCH
from jaxplan.cost._transfers import ChangedRead, Transfer, make_transfers
from jaxplan.ir import Configuration
from jaxplan.mesh import collective_seconds
from jaxplan.xla._lifetimes import Lifetimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Equal collectives of a plan, executed ``count`` times a step.

    Attributes:
      kind: ``all-gather``, ``reduce-scatter``, ``all-reduce``, ``all-to-all`` or ``collective-permute``.
      axes: atomic axes of the group, ascending.
      num_bytes: bytes per device of one of them, the larger side (see `jaxplan.mesh.collective_seconds`).
      count: how many.
      latency_share: fraction of a latency that each pays, because the compiler combines them; at 0 those of one kind
        and group pay one together.
    """

    kind: str
    axes: tuple[int, ...]
    num_bytes: int
    count: int
    latency_share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted cost of one step of a plan on one device.

    Attributes:
      compute_seconds, communication_seconds: of everything, one after the other.
      hidden_seconds: communication that runs beside compute: where overlapped that of all collectives, otherwise of the
        passes inside of an operator alone.
      flops: floating-point operations of contractions and convolutions on one device.
      memory_bytes: peak, arguments + outputs - aliased + temporaries.
      memory_parts: bytes of the peak by kind of array; sums to ``memory_bytes``.
      collectives: everything that is communicated.
      host_seconds: on the link to the host, for arguments that live there (`jaxplan.cost._offload`).
      host_bytes: of these arguments.
      overlapped: whether collectives run beside compute (`jaxplan.simulate.OverlappedPredictor`) or in turn with it.
    """

    compute_seconds: float
    communication_seconds: float
    flops: float
    memory_bytes: int
    memory_parts: Mapping[str, int]
    collectives: tuple[Collective, ...]
    hidden_seconds: float = 0.0
    host_seconds: float = 0.0
    host_bytes: int = 0
    overlapped: bool = False

    @property
    def time_seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds + self.host_seconds - self.hidden_seconds


_Collective = tuple[str, tuple[int, ...], int, float]
"""Kind, axes ascending, bytes and share of a latency."""
_MOST_REMEMBERED = 256
"""Solutions whose transfers are remembered: a frontier's, which are predicted first and made plans of later."""


class Predictor:
    """Predicts plans of one cost model; holds the tables that no plan changes."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        graph = model.graph
        self._communicating = [g.index for g in graph.grouping.groups if may_communicate(graph, g.index)]
        self._changed = ChangedReads(model)
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Transfer, ...]] = {}
        self._transfers = Memo()
        self._sent = Remembered[list[tuple[_Collective, int]]]()
        self._inner: dict[tuple[int, Configuration], tuple[InnerCollective, ...]] = {}
        self._live_ranges = LiveRanges(model)
        in_order = model.buffers.in_order
        self._in_order = LiveRanges(replace(model, buffers=in_order)) if in_order else None
        self._asked = AskedGradients(model) if in_order else None

    def predict(
        self, assignment: Sequence[int], choices: Sequence[int]
    ) -> tuple[Prediction, tuple[Transfer, ...]]:
        """Cost of a solution and the transfers that it executes."""
        model = self.model
        chosen = model.chosen(assignment)
        transfers = self.transfers(assignment, choices)
        inner = self.inner(chosen, transfers)
        sent = self._sent.of_all(transfers, lambda transfer: self._collectives_of(transfer))
        collectives = _added_up([_counted(inner), *sent])
        on_host = int(sum(h[k] for h, k in zip(model.host_bytes, assignment)))
        peak, parts, waiting = (
            self._memory(assignment, chosen, transfers) if assignment else (*self._scalars(), 0)
        )
        link = host_seconds(model.topology, sum(b[k] for b, k in zip(model.link_bytes, assignment)))
        if waiting:
            link += waiting_seconds(model.topology, waiting, forward_seconds(model, assignment))
        seconds = float(sum(c[k] for c, k in zip(self.model.compute, assignment, strict=True)))
        prediction = Prediction(
            compute_seconds=seconds
            if assignment
            else model.topology.chip.launch_seconds,  # scalars only: a kernel
            communication_seconds=self._communication_seconds(collectives),
            flops=float(sum(f[k] for f, k in zip(self.model.flops, assignment, strict=True))),
            memory_bytes=peak,
            memory_parts=parts,
            collectives=collectives,
            hidden_seconds=sum(
                (c.seconds(model.topology) - c.visible_seconds(model.topology) for c in inner), 0.0
            ),
            host_seconds=link,
            host_bytes=on_host + waiting,
        )
        return prediction, transfers

    def _collectives_of(self, transfer: Transfer) -> list[tuple[_Collective, int]]:
        """The collectives of a transfer, counted; a copy that is gathered again waits for a dot of its own, so that
        none is combined with it."""
        share, again = self.model.latency_shares.get(transfer.tensor, 1.0), len(transfer.spans) - 1
        tpu, counts = self._live_ranges.tpu, list[tuple[_Collective, int]]()
        for kind, axes, num_bytes in tpu.sent(transfer) if tpu else transfer.collectives:
            what = kind, tuple(sorted(axes)), int(num_bytes)
            counts.append(((*what, share), transfer.trips))
            if again:
                counts.append(((*what, 1.0), transfer.trips * again))
        return counts

    def inner(self, chosen: Sequence[Configuration], transfers: Sequence[Transfer]) -> list[InnerCollective]:
        """Collectives inside operators, in order of their groups."""
        graph, topology = self.model.graph, self.model.topology
        of = chosen, transfers, self.model.buffers, self._inner
        return list(inner_of_plan(graph, topology, self._communicating, *of))

    def transfers(self, assignment: Sequence[int], choices: Sequence[int]) -> tuple[Transfer, ...]:
        """The transfers that a solution executes; those of the last few solutions are remembered."""
        key = (tuple(assignment), tuple(choices))
        if key not in self._known:
            model = self.model
            changed = self.changed_reads(assignment, model.chosen(assignment))
            found = make_transfers(
                model.graph,
                model.topology,
                model.reads,
                changed,
                model.repeated(choices),
                self._transfers,
                model.buffers,
            )
            if len(self._known) >= _MOST_REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[key] = found
        return self._known[key]

    def changed_reads(self, assignment: Sequence[int], chosen: Sequence[Configuration]) -> list[ChangedRead]:
        """As the function of that name; equal objects for the parts that an assignment shares with another."""
        return self._changed.of(assignment, chosen)

    def _communication_seconds(self, collectives: Sequence[Collective]) -> float:
        seconds = functools.partial(collective_seconds, self.model.topology)
        total = sum(
            (c.count * seconds(c.kind, c.num_bytes, c.axes, c.latency_share) for c in collectives), 0.0
        )
        together = {(c.kind, c.axes) for c in collectives if not c.latency_share}
        return total + sum(seconds(kind, 0, axes) for kind, axes in sorted(together))

    def _memory(
        self, assignment: Sequence[int], chosen: Sequence[Configuration], transfers: Sequence[Transfer]
    ) -> tuple[int, dict[str, int], int]:
        """Peak of the liveness curve, its parts, and the bytes that wait on the host.

        The curve has two positions per equation: results are born at the first, operands die at the second. Nothing is
        assumed to work in place: compiled programs showed logits and their gradient side by side.
        """
        lifetimes = self.lifetimes(assignment, chosen, transfers)
        return *lifetimes.peak(), int(lifetimes.on_host)

    def _scalars(self) -> tuple[int, dict[str, int]]:
        """Peak and parts of a step on scalars only, which no group holds: its arguments and results."""
        program = self.model.graph.program
        given, made = (
            sum(program.tensors[t].num_bytes for t in tensors)
            for tensors in (program.inputs, set(program.outputs) - set(program.inputs))
        )
        return given + made, {BATCH: given, TEMPORARIES: made}

    def lifetimes(
        self, assignment: Sequence[int], chosen: Sequence[Configuration], transfers: Sequence[Transfer]
    ) -> Lifetimes:
        """From when to when everything lives that a plan holds in memory.

        Without collectives the compiler takes the order of least memory. With some it defers gradients, to run compute
        beside them, except where the lowering asks for these. Its order is not known for certain, so that gaps in the
        heap are counted as far as both have them.
        """
        found = self._live_ranges.of(assignment, chosen, transfers)
        peaks_after = found.peaks_after(self.model.buffers.turning_point)
        if self._in_order is None or self._asked is None or not (peaks_after or found.gaps):
            return found
        in_order = self._in_order.of(assignment, chosen, transfers)
        if peaks_after and in_order.live_bytes() < found.live_bytes():
            communicates = any(transfer.collectives for transfer in transfers)
            if not communicates or self._asked.are_asked(assignment, chosen, transfers, in_order):
                found, in_order = in_order, found
        return replace(found, most_gaps=in_order.gaps) if found.gaps else found


def _counted(inner: Sequence[InnerCollective]) -> list[tuple[_Collective, int]]:
    """Collectives inside operators, and how often they run."""
    return [((c.kind, tuple(sorted(c.axes)), int(c.num_bytes), 1.0), int(c.count)) for c in inner]


def _added_up(counted: Iterable[Sequence[tuple[_Collective, int]]]) -> tuple[Collective, ...]:
    """Equal collectives as one, in their order."""
    counts: dict[_Collective, int] = defaultdict(int)
    for what, count in itertools.chain.from_iterable(counted):
        counts[what] += count
    return tuple(
        Collective(kind=kind, axes=axes, num_bytes=size, count=count, latency_share=share)
        for (kind, axes, size, share), count in sorted(counts.items())
    )
