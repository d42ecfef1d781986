"""Predicted cost of one plan: compute, each collective, and peak memory by live ranges."""

from __future__ import annotations

import bisect
import functools
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxplan.cost._buffer_sizes import BufferSizes
from jaxplan.cost._changed import ChangedReads
from jaxplan.cost._extended import ExtendedImages
from jaxplan.cost._inner import InnerCollective, inner_of_plan, may_communicate
from jaxplan.cost._model import CostModel
from jaxplan.cost._ordered_copies import OrderedCopies
from jaxplan.cost._reads import required_sharding, sharding_of
from jaxplan.cost._residents import BATCH, OTHER_STATE, PARAMETERS, resident_labels
from jaxplan.cost._tpu_buffers import SentBytes, TpuBuffers
from jaxplan.cost._transfers import ChangedRead, Transfer, make_transfers
from jaxplan.cost._updated_parts import gathered_updates, replaced_in_place
from jaxplan.ir import CONTRACTION_FAMILIES, REGION_IN, UNGROUPED, Configuration, Tensor, backward_barriers
from jaxplan.mesh import Sharding, collective_seconds
from jaxplan.xla._lifetimes import Lifetimes
from jaxplan.xla.rules.both.deferred import is_gradient
from jaxplan.xla.rules.both.liveness import GATHERED_INTO_ARGUMENTS, SHORTENED_SOURCES, UPDATED_PARTS
from jaxplan.xla.rules.both.schedule import GRADIENTS_AT_BARRIERS, LARGE_PARAMETER_BYTES
from jaxplan.xla.rules.gpu.layouts import DOT_WORKSPACE, GATHERS_IN_PIECES
from jaxplan.xla.rules.gpu.library_sums import VIEWS
from jaxplan.xla.rules.gpu.schedule import ALL_REDUCES_IN_PLACE, SCATTERED_BESIDE, TABLES_TAKE_TURNS
from jaxplan.xla.rules.gpu.summands import Summand
from jaxplan.xla.rules.tpu.liveness import HEAP_GAPS, RECOMPUTED_SOURCES


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
      hidden_seconds: communication that runs beside compute; zero unless overlap was asked for.
      flops: floating-point operations of contractions and convolutions on one device.
      memory_bytes: peak, arguments + outputs - aliased + temporaries.
      memory_parts: bytes of the peak by kind of array; sums to ``memory_bytes``.
      collectives: everything that is communicated.
    """

    compute_seconds: float
    communication_seconds: float
    flops: float
    memory_bytes: int
    memory_parts: Mapping[str, int]
    collectives: tuple[Collective, ...]
    hidden_seconds: float = 0.0

    @property
    def time_seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds - self.hidden_seconds


_MOST_REMEMBERED = 256
"""Solutions whose transfers are remembered: a frontier's, which are predicted first and made plans of later."""

_TEMPORARIES, _COPIES = "gradients and temporaries", "resharded copies"


