"""Buffers of a plan that hold copies: of resharded tensors, and other buffers of the same transfers."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from jaxplan.core._interner import Remembered
from jaxplan.cost._hosted_parameters import sums_at_once
from jaxplan.cost._model import CostModel
from jaxplan.cost._padded_images import cut_dims
from jaxplan.cost._prefetch import outer_operators, prefetched_from, views_of
from jaxplan.cost._transfers import Transfer
from jaxplan.cost._updated_parts import is_gathered_update
from jaxplan.ir import REGION_IN, STORED_KINDS, UNGROUPED, Tensor
from jaxplan.xla._copies import Bordered
from jaxplan.xla._plan_effects import (
    GatherInPieces,
    GatherInto,
    KeepUpdatedParts,
    ScatterInNextTrip,
    StartEarly,
)

COPIES = "resharded copies"
"""Label of the copies of transfers."""


_Copy = tuple[tuple[int, int, float, str], ...]


class _Beside(NamedTuple):
    """Buffers of one transfer beside its copies.

    Attributes:
      arriving: (first, last position, bytes) of each copy that is transposed when it has arrived.
      in_pieces: bytes of an update that is gathered along an inner dimension; None where it is no such update.
      part: (first, last equation, bytes) of an array that is updated in parts.
      handed_on: (first, last equation, bytes) of the operand of a reduce-scatter that runs in the next trip of a loop:
        that of the trip before, and the one that the trip makes.
    """

    arriving: tuple[tuple[int, int, int], ...]
    in_pieces: int | None
    part: tuple[int, int, int] | None
    handed_on: tuple[tuple[int, int, int], ...]


class Copies:
    """Of the plans of one model; those of a transfer are remembered."""

    def __init__(self, model: CostModel) -> None:
        graph = model.graph
        self.model, self._read_end, found = model, model.buffers.read_end, model.buffers.found
        self._into_arguments = {effect.tensor for effect in found.of(GatherInto)}
        self._in_pieces_of_gathers, self._starts_early = map(found.has, (GatherInPieces, StartEarly))
        self._keeps_parts = found.has(KeepUpdatedParts)
        self._in_next_trip = {effect.tensor: effect for effect in found.of(ScatterInNextTrip)}
        self._outer, self._on_host = outer_operators(graph), frozenset(graph.parameters_on_host)
        self._sums_at_once = sums_at_once(graph)
        self._padded = defaultdict[int, list[Bordered]](list)
        for bordered in model.buffers.bordered:
            if bordered.image.is_whole:
                self._padded[bordered.image.tensor].append(bordered)
        self._axes, self._replaced = model.topology.axes, graph.program.replaced
        dots = (e.index for e in graph.program.equations if graph.rules[e.index].family == "contraction")
        self._products = frozenset(dots)
        self._copies, self._beside, self._shared = Remembered[_Copy](), Remembered[_Beside](), Remembered[int]()

    def beside(self, transfers: Sequence[Transfer]) -> Iterator[tuple[int, int, int]]:
        """(first, last position, bytes) of buffers of transfers beside their copies."""
        known = self._beside.of_all(transfers, lambda t: self._beside_of(t))
        yield from itertools.chain.from_iterable([of.arriving for of in known])
        yield from ((2 * first, 2 * last, size) for first, last, size in self._of_equations(known, transfers))

    def _of_equations(
        self, known: Sequence[_Beside], transfers: Sequence[Transfer]
    ) -> Iterator[tuple[int, int, int]]:
        """(first, last equation, bytes) of those that are live from an equation on, and while another one runs."""
        in_pieces = [of.in_pieces for of in known if of.in_pieces is not None]
        if in_pieces:  # transposed into the arguments when all of them have arrived
            end = len(self.model.graph.program.equations)
            yield end, end, sum(in_pieces)
        yield from self._shared_copies(transfers)
        yield from [of.part for of in known if of.part is not None]
        yield from itertools.chain.from_iterable([of.handed_on for of in known])

    def _beside_of(self, transfer: Transfer) -> _Beside:
        part, handed_on = self._updated_part(transfer), self._handed_on(transfer)
        return _Beside(self._in_pieces(transfer), self._update_in_pieces(transfer), part, handed_on)

    def of(self, transfers: Sequence[Transfer]) -> list[_Copy]:
        """(first, last position, bytes, label) of the copy that each execution of a transfer makes, for each."""
        return self._copies.of_all(transfers, lambda t: self._made_by(t))

    def _made_by(self, transfer: Transfer) -> _Copy:
        """(first, last position, bytes, label) of the copy that each execution of a transfer makes."""
        buffers, tensor, found = self.model.buffers, self._travelling(transfer), []
        end = len(self.model.graph.program.equations)
        for span in transfer.spans:
            readers = self._reading(transfer, span.readers)
            latest = max(readers, key=self._read_end.__getitem__)  # the readers are fused, not all at once
            is_wide = transfer.carried in buffers.widened and buffers.is_kept(span.first, latest)
            size = self.model.pricer.copy_bytes(tensor, transfer.target, is_wide)
            is_fused = not transfer.collectives and not buffers.materialised[transfer.tensor]
            if is_fused or (transfer.tensor in self._into_arguments and span.first == end):
                size = 0  # a slice of what its reader computes; a copy into the buffer that is replaced
            first = self._started(transfer, max(span.first, buffers.birth[transfer.tensor]))
            found.append((2 * first, 2 * max(first, min(self._read_end[latest], end)) + 1, size, COPIES))
        return tuple(found)

    def _reading(self, transfer: Transfer, readers: Sequence[int]) -> list[int]:
        """Of the readers of a copy, those that do not read a padded copy of it that another one had made."""
        own = self._local_shape(transfer)
        cut = cut_dims(own, self.model.graph.program.tensors[transfer.tensor].shape)
        padded = [b.readers for b in self._padded.get(transfer.tensor, ()) if b.image.num_elements(own, cut)]
        later = {e for first, *others in padded if first in readers for e in others}
        return [e for e in readers if e not in later]

    def _started(self, transfer: Transfer, first: int) -> int:
        """When a resharding starts that is needed at an equation: a gather, as soon as the compiler has its operand.

        Inside of a loop that is with the trip. A parameter that is gathered for the forward pass is live from the
        beginning of the step, or from where the lowering lets a large one begin (`prefetched_from`).
        """
        if transfer.tensor in self._sums_at_once and transfer.path.shardings[0].partial:
            return self.model.graph.values.producer[transfer.tensor]
        if transfer.path.steps[0].kind != "all-gather" or not self._starts_early:
            return first
        if transfer.tensor in self._on_host:  # it waits for the parameter
            return first
        graph, made = self.model.graph, self.model.graph.values.producer[transfer.tensor]
        equations = graph.program.equations
        if made >= 0 and equations[made].name == REGION_IN:
            is_inside = first < len(equations) and equations[first].region == equations[made].params["region"]
            return made if is_inside else first
        source = self._argument(transfer.tensor) if first < self.model.buffers.turning_point else None
        if source is None or source in self._on_host:
            return first
        return min(first, prefetched_from(graph, source, first, self._outer))

    def _argument(self, t: int) -> int | None:
        """The stored argument that a tensor is, or a view or a cast of; None: it is computed otherwise."""
        graph = self.model.graph
        *_, source = views_of(graph, t)
        group = graph.grouping.tensor_group[source]
        is_stored = group != UNGROUPED and graph.grouping.groups[group].kind in STORED_KINDS
        return source if graph.values.producer[source] < 0 and is_stored else None

    def _travelling(self, transfer: Transfer) -> Tensor:
        tensor = self.model.graph.program.tensors[transfer.tensor]
        return tensor if tensor.itemsize == transfer.itemsize else replace(tensor, itemsize=transfer.itemsize)

    def _in_pieces(self, transfer: Transfer) -> tuple[tuple[int, int, int], ...]:
        """(first, last position, bytes) of a second, transposed copy that is live beside a gathered one.

        A gather writes the pieces one after the other. Where the gathered dimension lies between others (the positions
        of a sequence), or behind others for a dot with batch dimensions (columns of experts), compiled GPU programs
        were seen to transpose that for dots. Of a stack that loops read, each loop has a transposed copy, and the
        gathered one is live until the last is made.
        """
        if not self._arrives_in_pieces(transfer):
            return ()
        size = self.model.pricer.local_bytes(self._travelling(transfer), transfer.target)
        found: list[tuple[int, int, int]] = []
        for span in transfer.spans:
            last = max([span.first, *self._loops_reading(span.readers)])
            before = set(span.readers) == {span.first} and span.first > 0  # a kernel in front of the dot makes the copy
            found.append((2 * span.first - before, 2 * last - before, size))
        return tuple(found) if size else ()

    def _arrives_in_pieces(self, transfer: Transfer) -> bool:
        """Whether a gather needs its copy transposed: for a dot, or for loops, each of which has one of its own."""
        step = transfer.path.steps[-1]
        if step.kind != "all-gather" or step.dim is None or not self._in_pieces_of_gathers:
            return False
        span = transfer.spans[0]
        shape = self._local_shape(transfer)
        is_inner = math.prod(shape[: step.dim]) > 1
        if self._loops_reading(span.readers):
            return is_inner
        if span.first not in self._products or not is_inner:
            return False
        return math.prod(shape[step.dim + 1 :]) > 1 or self._is_batched(span.first)

    def _is_batched(self, dot: int) -> bool:
        """Whether a dot has batch dimensions: it reads them first, and may not read a transposed array as it lies."""
        eqn = self.model.graph.program.equations[dot]
        return eqn.name == "dot_general" and bool(eqn.params["dimension_numbers"][1][0])

    def _loops_reading(self, readers: Sequence[int]) -> list[int]:
        """The equations by which loops read a copy."""
        equations = self.model.graph.program.equations
        return [e for e in readers if e < len(equations) and equations[e].name == REGION_IN]

    def _update_in_pieces(self, transfer: Transfer) -> int | None:
        """Bytes of an update that is gathered along an inner dimension; None for other transfers.

        It arrives in pieces, in a buffer of its own, and is transposed into the argument that it replaces.
        """
        end, step = len(self.model.graph.program.equations), transfer.path.steps[-1]
        if not self._in_pieces_of_gathers or not is_gathered_update(self._into_arguments, end, transfer):
            return None
        if step.kind != "all-gather" or step.dim is None or math.prod(self._local_shape(transfer)[: step.dim]) <= 1:
            return None
        return self.model.pricer.local_bytes(self._travelling(transfer), transfer.target)

    def _handed_on(self, transfer: Transfer) -> tuple[tuple[int, int, int], ...]:
        """The operand of a reduce-scatter that runs in the next trip of a loop: of the trip before, and the trip's own
        from where the program has the reduce-scatter on.

        (first, last equation, bytes) of both.
        """
        effect, steps = self._in_next_trip.get(transfer.tensor), transfer.path.steps
        scatter = next((i for i, step in enumerate(steps) if step.kind == "reduce-scatter"), None)
        if effect is None or scatter is None:
            return ()
        size = self.model.pricer.local_bytes(self._travelling(transfer), transfer.path.shardings[scatter])
        own = max(self.model.graph.values.producer[transfer.tensor], transfer.spans[0].first) + 1
        before = effect.first, effect.last, size
        return (before, (own, effect.last, size)) if own <= effect.last else (before,)

    def _local_shape(self, transfer: Transfer) -> tuple[int, ...]:
        """Of the copy that a transfer makes."""
        return transfer.target.local_shape(self.model.graph.program.tensors[transfer.tensor].shape, self._axes)

    def _shared_copies(self, transfers: Sequence[Transfer]) -> Iterator[tuple[int, int, int]]:
        """(first, last equation, bytes) of copies that several transfers of a tensor share: live until the last one."""
        number, made = self.model.graph.values.merged, {}
        for transfer in transfers:
            first = transfer.spans[0].first
            if transfer.shared:
                num_bytes = self._shared.of(transfer, lambda t: self._shared_bytes(t))
                yield made[number[transfer.carried]], first, num_bytes
            elif len(transfer.spans) == 1:
                made.setdefault(number[transfer.carried], first)

    def _shared_bytes(self, transfer: Transfer) -> int:
        sharding = transfer.path.shardings[transfer.shared]
        return self.model.pricer.local_bytes(self._travelling(transfer), sharding)

    def _updated_part(self, transfer: Transfer) -> tuple[int, int, int] | None:
        """(first, last equation, bytes) of an array updated in parts, then gathered into the buffer it replaces."""
        values, end = self.model.graph.values, len(self.model.graph.program.equations)
        if not self._keeps_parts or not is_gathered_update(self._replaced, end, transfer):
            return None
        size = self.model.pricer.local_bytes(self._travelling(transfer), transfer.path.shardings[0])
        return values.producer[transfer.tensor], end, size
