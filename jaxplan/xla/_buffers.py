"""Which values become buffers, and from when to when they live.

The compiler fuses element-wise chains, so most values of a jaxpr never exist in memory. A value is *materialised* when
an operator that cannot be fused makes or reads it; the others are recomputed inside the fusions that read them. A
backward fusion recomputes unmaterialised forward values from materialised ones: the narrowest such value of the
chain is the one that is saved, or the first that is a buffer anyway. Transcendental functions that cost
many instructions are not recomputed: the fusion that makes one for the forward pass also writes it for the backward
pass.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxplan.ir import REGION_IN, REGION_OUT, Equation, StepGraph, turning_point
from jaxplan.xla._effects import Accumulate
from jaxplan.xla._facts import Facts
from jaxplan.xla._fusion import Fused, fuse
from jaxplan.xla._kernels import with_kernels
from jaxplan.xla._layouts import buffer_bytes, widened_copies
from jaxplan.xla._residuals import save_residuals
from jaxplan.xla._target import Target
from jaxplan.xla.rules.both.deferred import PutOff, behind_input_gradients, put_off
from jaxplan.xla.rules.both.in_place import cleared_together, hand_over, sums_over_trips
from jaxplan.xla.rules.both.schedule import SUMS_OVER_TRIPS
from jaxplan.xla.rules.gpu.in_place_fusions import write_over_operands
from jaxplan.xla.rules.gpu.padding import MatrixDims, padded_operands
from jaxplan.xla.rules.gpu.pooling import PoolBuffer, pool_buffers
from jaxplan.xla.rules.gpu.schedule import CLEARED_TOGETHER, FUSIONS_IN_PLACE, GRADIENTS_AFTER_INPUTS
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

    def held_as(self, t: int) -> tuple[Hashable, ...]:
        """The properties beside shape and dtype that decide the bytes of a tensor on a device."""
        of_tiles = self.inner.get(t), self.element_bytes.get(t), self.batched.get(t), self.turned.get(t)
        return self.num_bytes[t], of_tiles, self.grouped.get(t), self.padded.get(t)

    def is_kept(self, first: int, last: int) -> bool:
        """Whether a copy made for a read at ``first``, and read at ``last`` again, lives until the backward pass."""
        return first < self.turning_point <= self.read_end[last]


def analyse_buffers(
    graph: StepGraph, target: Target, *, in_order: bool = False
) -> Buffers:
    """Decide materialisation and lifetimes in two passes over the equations.

    ``in_order``: as if every product ran where the program has it (see `put_off`).
    """
    program, values = graph.program, graph.values
    turning = turning_point(program)
    facts = with_kernels(Facts(graph=graph, target=target, turning=turning, inner=inner_dims(graph, target)))
    fused, recomputed = _with_residuals(facts, conditional=True)
    materialised, added_up, rows, turned = fused.written, fused.sums, fused.blocks, fused.transposes
    is_certain = not (rows or turned)
    without_rows = materialised if is_certain else _with_residuals(facts, conditional=False)[0].written
    wide = wide_results(graph, target)
    waiting = {} if in_order else put_off(graph, target)
    summed = {} if in_order or not SUMS_OVER_TRIPS.applies_to(target) else sums_over_trips(graph)
    late = {e: when.by for e, when in waiting.items()} | {e: behind + 1 for e, behind in summed.items()}
    late |= {values.producer[a.product]: a.equation for a in added_up if not a.in_place}
    death = _deaths(graph, target, materialised, late, added_up, summed)
    if FUSIONS_IN_PLACE.applies_to(target):
        write_over_operands(graph, materialised, death)
    read_end = _read_end(graph, materialised, death, late)
    ordered = write_in_orders(graph, target, recomputed, materialised, read_end, death)
    behind = behind_input_gradients(graph, target, materialised)
    is_after = GRADIENTS_AFTER_INPUTS.applies_to(target)
    after = {e: when.after for e, when in waiting.items()} if is_after else {}
    birth = _births(graph, {} if in_order else {**after, **behind, **summed})
    pooled = pool_buffers(graph, target, read_end)
    made = range(len(program.tensors))
    some = {t for t in (*rows, *turned) if not without_rows[t]}
    without = _deaths(graph, target, without_rows, late, added_up, summed) if some else []
    instead = {t: _sources_that_live_longer(graph, t, materialised, death, without) for t in sorted(some)}
    # Those in whose place something is kept for the backward pass count for it: as many bytes.
    some -= {t for t, sources in instead.items() if any(death[u] < turning <= without[u] for u in sources)}
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
        pooled=pooled,
        inner=facts.inner,
        element_bytes={**rounded_for_loops(graph, target), **written_wider(graph, target), **wide},
        batched={t: dims for t, dims in rows.items() if t in some},
        turned={t: dims for t, dims in turned.items() if t in some},
        instead={t: sources for t, sources in instead.items() if sources and t in some},
        grouped=grouped_operands(graph, target),
        wide=wide,
        padded=padded_operands(graph, target),
        behind=behind,
        deferred=waiting,
        added_up={t: a.product for a in added_up for t in a.views},
        sums={a.equation: a.other for a in added_up if a.in_place},
        summands=find_summands(replace(facts, written=materialised)),
    )


def _with_residuals(facts: Facts, *, conditional: bool) -> tuple[Fused, tuple[bool, ...]]:
    """The buffers of both passes, and per equation whether the backward pass recomputes it."""
    fused = fuse(facts, conditional=conditional)
    return fused, save_residuals(replace(facts, written=fused.written), fused)


def _deaths(
    graph: StepGraph,
    target: Target,
    materialised: Sequence[bool],
    late: Mapping[int, int],
    added_up: Sequence[Accumulate],
    summed: Collection[int] = (),
) -> list[int]:
    """The last equation that reads each tensor, itself or through a value recomputed from it in the same pass.

    ``summed``: additions to carries (`sums_over_trips`), which write over them.
    """
    program, producer = graph.program, graph.values.producer
    death = [-1] * len(program.tensors)
    for t in program.outputs:
        death[t] = len(program.equations)
    for eqn in reversed(program.equations):
        inner = [death[r] for r in eqn.results if not materialised[r]]
        outer = [late.get(eqn.index, eqn.index) for r in eqn.results if materialised[r]]
        last = max(inner + outer, default=eqn.index)
        if eqn.index in summed:
            last = late[eqn.index]
        if eqn.name == REGION_IN and eqn.params["role"] in ("const", "x"):  # read in every trip
            last = program.regions[eqn.params["region"]].stop - 1
            death[eqn.results[0]] = max(death[eqn.results[0]], last if eqn.params["role"] == "const" else -1)
        for t in eqn.operands[_is_carry_exit(eqn) :]:
            death[t] = max(death[t], last)
    hand_over(graph, target, materialised, death, late)
    for a in added_up:
        death[a.product] = producer[a.product] - 1  # no buffer of its own, unless it is resharded first
        if a.in_place and death[a.other] == a.equation and a.other not in program.inputs:
            death[a.other] = a.equation - 1
    return death


def _sources_that_live_longer(
    graph: StepGraph, t: int, materialised: Sequence[bool], death: Sequence[int], without: Sequence[int]
) -> tuple[int, ...]:
    """Buffers of at least the size of one that only some plans write, arguments excluded, which it is computed of, and
    which live longer, ``without``, in those that do not."""
    tensors, producer, equations = graph.program.tensors, graph.values.producer, graph.program.equations
    found, seen, stack = set(), {t}, [t]
    while stack:
        index = producer[stack.pop()]
        operands = set(equations[index].operands) - seen if index >= 0 else set()
        seen |= operands
        stack += [u for u in operands if not materialised[u]]
        large = (u for u in operands if tensors[u].num_elements >= tensors[t].num_elements)
        found.update(u for u in large if producer[u] >= 0 and materialised[u] and without[u] > death[u])
    return tuple(sorted(found))


def _births(graph: StepGraph, after: Mapping[int, int]) -> list[int]:
    """The equation at which each tensor becomes live; stacks of a loop are live from its beginning.

    ``after``: equations that run behind another.
    """
    birth = list(graph.values.producer)
    for e, first in after.items():
        birth[graph.program.equations[e].results[0]] = first + 1
    for region in graph.program.regions:
        for eqn in (graph.program.equations[e] for e in region.exits):
            if eqn.params["role"] == "y":
                birth[eqn.results[0]] = region.start
    return birth


def _is_carry_exit(eqn: Equation) -> bool:
    return eqn.name == REGION_OUT and eqn.params["role"] == "carry"


def _read_end(
    graph: StepGraph, materialised: Sequence[bool], death: Sequence[int], late: Mapping[int, int]
) -> tuple[int, ...]:
    program, ends = graph.program, []
    for eqn in program.equations:
        virtual = [death[r] for r in eqn.results if not materialised[r]]
        if eqn.name == REGION_IN and eqn.params["role"] in ("const", "x"):  # read in every trip
            virtual.append(program.regions[eqn.params["region"]].stop - 1)
        ends.append(max([late.get(eqn.index, eqn.index), *virtual]))
    return (*ends, len(program.equations))