class Predictor:
    """Predicts plans of one cost model; holds the tables that no plan changes."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        graph, buffers = model.graph, model.buffers
        self._target = target = buffers.target
        program = graph.program
        self._read_end = buffers.read_end
        self._barriers = [equations.start for equations in backward_barriers(program)]
        self._communicating = [g.index for g in graph.grouping.groups if may_communicate(graph, g.index)]
        self._changed = ChangedReads(model)
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Transfer, ...]] = {}
        self._transfers: dict = {}
        self._copies: dict[int, tuple[Transfer, list[tuple[int, int, int]]]] = {}
        self._homes: dict[tuple[int, ...], tuple[tuple[Transfer, ...], int]] = {}
        self._reads: dict[tuple[int, ...], dict[Sharding, int]] = {}
        self._readers: dict[int, tuple[int, ...]] = {}
        self._contractions = [
            e.index for e in program.equations if graph.rules[e.index].family == "contraction"
        ]
        self._arriving: dict[int, tuple[Transfer, int]] = {}
        self._products = frozenset(self._contractions)
        self._library_calls = frozenset(
            e.index for e in program.equations if graph.rules[e.index].family in CONTRACTION_FAMILIES
        )
        self._product_of: dict[int, int | None] = {}
        results = (program.equations[e].results[0] for e in self._library_calls if program.equations[e].region < 0)
        self._gradient_births = sorted(buffers.birth[t] for t in results if is_gradient(graph, t))
        self._axes = model.topology.axes
        self._summands = buffers.summands
        self._written: dict[tuple[int, int], tuple[tuple[int, int, int, int], ...]] = {}
        self._replaced = replaced_in_place(program)
        inputs = set(program.inputs)
        everyone: list[int] = []
        self._bytes: list[np.ndarray] = []
        sizes_of = BufferSizes(model)
        for group in graph.grouping.groups:
            made = [t for e in group.equations for t in program.equations[e].results]
            members = [*group.inputs, *(t for t in made if buffers.materialised[t] and t not in self._replaced)]
            everyone.extend(members)
            self._bytes.append(sizes_of(group.index, members))
        self._is_input = np.array([t in inputs for t in everyone], dtype=bool)
        labels = resident_labels(graph)
        self._input_label = [labels[t] for t in everyone if t in inputs]
        self._made = np.array([t for t in everyone if t not in inputs], dtype=np.int64)
        self._place = {t: i for i, t in enumerate(self._made.tolist())}
        groups = graph.grouping.groups
        self._updates = {
            f.tensor for f in model.reads if f.consumer != UNGROUPED and groups[f.consumer].kind == "state"
        }
        self._tpu = TpuBuffers(model, self._place) if target.is_tpu else None
        self._ordered = OrderedCopies(model)
        self._extended = ExtendedImages(model, self._read_end)
        self._pooled = [b for b in buffers.pooled if b.tensor in self._place]
        self._cleared = [[t for t in c if t in self._place] for c in buffers.cleared]
        self._birth = np.array([buffers.birth[t] for t in self._place], dtype=np.int64)
        self._death = np.array([buffers.death[t] for t in self._place], dtype=np.int64)
        kinds = (_TEMPORARIES, "activations")
        self._label = np.array(kinds, dtype=object)[(self._birth < buffers.turning_point).astype(np.int64)]

    def predict(
        self, assignment: Sequence[int], choices: Sequence[int]
    ) -> tuple[Prediction, tuple[Transfer, ...]]:
        """Cost of a solution and the transfers that it executes."""
        model = self.model
        chosen = model.chosen(assignment)
        transfers = self.transfers(assignment, choices)
        sent = [(t, self._tpu.sent(t) if self._tpu else t.collectives) for t in transfers]
        collectives = _collectives(sent, model.latency_shares, self.inner(chosen, transfers))
        peak, parts = self._memory(assignment, chosen, transfers) if assignment else self._scalars()
        seconds = float(sum(c[k] for c, k in zip(self.model.compute, assignment, strict=True)))
        prediction = Prediction(
            compute_seconds=seconds if assignment else model.topology.chip.launch_seconds,  # scalars only: a kernel
            communication_seconds=self._communication_seconds(collectives),
            flops=float(sum(f[k] for f, k in zip(self.model.flops, assignment, strict=True))),
            memory_bytes=peak,
            memory_parts=parts,
            collectives=collectives,
        )
        return prediction, transfers

    def inner(
        self, chosen: Sequence[Configuration], transfers: Sequence[Transfer]
    ) -> list[InnerCollective]:
        """Collectives inside operators, in order of their groups."""
        graph, topology = self.model.graph, self.model.topology
        return list(inner_of_plan(graph, topology, self._communicating, chosen, transfers))

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
                self._target,
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
        total = sum((c.count * seconds(c.kind, c.num_bytes, c.axes, c.latency_share) for c in collectives), 0.0)
        together = {(c.kind, c.axes) for c in collectives if not c.latency_share}
        return total + sum(seconds(kind, 0, axes) for kind, axes in sorted(together))

    def _memory(
        self, assignment: Sequence[int], chosen: Sequence[Configuration], transfers: Sequence[Transfer]
    ) -> tuple[int, dict[str, int]]:
        """Peak of the liveness curve, two positions per equation: results are born at the first, operands die at the
        second. Nothing is assumed to work in place: compiled programs showed logits and their gradient side by side.
        """
        return self.lifetimes(assignment, chosen, transfers).peak()

    def _scalars(self) -> tuple[int, dict[str, int]]:
        """Peak and parts of a step on scalars only, which no group holds: its arguments and results."""
        program = self.model.graph.program
        given, made = (
            sum(program.tensors[t].num_bytes for t in tensors)
            for tensors in (program.inputs, set(program.outputs) - set(program.inputs))
        )
        return given + made, {BATCH: given, _TEMPORARIES: made}

    def lifetimes(
        self, assignment: Sequence[int], chosen: Sequence[Configuration], transfers: Sequence[Transfer]
    ) -> Lifetimes:
        """From when to when everything lives that a plan holds in memory."""
        model = self.model
        end = len(model.graph.program.equations)
        tables = [table[:, k] for table, k in zip(self._bytes, assignment, strict=True)]
        held = np.concatenate(tables or [np.zeros(0)])
        death = self._death.copy()
        home_deaths = self._home_deaths(assignment, chosen, transfers)
        for t, last in home_deaths.items():
            if t in self._place:
                death[self._place[t]] = last
        for t, sources in model.buffers.instead.items() if RECOMPUTED_SOURCES.applies_to(self._target) else ():
            if not held[~self._is_input][self._place[t]]:
                longer = [self._place[u] for u in sources if u in self._place and u not in home_deaths]
                death[longer] = np.maximum(death[longer], death[self._place[t]])
        on_chip = 0.0
        if self._tpu:
            held[~self._is_input], on_chip = self._tpu.in_main_memory(held[~self._is_input])
        lives = np.flatnonzero(death >= self._birth)
        num_homes, made = len(lives), held[~self._is_input]
        birth = self._births(made, {t.tensor for t in transfers})[lives]
        born: list[tuple[int, int, float, str]] = []  # first and last position, bytes, label
        copies: dict[tuple[int, int], int] = {}
        for number, transfer in enumerate(transfers):
            for turn, (first, last, size) in enumerate(self._copies_of(transfer)):
                copies[number, turn] = num_homes + len(born)
                born.append((first, last, size, _COPIES))
        born += self._besides(assignment, chosen, transfers, made)
        firsts, lasts, sizes, labels = zip(*born) if born else ((), (), (), ())
        resident: dict[str, float] = dict.fromkeys((PARAMETERS, OTHER_STATE, BATCH), 0.0)
        for label, size in zip(self._input_label, held[self._is_input].tolist(), strict=True):
            resident[label] += size
        return Lifetimes(
            first=np.concatenate([2 * birth, np.array(firsts, dtype=np.int64)]),
            last=np.concatenate([2 * death[lives] + 1, np.array(lasts, dtype=np.int64)]),
            sizes=np.concatenate([made[lives], np.array(sizes, dtype=np.float64)]),
            labels=(*self._label[lives].tolist(), *labels),
            resident=resident,
            length=2 * end + 2,
            home=dict(zip(self._made[lives].tolist(), range(num_homes))),
            copies=copies,
            on_chip=on_chip,
            has_gaps=HEAP_GAPS.applies_to(self._target),
        )

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
        pieces = [self._in_pieces(transfers), self._shared_copies(transfers), self._updated_parts(transfers)]
        if self._tpu:
            pieces.append(self._tpu.copies(chosen, transfers))
        for first, last, size in itertools.chain(*pieces):
            yield 2 * first, 2 * last, size, _COPIES
        for first, last, size in self._written_summands(assignment):
            yield 2 * first, 2 * last + 1, size, _TEMPORARIES
        for first, last, size in self._extended.copies(assignment, chosen):
            yield 2 * first, 2 * last + 1, size, _COPIES
        for first, last, size in self._ordered.copies(assignment, chosen, transfers):
            yield 2 * first, 2 * last + 1, size, _TEMPORARIES
        for beside in self._pooled:
            share = made[self._place[beside.tensor]] / model.buffers.num_bytes[beside.tensor]
            yield 2 * beside.first, 2 * beside.last + 1, share * beside.num_bytes, _TEMPORARIES
        workspace = self._target.workspace_bytes if DOT_WORKSPACE.applies_to(self._target) else 0
        for e in self._products_run(transfers) if workspace else ():
            yield 2 * e, 2 * e + 1, workspace, "workspace"

    def _births(self, sizes: np.ndarray, moved: set[int]) -> np.ndarray:
        """When each buffer is made; those that are cleared together, where the first of equal size is.

        Gradients of large tables that are ``moved`` to their update take turns: the lowering asks for it.
        """
        birth, tensors = self._birth.copy(), self.model.graph.program.tensors
        for cleared in self._cleared:
            large = {t for t in cleared if tensors[t].num_bytes >= LARGE_PARAMETER_BYTES}
            alone = large & moved & self._updates if TABLES_TAKE_TURNS.applies_to(self._target) else set[int]()
            of = np.array([self._place[t] for t in cleared if t not in alone], dtype=np.int64)
            for size in np.unique(sizes[of]).tolist():
                equal = of[sizes[of] == size]
                birth[equal] = birth[equal].min()
        return birth

    def _copies_of(self, transfer: Transfer) -> list[tuple[int, int, int]]:
        """(first, last position, bytes) of the copy that each execution of a transfer makes."""
        known = self._copies.get(id(transfer))
        if known is None:
            buffers, tensor, found = self.model.buffers, self._travelling(transfer), []
            end = len(self.model.graph.program.equations)
            for span in transfer.spans:
                latest = max(span.readers, key=self._read_end.__getitem__)  # the readers are fused, not all at once
                is_wide = transfer.carried in buffers.widened and buffers.is_kept(span.first, latest)
                size = self.model.pricer.copy_bytes(tensor, transfer.target, is_wide)
                if GATHERED_INTO_ARGUMENTS.applies_to(self._target) and (
                    transfer.tensor in self._replaced and span.first == end
                ):  # into the buffer that is replaced
                    size = 0
                first = max(span.first, buffers.birth[transfer.tensor])
                found.append((2 * first, 2 * max(first, min(self._read_end[latest], end)) + 1, size))
            known = self._copies[id(transfer)] = transfer, found  # kept alive: its id is the key
        return known[1]

    def _travelling(self, transfer: Transfer) -> Tensor:
        return replace(self.model.graph.program.tensors[transfer.tensor], itemsize=transfer.itemsize)

    def _in_pieces(self, transfers: Sequence[Transfer]) -> Iterator[tuple[int, int, int]]:
        """(equation, the same, bytes) of gathered copies that are there once more while a product first reads them.

        A gather writes the pieces one after the other. Where the gathered dimension lies between others (the positions
        of a sequence), compiled GPU programs were seen to transpose that for products.
        """
        for transfer in transfers:
            known = self._arriving.get(id(transfer))
            if known is None:
                size = 0
                if self._arrives_in_pieces(transfer):
                    size = self.model.pricer.local_bytes(self._travelling(transfer), transfer.target)
                known = self._arriving[id(transfer)] = transfer, size  # kept alive: its id is the key
            for span in transfer.spans if known[1] else ():
                yield span.first, span.first, known[1]

    def _arrives_in_pieces(self, transfer: Transfer) -> bool:
        step = transfer.path.steps[-1]
        if step.kind != "all-gather" or step.dim is None or not GATHERS_IN_PIECES.applies_to(self._target):
            return False
        first = transfer.spans[0].first
        if first not in self._products:
            return False
        shape = transfer.target.local_shape(self.model.graph.program.tensors[transfer.tensor].shape, self._axes)
        return math.prod(shape[: step.dim]) > 1 and math.prod(shape[step.dim + 1 :]) > 1

    def _products_run(self, transfers: Sequence[Transfer]) -> list[int]:
        """Equations at which a matrix product runs: where it is, and in front of each scatter of its partial sum, for
        which it may wait."""
        waiting = {
            span.first
            for transfer in transfers
            if transfer.path.steps[0].kind == "reduce-scatter" and self._product_behind(transfer.tensor) is not None
            for span in transfer.spans
        }
        return [*self._contractions, *sorted(waiting - self._products)] if self._contractions else []

    def _product_behind(self, t: int) -> int | None:
        """The dot or convolution that makes a tensor, itself or through fused operators; None: there is none."""
        if t not in self._product_of:
            graph, materialised = self.model.graph, self.model.buffers.materialised
            stack, seen, found = [t], {t}, None
            while stack and found is None:
                index = graph.values.producer[stack.pop()]
                found = index if index in self._library_calls else None
                is_fused = index >= 0 and graph.rules[index].family in ("elementwise", "shape")
                operands = graph.program.equations[index].operands if is_fused else ()
                calls = [u for u in operands if graph.values.producer[u] in self._library_calls]
                stack += [u for u in operands if u not in seen and not materialised[u]] + calls
                seen.update(operands)
            self._product_of[t] = found
        return self._product_of[t]

    def _written_summands(self, assignment: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """(first, last equation, bytes) of materialised summands of sums over columns (`Summand`)."""
        done: set[int] = set()
        groups = self.model.graph.grouping.equation_group
        for number, summand in enumerate(self._summands):
            group = groups[summand.equation]
            key = (number, assignment[group] if group != UNGROUPED else 0)
            if key not in self._written:
                self._written[key] = tuple(self._made_for(summand, group, key[1]))
            for t, *span in self._written[key]:
                if t not in done:
                    done.add(t)
                    yield span[0], span[1], span[2]

    def _made_for(self, summand: Summand, group: int, k: int) -> Iterator[tuple[int, int, int, int]]:
        """(tensor, first, last equation, bytes) of buffers for one sum, in configuration ``k`` of its group."""
        graph = self.model.graph
        shape = graph.program.tensors[summand.tensor].shape
        if group != UNGROUPED:
            config = self.model.configurations[group][k]
            sharding = required_sharding(graph.spaces[group], config, summand.tensor, len(shape))
            shape = sharding.local_shape(shape, self._axes)
        if summand.is_written(shape, self._target):
            for t in (summand.tensor, *summand.narrow):
                size = math.prod(shape) * graph.program.tensors[t].itemsize
                last = max(self._read_end[c] for c in graph.values.consumers[t])
                yield t, graph.values.producer[summand.beside if t == summand.tensor else t], last, size

    def _shared_copies(self, transfers: Sequence[Transfer]) -> Iterator[tuple[int, int, int]]:
        """(first, last equation, bytes) of copies that several transfers of a tensor share: live until the last one."""
        number, made = self.model.graph.values.merged, {}
        for transfer in transfers:
            first = transfer.spans[0].first
            if transfer.shared:
                sharding = transfer.path.shardings[transfer.shared]
                size = self.model.pricer.local_bytes(self._travelling(transfer), sharding)
                yield made[number[transfer.carried]], first, size
            elif len(transfer.spans) == 1:
                made.setdefault(number[transfer.carried], first)

    def _updated_parts(self, transfers: Sequence[Transfer]) -> Iterator[tuple[int, int, int]]:
        """(first, last equation, bytes) of arrays updated in parts, then gathered into the buffer that they replace."""
        values, end = self.model.graph.values, len(self.model.graph.program.equations)
        updated = UPDATED_PARTS.applies_to(self._target)
        for transfer in gathered_updates(self._replaced, end, transfers) if updated else ():
            size = self.model.pricer.local_bytes(self._travelling(transfer), transfer.path.shardings[0])
            yield values.producer[transfer.tensor], end, size

    def _home_deaths(
        self, assignment: Sequence[int], chosen: Sequence[Configuration], transfers: Sequence[Transfer]
    ) -> dict[int, int]:
        """Last read of the original copy of tensors that are resharded: readers of copies do not count."""
        of_tensor: dict[int, list[Transfer]] = defaultdict(list)
        for transfer in transfers:
            of_tensor[transfer.tensor].append(transfer)
        result = {}
        for t, moved in of_tensor.items():
            key = (t, *map(id, moved), -1, *[assignment[v] for v in self._readers_of(t)])
            if key not in self._homes:
                # The transfers are kept alive: their ids are part of the key.
                self._homes[key] = tuple(moved), self._home_death(t, moved, assignment, chosen)
            result[t] = self._homes[key][1]
            if (product := self.model.buffers.added_up.get(t)) is not None:
                result.setdefault(product, result[t])
        if SHORTENED_SOURCES.applies_to(self._target):
            self._shorten_sources(result)
        return result

    def _home_death(
        self, t: int, moved: Sequence[Transfer], assignment: Sequence[int], chosen: Sequence[Configuration]
    ) -> int:
        """Last read of the original copy of one tensor that is resharded."""
        executed = [
            max(
                self._executed_by(transfer, span.first) - self._is_reduced_in_place(transfer),
                self._scattered_by(transfer, span.first),
            )
            for transfer in moved
            for span in transfer.spans
        ]
        wanted = {transfer.target for transfer in moved}
        ends = [end for sharding, end in self._last_reads(t, assignment, chosen).items() if sharding not in wanted]
        return max(executed + ends)

    def _is_reduced_in_place(self, transfer: Transfer) -> bool:
        """Whether the sum is written over the partial result that it is made of.

        Gradients of parameters only: input gradients that are summed side by side were seen in buffers of their own.
        NCCL reduces in place, and XLA lets an all-reduce share the buffer of an operand that is read last
        (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/inplace.html). The operand has to be a buffer:
        element-wise operators in front of it write one of their own.
        """
        if not ALL_REDUCES_IN_PLACE.applies_to(self._target):
            return False
        only_sums = all(step.kind == "all-reduce" for step in transfer.path.steps)
        if not (only_sums and is_gradient(self.model.graph, transfer.tensor)):
            return False
        values, equations, t = self.model.graph.values, self.model.graph.program.equations, transfer.tensor
        while not self.model.buffers.materialised[t]:
            producer = values.producer[t]
            if producer < 0 or equations[producer].name not in VIEWS:
                return False
            t = equations[producer].operands[0]
        return values.producer[t] >= 0

    def _readers_of(self, t: int) -> tuple[int, ...]:
        """Groups that read a tensor."""
        if t not in self._readers:
            graph = self.model.graph
            groups = {graph.grouping.equation_group[c] for c in graph.values.consumers[t]}
            self._readers[t] = tuple(sorted(groups - {UNGROUPED}))
        return self._readers[t]

    def _last_reads(
        self, t: int, assignment: Sequence[int], chosen: Sequence[Configuration]
    ) -> dict[Sharding, int]:
        """Layout in which a tensor is read -> the end of its last read, for the configurations of the readers."""
        graph = self.model.graph
        key = (t, *[assignment[v] for v in self._readers_of(t)])
        if key not in self._reads:
            ends: dict[Sharding, int] = {}
            for c in graph.values.consumers[t]:
                sharding = sharding_of(graph, chosen, graph.grouping.equation_group[c], t, produced=False)
                ends[sharding] = max(ends.get(sharding, 0), self._read_end[c])
            self._reads[key] = ends
        return self._reads[key]

    def _executed_by(self, transfer: Transfer, first: int) -> int:
        """By when a transfer is executed at the latest.

        Between regions of the backward pass that are computed again, the compiler was seen to put off the product that
        makes a gradient for as long as it may: until the barrier after the next, where the lowering asks for it.
        """
        if not GRADIENTS_AT_BARRIERS.applies_to(self._target) or not transfer.path.shardings[0].partial:
            return first
        if not self._barriers or first <= self._barriers[0]:
            return first
        k = bisect.bisect_left(self._barriers, first) + 1
        if k >= len(self._barriers):
            return first
        return min(self._barriers[k], self._read_end[transfer.spans[-1].last])

    def _scattered_by(self, transfer: Transfer, first: int) -> int:
        """The dot that runs beside the scatter of a gradient, which keeps the scatter's operand live; -1: none.

        GPU programs start a reduce-scatter and make the next gradient before they wait for it.
        """
        is_scattered = transfer.path.steps[0].kind == "reduce-scatter" and SCATTERED_BESIDE.applies_to(self._target)
        product = self._product_behind(transfer.tensor) if is_scattered else None
        if product is None or not is_gradient(self.model.graph, transfer.tensor):
            return -1
        made = self.model.buffers.birth[self.model.graph.program.equations[product].results[0]]
        following = bisect.bisect_right(self._gradient_births, max(first, made))
        return self._gradient_births[following] if following < len(self._gradient_births) else -1

    def _shorten_sources(self, deaths: dict[int, int]) -> None:
        """Sources of a fused, resharded value are live no longer than that value: a weight gradient that is
        transposed, reduced and kept as a shard does not outlive its reduction."""
        buffers, values = self.model.buffers, self.model.graph.values
        equations = self.model.graph.program.equations
        outputs, moved = set(self.model.graph.program.outputs), frozenset(deaths)
        waiting = [(-values.producer[t], t) for t in deaths if not buffers.materialised[t]]
        heapq.heapify(waiting)
        while waiting:
            index = -heapq.heappop(waiting)[0]
            for u in equations[index].operands if index >= 0 else ():
                if u in moved or u in outputs or buffers.birth[u] < 0:
                    continue
                last = max(
                    self._read_end[c]
                    if buffers.materialised[r] or equations[c].name == REGION_IN
                    else deaths.get(r, buffers.death[r])
                    for c in values.consumers[u]
                    for r in equations[c].results
                )
                if last < deaths.get(u, buffers.death[u]):
                    deaths[u] = last
                    if not buffers.materialised[u]:
                        heapq.heappush(waiting, (-values.producer[u], u))


def _collectives(
    transfers: Sequence[tuple[Transfer, Sequence[SentBytes]]],
    shares: Mapping[int, float],
    inner: Sequence[InnerCollective],
) -> tuple[Collective, ...]:
    """Collectives of a re-gathered copy wait for a dot of their own, so that none is combined with them."""
    counts: dict[tuple[str, tuple[int, ...], int, float], int] = defaultdict(int)
    for c in inner:
        counts[c.kind, tuple(sorted(c.axes)), int(c.num_bytes), 1.0] += int(c.count)
    for transfer, sent in transfers:
        for kind, axes, num_bytes in sent:
            what = kind, tuple(sorted(axes)), int(num_bytes)
            counts[*what, shares.get(transfer.tensor, 1.0)] += transfer.trips
            if len(transfer.spans) > 1:
                counts[*what, 1.0] += transfer.trips * (len(transfer.spans) - 1)
    return tuple(
        Collective(kind=kind, axes=axes, num_bytes=size, count=count, latency_share=share)
        for (kind, axes, size, share), count in sorted(counts.items())
    )
