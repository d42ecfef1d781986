"""What a plan does at each equation of its program, decided once: the jit backend.

Layouts are pinned by constraints; an equation with a split reduced factor runs as a fully manual island; a transfer
runs step by step (`jaxplan.partition._run` does it). docs/measured.md has the measurements behind the decisions.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections import defaultdict
from collections.abc import Sequence

from jaxplan.cost import Read, Transfer, boundary_shardings, padded_bytes, sharding_of
from jaxplan.ir import (
    CONTRACTION_FAMILIES,
    CUT,
    STORED_KINDS,
    UNGROUPED,
    VIEW_PRIMITIVES,
    Configuration,
    Equation,
    Region,
    StepGraph,
)
from jaxplan.mesh import Sharding, Topology
from jaxplan.partition._behind import products_behind
from jaxplan.partition._held_back import barriers_that_wait, places_of_due_products
from jaxplan.partition._kept_apart import products_kept_apart, slices_written_apart
from jaxplan.partition._micro_batches import num_parts
from jaxplan.partition._unpooled import find_unpooled
from jaxplan.xla import LARGE_PARAMETER_BYTES, Target, analyse_buffers, takes_every_other

PREFETCH_CONTRACTIONS = 8
"""A parameter is gathered at most this many contractions before it is read, about a block of a transformer: the
compiler was seen to gather all parameters of a model first."""
PREFETCH_LOOK_UPS = 1
"""A table is gathered when the rows of the one before are there: the compiler was seen to fuse 26 look-ups into the
operator that joins their rows, and to gather all tables for it."""

_OF_A_ROW = 1 / 64
"""What is known of a row (its label) has at most this many elements to one of the row."""


class Replay:
    """A plan bound to its program: what to do at each equation, decided once.

    Attributes:
      by_read: (tensor, layout) -> the transfer that brings the one to the other.
      crossing: tensors that some other group reads, but for those of which all readers read the same slice.
      whole, held_whole: what is computed, and (tensor, layout) of what is gathered, for values of which only a slice is
        read, and is small.
      alike: values, and the layouts they are made in, with several transfers that begin alike.
      late: tensors whose copy is made again in the backward pass.
      gradients: gradient of a parameter -> its transfer, made as soon as the gradient is.
      at_home: gradients of parameters that are made where they are stored.
      sums: gradients of biases and scales, whose sum over the devices waits for others.
      summands: parts of gradients that are added up before they are reduced.
      tables: updates of zeros that make the gradient of a large table; they take turns.
      settled: product before which all gradients are there that were made before it -> the operand that waits.
      settled_barriers: those that begin to compute a region again before which all gradients, and parts of them, are
        there.
      behind: products that make gradients -> the input gradient that they run behind.
      apart: products that are not to be merged with others of an operand -> the first of those and the operand's
        position, for each operand that it shares so.
      awaited: contraction -> parameters not to be gathered before its operands are there; look-up -> tables not to be
        gathered before its rows are.
      looked_up: look-ups in large parameters that are gathered for the forward pass alone; their rows, where
        they are smaller, are written.
      cut_apart: equations that cut what products read in two orders, padded, out of something larger; it is written.
      unpooled: gradients of max pooling that wait for what they scatter -> what waits.
      taken_apart: equations that make what an associative scan takes every second element of, for TPUs.
      written: per tensor whether it is a buffer of its own, for compilers that fuse into products.
      chip: what the program is compiled for.
    """

    def __init__(
        self,
        graph: StepGraph,
        configurations: Sequence[Configuration],
        reads: Sequence[Read],
        transfers: Sequence[Transfer],
        *,
        topology: Topology,
    ) -> None:
        self.graph, self.configurations = graph, tuple(configurations)
        self.axes, self.chip = topology.axes, topology.chip
        buffers = analyse_buffers(graph, Target.of(self.chip))
        self.by_read: dict[tuple[int, Sharding], Transfer] = {(t.tensor, t.target): t for t in transfers}
        self.held_whole: set[tuple[int, Sharding]] = set()
        self.whole: set[int] = set()
        self.crossing = {read.tensor for read in reads}.difference(t.tensor for t in transfers if self._is_cut_out(t))
        self.crossing |= self.whole
        self.alike = {(graph.values.merged[t.carried], t.path.shardings[0]) for t in transfers if t.shared}
        self.late = {t.tensor for t in transfers if t.repeated}
        stored = {f.tensor for f in reads if self._is_gradient(f, "state")}
        self.awaited = self._anchors([t for t in transfers if self._is_stored(t)])
        self.sums = frozenset(f.tensor for f in reads if self._is_sum(f))
        self.summands = frozenset(f.tensor for f in reads if self._is_gradient(f, "sum"))
        self.gradients = {t.tensor: t for t in transfers if t.tensor in stored and len(t.spans) == 1}
        self.at_home = frozenset(stored - {t.tensor for t in transfers})
        made = (*self.gradients, *self.at_home, *self.sums)
        self.settled = places_of_due_products(
            graph, self.chip, self._local_bytes, self._copy_of, transfers, made
        )
        self.settled_barriers = barriers_that_wait(
            graph, self.chip, self._local_bytes, self._copy_of, transfers, made, self.summands
        )
        self.behind = products_behind(graph, buffers.behind, self._local_bytes, self.home, transfers)
        self.apart = products_kept_apart(
            graph, self.chip, self._local_bytes, self._copy_of, transfers, self.awaited
        )
        self.written = buffers.materialised if self.chip.fuses_products else ()
        self.unpooled = find_unpooled(graph, self.chip, self._copy_of, self.late)
        self.looked_up = frozenset(e.index for e in graph.program.equations if self._is_looked_up(e))
        self.cut_apart = slices_written_apart(graph, self.chip, self._local_shape)
        self.taken_apart = frozenset(e.index for e in graph.program.equations if self._is_taken_apart(e))
        self.tables = frozenset(e for t in self.gradients if self._is_table(e := graph.values.producer[t]))

    def _local_bytes(self, t: int, sharding: Sharding | None) -> int:
        """Bytes of a tensor on one device; where no layout is given, in that in which it is made."""
        tensor = self.graph.program.tensors[t]
        local = (sharding or self.home(t)).local_shape(tensor.shape, self.axes) if tensor.shape else ()
        return padded_bytes(local, tensor.itemsize) if self.chip.is_tiled else math.prod(local) * tensor.itemsize

    def _local_shape(self, eqn: Equation, t: int) -> tuple[int, ...]:
        """Of an operand, on one device, as an equation reads it."""
        group = self.graph.grouping.equation_group[eqn.index]
        sharding = sharding_of(self.graph, self.configurations, group, t, produced=False)
        return tuple(sharding.local_shape(self.graph.program.tensors[t].shape, self.axes))

    def _copy_of(self, eqn: Equation, t: int) -> Transfer | None:
        """What brings an operand to the layout in which an equation reads it."""
        group = self.graph.grouping.equation_group[eqn.index]
        if group == UNGROUPED or self.graph.grouping.tensor_group[t] == UNGROUPED:
            return None
        return self.by_read.get((t, sharding_of(self.graph, self.configurations, group, t, produced=False)))

    def is_there(self, eqn: Equation, position: int) -> bool:
        """Whether an operand is in memory, not computed inside of the product that reads it."""
        copy = self._copy_of(eqn, eqn.operands[position])
        return not self.written or bool(copy and copy.collectives) or self.written[eqn.operands[position]]

    def _is_cut_out(self, transfer: Transfer) -> bool:
        """Whether all that reads a tensor reads a transfer's slice of it: no more than that need be computed.

        Left to compute the whole, the compiler wrote where the labels of a Llama are in its vocabulary, 2 GiB. Not so
        where it is computed of what is gathered for it: of a slice of that the compiler would gather less than planned.
        What is known of a row, its label, is computed and gathered whole all the same, if no product reads the slice:
        of the rows of experts, masked by slices, the compiler gathered less than planned.
        Nor where it is joined, padded or cut on the way: of the halves of which rotary positions make the gradient of a
        Llama's queries, the compiler exchanged what lay on another device than the slice.
        """
        t, equations = transfer.tensor, self.graph.program.equations
        copies = (self._copy_of(equations[e], t) for e in self.graph.values.consumers[t])
        is_sliced = all(step.kind == "slice" for step in transfer.path.steps)
        if not is_sliced or t in self.graph.program.outputs or any(copy is not transfer for copy in copies):
            return False
        computed_of = self._computed_of(t, 0)
        is_operand = any(self.graph.rules[e].family in CONTRACTION_FAMILIES for e in self.graph.values.consumers[t])
        if computed_of is None and not is_operand:
            computed_of = self._computed_of(t, int(_OF_A_ROW * self.graph.program.tensors[t].num_elements))
        if computed_of is None:
            return False
        self.whole |= computed_of[0]
        self.held_whole |= computed_of[1]
        return True

    def _computed_of(self, t: int, num_elements: int) -> tuple[set[int], set[tuple[int, Sharding]]] | None:
        """What a tensor is computed of that has at most so many elements, and copies gathered for it that have; none if
        it is gathered, or joined, padded or cut, where it has more."""
        program, small, gathered = self.graph.program, set[int](), set[tuple[int, Sharding]]()
        stack, seen = [t], {t}
        while stack:
            u = stack.pop()
            made_by = self.graph.values.producer[u]
            if made_by < 0 or self.graph.rules[made_by].family not in ("elementwise", "shape"):
                continue
            if program.tensors[u].num_elements <= num_elements:
                small.add(u)
                continue
            eqn = program.equations[made_by]
            if self.graph.rules[made_by].family == "shape" and not self._keeps_dims(eqn):
                return None
            for operand in set(eqn.operands) - seen:
                seen.add(operand)
                copy = self._copy_of(eqn, operand)
                if copy and copy.collectives and program.tensors[operand].num_elements > num_elements:
                    return None
                if copy and copy.collectives:
                    gathered.add((operand, copy.target))
                else:
                    stack.append(operand)
        return small, gathered

    def _keeps_dims(self, eqn: Equation) -> bool:
        """Whether an equation that moves data leaves every dimension whole: it repeats or orders them, or adds ones."""
        if eqn.name == "reshape":
            before, after = (self.graph.program.tensors[t].shape for t in (eqn.operands[0], eqn.results[0]))
            return [n for n in before if n > 1] == [n for n in after if n > 1]
        return eqn.name in ("broadcast_in_dim", "transpose")

    def _is_stored(self, transfer: Transfer) -> bool:
        """Whether a parameter, or a view of one, is gathered."""
        group = self.graph.grouping.tensor_group[transfer.tensor]
        gathers = any(step.kind == "all-gather" for step in transfer.path.steps)
        return gathers and group != UNGROUPED and self.graph.grouping.groups[group].kind in STORED_KINDS

    def _anchors(self, gathers: Sequence[Transfer]) -> dict[int, list[int]]:
        """Equation -> large parameters that are not gathered before it.

        Contraction -> those that are first read `PREFETCH_CONTRACTIONS` after it; look-up -> tables that are first read
        `PREFETCH_LOOK_UPS` after it. One that is gathered again, as another view, is on TPUs the latest view that is
        there by then: left alone, the compiler made one gather of that of an embedding of 50280 rows and that of its
        transpose for the head. Read again as it was, it is the copy that was gathered first.
        """
        program, values = self.graph.program, self.graph.values
        outer: dict[str, list[int]] = {"contraction": [], "gather": []}
        for e in program.equations:
            if e.region < 0 and self.graph.rules[e.index].family in outer:
                outer[self.graph.rules[e.index].family].append(e.index)
        anchors: dict[int, list[int]] = defaultdict(list)
        seen: set[int] = set()
        for gather in sorted(gathers, key=lambda gather: gather.spans[0].first):
            t, first = gather.tensor, gather.spans[0].first
            is_table = first in outer["gather"]
            like, ahead = (
                ("gather", PREFETCH_LOOK_UPS) if is_table else ("contraction", PREFETCH_CONTRACTIONS)
            )
            place = bisect.bisect_left(outer[like], first) - ahead
            chain = self._views(t)
            source = chain[-1]
            if values.producer[source] >= 0 or program.tensors[source].num_bytes < LARGE_PARAMETER_BYTES:
                continue
            if source not in seen and place >= 0:
                anchors[outer[like][place]].append(source)
            elif source in seen and self.chip.is_tiled and chain != [source] and not gather.shared:
                before = next((e for e in outer[like][max(place, 0) :] if e < first), None)
                if before is not None:
                    anchors[before].append(next(u for u in chain if values.producer[u] < before))
            seen.add(source)
        return dict(anchors)

    def _views(self, t: int) -> list[int]:
        """A tensor, what it is a view or a cast of, and so on to what is neither."""
        program, chain = self.graph.program, [t]
        while (e := self.graph.values.producer[chain[-1]]) >= 0 and len(program.equations[e].operands) == 1:
            chain.append(program.equations[e].operands[0])
        return chain

    def _is_looked_up(self, eqn: Equation) -> bool:
        """Whether rows are taken of a large parameter that is gathered and not read after the forward pass.

        The compiler was seen to look rows up again in the fusions of the backward pass, and to keep the gathered table
        until there. Where the rows are larger than the table, that is less.
        """
        if not self.chip.is_gpu or eqn.phase == "backward" or self.graph.rules[eqn.index].family != "gather":
            return False
        table = self._copy_of(eqn, eqn.operands[0])
        if table is None or not self._is_stored(table):
            return False
        readers = next(span.readers for span in table.spans if eqn.index in span.readers)
        if any(self.graph.program.equations[e].phase == "backward" for e in readers):
            return False
        rows, kept = self._local_bytes(eqn.results[0], None), self._local_bytes(table.tensor, table.target)
        return kept > rows and self.graph.program.tensors[table.tensor].num_bytes >= LARGE_PARAMETER_BYTES

    def _is_taken_apart(self, eqn: Equation) -> bool:
        if not self.chip.is_tiled or self.graph.rules[eqn.index].family != "elementwise" or len(eqn.results) != 1:
            return False
        (t,) = eqn.results
        readers = (self.graph.program.equations[e] for e in self.graph.values.consumers[t])
        return len(self.graph.program.tensors[t].shape) > 2 and any(map(takes_every_other, readers))

    def _is_gradient(self, read: Read, reader: str) -> bool:
        """Whether a group of the kind ``reader`` reads what a contraction of the backward pass made."""
        groups, made_by = self.graph.grouping.groups, self.graph.values.producer[read.tensor]
        return (
            read.consumer != UNGROUPED
            and groups[read.consumer].kind == reader
            and groups[read.producer].kind in ("contraction", "sum")
            and made_by >= 0
            and self.graph.program.equations[made_by].phase == "backward"
        )

    def _is_table(self, equation: int) -> bool:
        """Whether an equation makes the gradient of a large table: it adds to zeros."""
        eqn, program, values = self.graph.program.equations[equation], self.graph.program, self.graph.values
        if eqn.name != "scatter-add" or program.tensors[eqn.operands[0]].num_bytes < LARGE_PARAMETER_BYTES:
            return False
        made_by = values.producer[eqn.operands[0]]
        if made_by < 0 or program.equations[made_by].name != "broadcast_in_dim":
            return False
        return all(program.tensors[t].kind == "literal" for t in program.equations[made_by].operands)

    def _is_sum(self, read: Read) -> bool:
        """Whether a state group reads what a reduction of the backward pass made.

        That is the gradient of a bias or scale. The compiler combines its sum over the devices with others, so only
        a device's own part can be due.
        """
        made_by = self.graph.values.producer[read.tensor]
        if read.consumer == UNGROUPED or made_by < 0:
            return False
        eqn = self.graph.program.equations[made_by]
        group = self.graph.grouping.groups[read.consumer]
        while eqn.name in VIEW_PRIMITIVES and (source := self.graph.values.producer[eqn.operands[0]]) >= 0:
            eqn = self.graph.program.equations[source]
        is_reduction = self.graph.rules[eqn.index].family == "reduction"
        return group.kind == "state" and eqn.phase == "backward" and is_reduction

    def home(self, t: int) -> Sharding:
        """Layout in which tensor ``t`` is made or comes in."""
        group = self.graph.grouping.tensor_group[t]
        return sharding_of(self.graph, self.configurations, group, t, produced=True)

    def out_layouts(self) -> list[Sharding]:
        """Layouts of the outputs."""
        return list(boundary_shardings(self.graph, self.configurations)[1])

    @functools.cached_property
    def num_parts(self) -> int:
        """Parts of the batch that micro-batches are cut out of, the same for every array."""
        program, groups = self.graph.program, self.graph.grouping.tensor_group
        results = [e.results[0] for e in program.equations if e.name == CUT]
        homes = {t: self.home(t) for t in results if groups[t] != UNGROUPED}
        splits = {t: math.prod(self.axes[a].size for a in home.dims[1]) for t, home in homes.items()}
        return num_parts(program, splits)

    @functools.cached_property
    def region_at(self) -> dict[tuple[int, int], Region]:
        """(region around it, first equation) -> region."""
        regions = self.graph.program.regions
        return {(region.parent, region.start): region for region in regions if region.start < region.stop}

    @functools.cached_property
    def last_use(self) -> dict[int, list[int]]:
        """Equation index -> tensors that nothing reads after it; literals stay."""
        program, result = self.graph.program, defaultdict(list)
        outputs, again = set(program.outputs), dict[int, int]()
        for e, how in self.unpooled.items():
            again.update((t, max(e, again.get(t, e))) for t in (*how.kept, *(t for _, t in how.arrays)))
        for t, consumers in enumerate(self.graph.values.consumers):
            if consumers and t not in outputs and program.tensors[t].kind != "literal":
                result[max(consumers[-1], again.get(t, -1))].append(t)
        return result
