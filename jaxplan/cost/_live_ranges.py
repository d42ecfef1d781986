"""From when to when everything lives that a plan holds in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from jaxplan.cost._attention import AttentionBlocks
from jaxplan.cost._buffer_sizes import BufferSizes
from jaxplan.cost._copies import COPIES, Copies
from jaxplan.cost._dots_behind import DotsBehind
from jaxplan.cost._extended import ExtendedImages
from jaxplan.cost._home_deaths import HomeDeaths
from jaxplan.cost._hosted_parameters import HostedParameters
from jaxplan.cost._masked_rows import MaskedCopies
from jaxplan.cost._model import CostModel
from jaxplan.cost._offload import sent_by, staged_on_device
from jaxplan.cost._ordered_copies import OrderedCopies
from jaxplan.cost._padded_images import PaddedImages
from jaxplan.cost._residents import BATCH, OTHER_STATE, PARAMETERS, resident_labels
from jaxplan.cost._summed_losses import SummedLosses
from jaxplan.cost._tpu_buffers import TpuBuffers
from jaxplan.cost._transfers import Transfer
from jaxplan.cost._written_summands import WrittenSummands
from jaxplan.ir import CONTRACTION_FAMILIES, UNGROUPED, Configuration
from jaxplan.xla._lifetimes import Lifetimes
from jaxplan.xla._plan_effects import ClearTogether, Gaps, Pack, Scratch, TakeTurns
from jaxplan.xla.rules.gpu.pooling import PoolBuffer

TEMPORARIES = "gradients and temporaries"
WORKSPACE = "workspace"
"""Label of the scratch of dots."""
_RESIDENT = (PARAMETERS, OTHER_STATE, BATCH)


class LiveRanges:
    """Of the plans of one model: its buffers, their bytes under each configuration, and when they live."""

    def __init__(self, model: CostModel) -> None:
        self.model, self._target = model, model.buffers.target
        self._is_packed = model.buffers.found.has(Pack)
        graph, buffers = model.graph, model.buffers
        members = self._sizes()
        inputs = set(graph.program.inputs)
        labels = resident_labels(graph)
        self._is_input = np.array([t in inputs for t in members], dtype=bool)
        kinds = [_RESIDENT.index(labels[t]) for t in members if t in inputs]
        self._kind_of_input = np.array(kinds, dtype=np.int64)
        self._made = np.array([t for t in members if t not in inputs], dtype=np.int64)
        self._place = {t: i for i, t in enumerate(self._made.tolist())}
        groups = graph.grouping.groups
        self._updates = {
            f.tensor for f in model.reads if f.consumer != UNGROUPED and groups[f.consumer].kind == "state"
        }
        families = enumerate(rule.family for rule in graph.rules)
        self._calls = frozenset(e for e, family in families if family in CONTRACTION_FAMILIES)
        self._workspaces = {effect.equation: effect.num_bytes for effect in buffers.found.of(Scratch)}
        self._large_tables = {effect.tensor for effect in buffers.found.of(TakeTurns)}
        self._behind = DotsBehind.of_model(model)
        self._deaths, self._copies = HomeDeaths(model, self._behind), Copies(model)
        self._summands, self._ordered = WrittenSummands(model), OrderedCopies(model)
        self._extended, self._padded = ExtendedImages(model, buffers.read_end), PaddedImages(model)
        self._masked = MaskedCopies(model)
        self._attentions, self._losses = AttentionBlocks(model), SummedLosses(model)
        self.tpu = TpuBuffers(model, self._place) if self._target.tiles_arrays else None
        self._added = list(self._sums_of_a_library())
        self._pooled = [b for b in buffers.found.of(PoolBuffer) if b.tensor in self._place]
        cleared = (effect.tensors for effect in buffers.found.of(ClearTogether))
        self._cleared = [[t for t in together if t in self._place] for together in cleared]
        self._birth = np.array([buffers.birth[t] for t in self._place], dtype=np.int64)
        self._staged = staged_on_device(graph, buffers.birth, buffers.sums.keys())
        death = dict(enumerate(buffers.death))
        for t, (born, dead) in self._staged.successors.items():
            self._birth[self._place[t]], death[t] = born, dead
        self._death = np.array([death[t] for t in self._place], dtype=np.int64)
        kinds = (TEMPORARIES, "activations")
        self._hosted = HostedParameters(model)
        self._waiting = [w for w in graph.waiting_on_host if w.tensor in self._place]
        self._sent_by = sent_by(graph) if self._waiting else {}
        self._label = np.array(kinds, dtype=object)[(self._birth < buffers.turning_point).astype(np.int64)]

    def _sums_of_a_library(self) -> Iterator[tuple[int, set[int]]]:
        """Places of sums that are buffers because a library adds a dot to them, and the dot with its views.

        Where one of these is resharded first, no library adds it: the sum is fused into its readers.
        """
        buffers, program = self.model.buffers, self.model.graph.program
        views = defaultdict[int, set[int]](set)
        for view, dot in buffers.added_up.items():
            views[dot].update((view, dot))
        for equation, other in buffers.sums.items():
            (result,) = program.equations[equation].results
            is_its = equation in buffers.sums_alone and result not in program.returned
            summand = next(t for t in program.equations[equation].operands if t != other)
            if is_its and result in self._place:
                dot = buffers.added_up.get(summand, summand)
                yield self._place[result], {dot, *views[dot]}

    def _sizes(self) -> list[int]:
        """The buffers of all groups, in order; fills the table of their bytes, K of each after the other."""
        graph, materialised = self.model.graph, self.model.buffers.materialised
        on_host, sizes_of = graph.on_host, BufferSizes(self.model)
        replaced = {t for t, old in graph.program.replaced.items() if old not in on_host}
        everyone: list[int] = []
        tables: list[np.ndarray] = []
        for group in graph.grouping.groups:
            made = [t for e in group.equations for t in graph.program.equations[e].results]
            inputs = (t for t in group.inputs if t not in on_host)
            members = [*inputs, *(t for t in made if materialised[t] and t not in replaced)]
            everyone.extend(members)
            tables.append(sizes_of(group.index, members))
        self._bytes = np.concatenate([table.ravel() for table in tables] or [np.zeros(0)])
        lengths, width_of = np.array([table.shape for table in tables], dtype=np.int64).reshape(-1, 2).T
        self._holder, widths = np.repeat(np.arange(len(tables)), lengths), np.repeat(width_of, lengths)
        self._first_byte = np.cumsum(widths) - widths
        return everyone

    def of(
        self, assignment: Sequence[int], chosen: Sequence[Configuration], transfers: Sequence[Transfer]
    ) -> Lifetimes:
        """From when to when everything lives that a plan holds in memory."""
        model = self.model
        end = len(model.graph.program.equations)
        held = self._bytes[self._first_byte + np.asarray(assignment, dtype=np.int64)[self._holder]]
        death = self._death.copy()
        home_deaths = self._deaths.of(assignment, chosen, transfers)
        shortened = {self._place[t]: last for t, last in home_deaths.items() if t in self._place}
        death[[*shortened]] = [*shortened.values()]
        read_by_losses, copied_for_losses = self._losses.of(chosen, transfers)
        for t, last in read_by_losses.items():
            death[self._place[t]] = max(death[self._place[t]], last)
        made = held[~self._is_input]
        for t, sources in model.buffers.instead.items():
            if not made[self._place[t]]:
                longer = [self._place[u] for u in sources if u in self._place and u not in home_deaths]
                death[longer] = np.maximum(death[longer], death[self._place[t]])
        ordered = list(self._copied_in_order(assignment, chosen, transfers, death))
        away, on_host = self._wait_on_host(made, death, transfers)
        on_chip = 0.0
        if self.tpu:
            made, on_chip = self.tpu.in_main_memory(made)
        lives = np.flatnonzero(death >= self._birth)
        num_homes, moved = len(lives), {t.tensor for t in transfers}
        made[[place for place, summands in self._added if not moved.isdisjoint(summands)]] = 0
        brought = self._brought(assignment, transfers, made)
        birth = self._births(made, moved)[lives]
        executions = self._copies.of(transfers)
        for (number, turn), at in copied_for_losses.items():
            made_by = list(executions[number])
            first, last, size, label = made_by[turn]
            made_by[turn] = first, max(last, 2 * at + 1), size, label
            executions[number] = tuple(made_by)
        turns = [(number, turn) for number, made_by in enumerate(executions) for turn in range(len(made_by))]
        born = [copy for made_by in executions for copy in made_by]  # first and last position, bytes, label
        born += away
        born += ordered
        born += brought
        born += self._besides(assignment, chosen, transfers, made)
        firsts, lasts, sizes, labels = zip(*born) if born else ((), (), (), ())
        resident = np.bincount(self._kind_of_input, held[self._is_input], len(_RESIDENT)).tolist()
        return Lifetimes(
            first=np.concatenate([2 * birth, np.array(firsts, dtype=np.int64)]),
            last=np.concatenate([2 * death[lives] + 1, np.array(lasts, dtype=np.int64)]),
            sizes=np.concatenate([made[lives], np.array(sizes, dtype=np.float64)]),
            labels=(*self._label[lives].tolist(), *labels),
            resident=dict(zip(_RESIDENT, resident, strict=True)),
            length=2 * end + 2,
            home=dict(zip(self._made[lives].tolist(), range(num_homes))),
            copies=dict(zip(turns, range(num_homes, num_homes + len(turns)))),
            on_chip=on_chip,
            on_host=on_host,
            has_gaps=model.buffers.found.has(Gaps),
            is_packed=self._is_packed,
        )

    def _brought(
        self, assignment: Sequence[int], transfers: Sequence[Transfer], made: np.ndarray
    ) -> list[tuple[int, int, float, str]]:
        """(first, last position, bytes, label) of the copies of parameters on the host; their own bytes are no more:
        ``made`` is changed."""
        copies = self._hosted.on_device(assignment, transfers)
        made[[self._place[t] for t in copies if t in self._place]] = 0
        return [(2 * first, 2 * last + 1, size, PARAMETERS) for of in copies.values() for first, last, size in of]

    def _wait_on_host(
        self, made: np.ndarray, death: np.ndarray, transfers: Sequence[Transfer]
    ) -> tuple[list[tuple[int, int, float, str]], float]:
        """Values that wait on the host, back on the device behind their barriers; and the bytes of all of them.

        On the device their originals die once they are copied: ``death`` is changed.
        """
        back: list[tuple[int, int, float, str]] = []
        on_host = 0.0
        if not self._waiting:
            return back, on_host
        moved = {(t.tensor, reader) for t in transfers for span in t.spans for reader in span.readers}
        read_end, values = self.model.buffers.read_end, self.model.graph.values
        for w in self._waiting:
            i = self._place[w.tensor]
            if (w.tensor, w.barrier) in moved:
                continue
            on_host += made[i]
            ends = [read_end[c] for c in values.consumers[w.tensor] if c != w.barrier]
            last = max([self._birth[i], self._sent_by[w.tensor], *ends])
            if last < w.barrier:
                if w.copy not in self._place:
                    back.append((2 * w.barrier, 2 * int(max(death[i], w.barrier)) + 1, float(made[i]), "activations"))
                death[i] = last
        return back, on_host

    def _copied_in_order(
        self,
        assignment: Sequence[int],
        chosen: Sequence[Configuration],
        transfers: Sequence[Transfer],
        death: np.ndarray,
    ) -> Iterator[tuple[int, int, float, str]]:
        """(first, last position, bytes, label) of copies with the dimensions in another order.

        A kernel of its own makes the copy in front of its first reader, so a value that nothing else reads dies there,
        before the reader, a dot outside of loops, makes its result: ``death`` is changed.
        """
        moved, equations = {t.tensor for t in transfers}, self.model.graph.program.equations
        for t, first, last, size in self._ordered.copies(assignment, chosen, transfers):
            place = self._place.get(t)
            is_read_once = place is not None and t not in moved and death[place] == first > self._birth[place]
            is_last = is_read_once and first in self._calls and equations[first].region < 0
            if is_last:
                death[place] = first - 1
            yield 2 * first - is_last, 2 * last + 1, size, TEMPORARIES

    def _besides(
        self,
        assignment: Sequence[int],
        chosen: Sequence[Configuration],
        transfers: Sequence[Transfer],
        made: np.ndarray,
    ) -> Iterator[tuple[int, int, float, str]]:
        """(first, last position, bytes, label) of buffers beside tensors and the copies of transfers.

        ``made`` are the bytes of the tensors that are made, in their order.
        """
        model = self.model
        for first, last, size in self._copies.beside(transfers):
            yield first, last, size, COPIES
        if self.tpu:
            for first, last, size in self.tpu.copies(chosen, transfers):
                yield 2 * first, 2 * last, size, COPIES
        for first, last, size in self._summands.of(assignment):
            yield 2 * first, 2 * last + 1, size, TEMPORARIES
        for first, last, size in self._extended.copies(assignment, chosen):
            yield 2 * first, 2 * last + 1, size, COPIES
        for first, last, size in self._padded.copies(assignment, chosen):
            yield 2 * first, 2 * last + 1, size, TEMPORARIES
        for first, last, size in self._masked.of(chosen):
            yield 2 * first, 2 * last + 1, size, TEMPORARIES
        for beside in self._pooled:
            share = made[self._place[beside.tensor]] / model.buffers.num_bytes[beside.tensor]
            yield 2 * beside.first, 2 * beside.last + 1, share * beside.num_bytes, TEMPORARIES
        for t, first, last in self._staged.beside:
            yield 2 * first, 2 * last + 1, made[self._place[t]], TEMPORARIES
        for e, size in self._attentions.of(chosen):
            yield 2 * e, 2 * e + 1, size, TEMPORARIES
        workspace = max(self._workspaces.values(), default=0)
        for e in self._dots_run(transfers):
            yield 2 * e, 2 * e + 1, workspace, WORKSPACE

    def _births(self, sizes: np.ndarray, moved: set[int]) -> np.ndarray:
        """When each buffer is made; those that are cleared together, where the first of equal size is.

        Gradients of large tables that are ``moved`` to their update take turns: the lowering asks for it.
        """
        birth = self._birth.copy()
        for cleared in self._cleared:
            alone = self._large_tables & moved & self._updates
            of = np.array([self._place[t] for t in cleared if t not in alone], dtype=np.int64)
            for size in np.unique(sizes[of]).tolist():
                equal = of[sizes[of] == size]
                birth[equal] = birth[equal].min()
        return birth

    def _dots_run(self, transfers: Sequence[Transfer]) -> list[int]:
        """Equations at which a dot with scratch memory runs: where it is, and in front of each scatter of its partial
        sum, for which it may wait where weight gradients are deferred."""
        buffers, dots = self.model.buffers, self._workspaces
        waiting = set[int]() if not buffers.deferred else {
            span.first
            for transfer in transfers
            if transfer.path.steps[0].kind == "reduce-scatter" and self._behind.of(transfer.tensor) is not None
            for span in transfer.spans
        }
        waiting.update(defer.after + 1 for e, defer in buffers.deferred.items() if e in dots and e in buffers.after)
        return [*dots, *sorted(waiting.difference(dots))] if dots else []
