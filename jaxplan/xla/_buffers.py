"""Which values become buffers, and from when to when they live.

The compiler fuses element-wise chains, so most values of a jaxpr never exist in memory. A value is *materialised* when
an operator that cannot be fused makes or reads it; the others are recomputed inside the fusions that read them. A
backward fusion recomputes unmaterialised forward values from materialised ones: the narrowest such value of the
chain is the one that is saved, or the first that is a buffer anyway. Transcendental functions that cost
many instructions are not recomputed: the fusion that makes one for the forward pass also writes it for the backward
pass.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxplan.ir import StepGraph, turning_point
from jaxplan.xla._facts import Facts
from jaxplan.xla._fusion import Fused, fuse
from jaxplan.xla._kernels import with_kernels
from jaxplan.xla._layouts import buffer_bytes, widened_copies
from jaxplan.xla._liveness import births, deaths, read_ends, sources_that_live_longer
from jaxplan.xla._residuals import save_residuals
from jaxplan.xla._schedule import Schedule, schedule
from jaxplan.xla._target import Target
from jaxplan.xla.rules.both.deferred import PutOff, behind_input_gradients, put_off
from jaxplan.xla.rules.both.in_place import cleared_together
from jaxplan.xla.rules.gpu.borders import PaddedImage, padded_images
from jaxplan.xla.rules.gpu.in_place_fusions import write_over_operands
from jaxplan.xla.rules.gpu.padding import MatrixDims, padded_operands
from jaxplan.xla.rules.gpu.pooling import PoolBuffer, pool_buffers
from jaxplan.xla.rules.gpu.schedule import CLEARED_TOGETHER, FUSIONS_IN_PLACE, LEAST_MEMORY
from jaxplan.xla.rules.gpu.summands import Summand, find_summands
from jaxplan.xla.rules.gpu.transposed import OrderedCopy, write_in_orders
from jaxplan.xla.rules.tpu.channel_groups import ChannelGroups, grouped_operands, wide_results
from jaxplan.xla.rules.tpu.inner_dims import inner_dims
from jaxplan.xla.rules.tpu.rearranged import written_wider
from jaxplan.xla.rules.tpu.rounding import rounded_for_loops


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Lifetimes in equation indices; index -1 is before the first equation.

    Attributes:
      target: the compiler that these are the buffers of.
      materialised: per tensor, whether it is a buffer of its own.
      decided_by: per tensor, the compiler rule that decided that; None: none did, readers compute it.
      birth: equation that makes it (-1 for inputs).
      death: last equation whose fusion reads it; the number of equations for program outputs.
      read_end: per equation, the one whose fusion really reads its operands; one more, for outputs of the program.
      turning_point: index of the first backward equation (the number of equations when there is none).
      saved: materialised tensors made before and read after the turning point, inputs excluded.
      num_bytes: global bytes of each tensor as a buffer: a 16-bit result of a function in `NOT_RECOMPUTED` is saved in
        float32 where the chip's element-wise arithmetic is.
      widened: 16-bit tensors that are cast to float32 by the fusions of both passes, logits excluded.
      cleared: tensors that are cleared at once, where the first of those that are split alike is made.
      ordered: buffers that are live a second time, in a transposed layout.
      bordered: images with zeros around them that convolutions read.
      pooled: buffers of gradients of max pooling beside their operands and results.
      inner: the two innermost dimensions of images, where memory is in tiles.
      element_bytes: of tensors that are held in another dtype than theirs (`rounded_for_loops`, `written_wider`).
      batched: tensors that are buffers only where a device holds more than one element of these dimensions.
      turned: tensors that are buffers only where products have other dimensions innermost than these (`are_turned`).
      instead: sources that values in ``batched`` and ``turned`` are recomputed from where these are not materialised:
        their live ranges extend to the last use.
      grouped, wide: images with channels in groups (`grouped_operands`), and results of convolutions of groups that
        are held in elements of so many bytes, as their copies are (`wide_results`).
      padded: matrices that dots read in whole multiples (`padded_operands`).
      behind: order constraints: dots that make gradients -> the dots that come first (`behind_input_gradients`).
      deferred: weight gradients that run later than the program has them (`put_off`); none with ``in_order``.
      added_up: views of a dot that a library call adds to a sum -> the dot, a buffer only where a view is resharded.
      sums: equations that add a dot, in its library call -> the other summand, over which the call writes.
      summands: summands of sums over columns, where they may be materialised.
      in_order: the buffers as if no weight gradient was deferred, where the compiler may take that order instead.
    """

    target: Target
    materialised: tuple[bool, ...]
    decided_by: tuple[str | None, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]
    read_end: tuple[int, ...]
    turning_point: int
    saved: tuple[int, ...]
    num_bytes: tuple[int, ...]
    widened: frozenset[int]
    cleared: tuple[tuple[int, ...], ...] = ()
    ordered: tuple[OrderedCopy, ...] = ()
    bordered: tuple[PaddedImage, ...] = ()
    pooled: tuple[PoolBuffer, ...] = ()
    inner: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    element_bytes: Mapping[int, int] = field(default_factory=dict)
    batched: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    turned: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    instead: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    grouped: Mapping[int, ChannelGroups] = field(default_factory=dict)
    wide: Mapping[int, int] = field(default_factory=dict)
    padded: Mapping[int, MatrixDims] = field(default_factory=dict)
    behind: Mapping[int, int] = field(default_factory=dict)
    deferred: Mapping[int, PutOff] = field(default_factory=dict)
    added_up: Mapping[int, int] = field(default_factory=dict)
    sums: Mapping[int, int] = field(default_factory=dict)
    summands: tuple[Summand, ...] = ()
    in_order: Buffers | None = None

    def held_as(self, t: int) -> tuple[Hashable, ...]:
        """The properties beside shape and dtype that decide the bytes of a tensor on a device."""
        of_tiles = self.inner.get(t), self.element_bytes.get(t), self.batched.get(t), self.turned.get(t)
        return self.num_bytes[t], of_tiles, self.grouped.get(t), self.padded.get(t)

    def is_kept(self, first: int, last: int) -> bool:
        """Whether a copy made for a read at ``first``, and read at ``last`` again, lives until the backward pass."""
        return first < self.turning_point <= self.read_end[last]


def analyse_buffers(graph: StepGraph, target: Target, *, in_order: bool = False) -> Buffers:
    """Run the passes: kernels, fusion, residuals, schedule, live ranges, layouts.

    ``in_order``: as if every product ran where the program has it (see `put_off`).
    """
    program = graph.program
    turning = turning_point(program)
    facts = with_kernels(Facts(graph=graph, target=target, turning=turning, inner=inner_dims(graph, target)))
    fused, recomputed = _with_residuals(facts, conditional=True)
    found = _scheduled(facts, fused, recomputed, in_order=in_order)
    if in_order or not found.deferred or not LEAST_MEMORY.applies_to(target):
        return found
    return replace(found, in_order=_scheduled(facts, fused, recomputed, in_order=True))


def _scheduled(facts: Facts, fused: Fused, recomputed: Sequence[bool], *, in_order: bool) -> Buffers:
    """The buffers of a step in one order of execution."""
    graph, target, turning, certain = facts.graph, facts.target, facts.turning, facts
    materialised, added_up, rows, turned = fused.written, fused.sums, fused.blocks, fused.transposes
    wide = wide_results(graph, target)
    facts = replace(facts, written=materialised)
    plan = schedule(facts, added_up, in_order=in_order)
    death = deaths(graph, target, materialised, plan, added_up)
    if FUSIONS_IN_PLACE.applies_to(target):
        write_over_operands(graph, materialised, death)
    read_end = read_ends(graph, materialised, death, plan.late)
    ordered = write_in_orders(graph, target, recomputed, materialised, read_end, death)
    birth = births(graph, plan.after)
    pooled = pool_buffers(graph, target, read_end)
    made = range(len(graph.program.tensors))
    some, instead = _conditional(certain, fused, plan, death) if rows or turned else (set[int](), {})
    saved = tuple(t for t in made if materialised[t] and -1 < birth[t] < turning <= death[t])
    return Buffers(
        target=target,
        materialised=tuple(materialised),
        decided_by=tuple(fused.decided_by),
        birth=tuple(birth),
        death=tuple(death),
        read_end=read_end,
        turning_point=turning,
        saved=saved,
        num_bytes=tuple(buffer_bytes(graph, target, t) for t in made),
        widened=widened_copies(graph, target, materialised),
        cleared=cleared_together(graph) if CLEARED_TOGETHER.applies_to(target) else (),
        ordered=ordered,
        bordered=padded_images(graph, target, read_end, death),
        pooled=pooled,
        inner=facts.inner,
        element_bytes={**rounded_for_loops(graph, target), **written_wider(graph, target), **wide},
        batched={t: dims for t, dims in rows.items() if t in some},
        turned={t: dims for t, dims in turned.items() if t in some},
        instead=instead,
        grouped=grouped_operands(graph, target),
        wide=wide,
        padded=padded_operands(graph, target),
        behind=behind_input_gradients(graph, target, materialised),
        deferred={} if in_order else put_off(graph, target),
        added_up={t: a.product for a in added_up for t in a.views},
        sums={a.equation: a.other for a in added_up if a.in_place},
        summands=find_summands(facts),
    )


def _conditional(
    facts: Facts, fused: Fused, plan: Schedule, death: Sequence[int]
) -> tuple[set[int], dict[int, tuple[int, ...]]]:
    """Buffers that only some configurations write, and of these the sources that live longer where they are not."""
    graph, turning = facts.graph, facts.turning
    certain = _with_residuals(facts, conditional=False)[0].written
    some = {t for t in (*fused.blocks, *fused.transposes) if not certain[t]}
    without = deaths(graph, facts.target, certain, plan, fused.sums) if some else []
    instead = {t: sources_that_live_longer(graph, t, fused.written, death, without) for t in sorted(some)}
    # Those in whose place a value is kept for the backward pass count for it: as many bytes.
    some -= {t for t, sources in instead.items() if any(death[u] < turning <= without[u] for u in sources)}
    return some, {t: sources for t, sources in instead.items() if sources and t in some}


def _with_residuals(facts: Facts, *, conditional: bool) -> tuple[Fused, tuple[bool, ...]]:
    """The buffers of both passes, and per equation whether the backward pass recomputes it."""
    fused = fuse(facts, conditional=conditional)
    return fused, save_residuals(replace(facts, written=fused.written), fused)
