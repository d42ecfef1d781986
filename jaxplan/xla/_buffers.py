"""Which values become buffers, and from when to when they live.

The compiler fuses element-wise chains, so most values of a jaxpr never exist in memory. A value is *materialised* when
an operator that cannot be fused makes or reads it; the others are recomputed inside the fusions that read them. What
a backward fusion needs of an unmaterialised forward value it recomputes from materialised ones: the narrowest such
value of the chain is the one that is saved, or the first that is a buffer anyway. Transcendental functions that cost
many instructions are not recomputed: the fusion that makes one for the forward pass also writes it for the backward
pass.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jaxplan.ir import CUT, REGION_IN, REGION_OUT, Equation, StepGraph, turning_point
from jaxplan.xla._kernels import NOT_RECOMPUTED, fuses_into, is_recomputed, runs_inside_readers
from jaxplan.xla._target import Target
from jaxplan.xla.rules.both.deferred import PutOff, behind_input_gradients, put_off
from jaxplan.xla.rules.both.fusion import CUT_ARGUMENTS, LOOP_BOUNDARIES, LOOP_CONSTANTS, RESIDUAL_SUMS
from jaxplan.xla.rules.both.gated import gated
from jaxplan.xla.rules.both.in_place import cleared_together, hand_over, sums_over_trips
from jaxplan.xla.rules.both.residuals import MASKS_ARE_RECOMPUTED, NARROWEST_IS_SAVED, SMALL_STATISTICS
from jaxplan.xla.rules.both.schedule import SUMS_OVER_TRIPS
from jaxplan.xla.rules.gpu.functions import WIDE_COPIES, WIDE_FUNCTIONS
from jaxplan.xla.rules.gpu.in_place_fusions import write_over_operands
from jaxplan.xla.rules.gpu.library_sums import Accumulation, accumulations
from jaxplan.xla.rules.gpu.padding import MatrixDims, padded_operands
from jaxplan.xla.rules.gpu.pooling import PoolBuffer, pool_buffers
from jaxplan.xla.rules.gpu.schedule import CLEARED_TOGETHER, FUSIONS_IN_PLACE, GRADIENTS_AFTER_INPUTS
from jaxplan.xla.rules.gpu.transposed import OrderedCopy, write_in_orders
from jaxplan.xla.rules.tpu.channel_groups import ChannelGroups, grouped_operands, wide_results
from jaxplan.xla.rules.tpu.dot_operands import (
    batches_of_rows,
    costly_images,
    flattened_images,
    images_of_arguments,
    turned_operands,
)
from jaxplan.xla.rules.tpu.dot_results import gradients_of_widened, widened_outputs, written_behind
from jaxplan.xla.rules.tpu.fusion import RECTIFIED_SUMS, STRIDED_SLICES
from jaxplan.xla.rules.tpu.inner_dims import inner_dims
from jaxplan.xla.rules.tpu.layouts import TILES
from jaxplan.xla.rules.tpu.rearranged import written_wider
from jaxplan.xla.rules.tpu.rounding import rounded_for_loops
from jaxplan.xla.rules.tpu.slices import kept_for_slices, takes_every_other, woven

COMPARISONS = frozenset({"eq", "ne", "ge", "gt", "le", "lt", "is_finite", "not"})
"""A mask is a quarter of what it is made of, and still never written by compiled GPU programs: each fusion that reads
it compares again, and what it compares is saved."""
_RECTIFIER = "max"
SMALL_FRACTION = 1 / 8
"""Statistics (a row's maximum, mean or variance) this much smaller than what they belong to are saved beside it."""
_WIDE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Lifetimes in equation indices; index -1 is before the first equation.

    Attributes:
      target: the compiler that these are the buffers of.
      materialised: per tensor, whether it is a buffer of its own.
      birth: equation that makes it (-1 for inputs).
      death: last equation whose fusion reads it; the number of equations for program outputs.
      read_end: per equation, the one whose fusion really reads its operands; one more, for what leaves the program.
      turning_point: index of the first backward equation (the number of equations when there is none).
      saved: materialised tensors made before and read after the turning point, inputs excluded.
      num_bytes: global bytes of each tensor as a buffer: a 16-bit result of a function in `NOT_RECOMPUTED` is saved in
        float32 where the chip's element-wise arithmetic is.
      widened: 16-bit tensors that are cast to float32 by the fusions of both passes, logits excluded.
      cleared: tensors that are cleared at once, where the first of those that are split alike is made.
      ordered: buffers that are there once more, their dimensions in another order.
      pooled: what gradients of max pooling hold beside their operands and results.
      inner: the two innermost dimensions of images, where memory is in tiles.
      element_bytes: of tensors that are held in another dtype than theirs (`rounded_for_loops`, `written_wider`).
      batched: tensors that are buffers only where a device holds more than one element of these dimensions.
      turned: tensors that are buffers only where products have other dimensions innermost than these (`are_turned`).
      instead: of those in ``batched`` and ``turned``, the buffers that live longer where they are none: what they are
        computed of, in the fusions that read them.
      grouped, wide: images whose channels lie in groups (`grouped_operands`), and what convolutions of groups make that
        is held in elements of so many bytes, as its copies are (`wide_results`).
      padded: what products read as matrices of whole multiples (`padded_operands`).
      behind: products that make gradients -> the products that come first (`behind_input_gradients`).
      deferred: weight gradients that run later than the program has them (`put_off`); none with ``in_order``.
      added_up: views of a dot that a library call adds to a sum -> the dot, a buffer only where a view is resharded.
      sums: equations that add a dot, in its library call -> the other summand, over which the call writes.
    """

    target: Target
    materialised: tuple[bool, ...]
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

    def held_as(self, t: int) -> tuple[Hashable, ...]:
        """What beside its shape and dtype decides the bytes of a tensor on a device."""
        of_tiles = self.inner.get(t), self.element_bytes.get(t), self.batched.get(t), self.turned.get(t)
        return self.num_bytes[t], of_tiles, self.grouped.get(t), self.padded.get(t)

    def is_kept(self, first: int, last: int) -> bool:
        """Whether what is made for a read at ``first``, and read at ``last`` again, lives until the backward pass."""
        return first < self.turning_point <= self.read_end[last]


def analyse_buffers(
    graph: StepGraph, target: Target, *, in_order: bool = False
) -> Buffers:
    """Decide materialisation and lifetimes in two passes over the equations.

    ``in_order``: as if every product ran where the program has it (see `put_off`).
    """
    program, values = graph.program, graph.values
    turning = turning_point(program)
    added_up = accumulations(graph, target)
    outputs = widened_outputs(graph, target)
    rows = batches_of_rows(graph, target, outputs.values())
    innermost = inner_dims(graph, target)
    turned = turned_operands(graph, target, innermost)
    flat = flattened_images(graph, target, innermost) | images_of_arguments(graph, target)
    grouped, wide = grouped_operands(graph, target), wide_results(graph, target)
    flat |= costly_images(graph, target, innermost)
    flat = flat.union(grouped, gradients_of_widened(graph, target, outputs.values()))
    materialised = _materialised(graph, target, turning, added_up, outputs, flat.union(turned, rows))
    written = rows or turned
    without_rows = _materialised(graph, target, turning, added_up, outputs, flat) if written else materialised
    waiting = {} if in_order else put_off(graph, target)
    summed = {} if in_order or not SUMS_OVER_TRIPS.applies_to(target) else sums_over_trips(graph)
    late = {e: when.by for e, when in waiting.items()} | {e: behind + 1 for e, behind in summed.items()}
    late |= {values.producer[a.product]: a.equation for a in added_up if not a.in_place}
    death = _deaths(graph, target, materialised, late, added_up, summed)
    if FUSIONS_IN_PLACE.applies_to(target):
        write_over_operands(graph, materialised, death)
    read_end = _read_end(graph, materialised, death, late)
    ordered = write_in_orders(graph, target, materialised, read_end, death)
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
        birth=tuple(birth),
        death=tuple(death),
        read_end=read_end,
        turning_point=turning,
        saved=saved,
        num_bytes=tuple(_buffer_bytes(graph, target, t) for t in made),
        widened=_widened(graph, target, materialised),
        cleared=cleared_together(graph) if CLEARED_TOGETHER.applies_to(target) else (),
        ordered=ordered,
        pooled=pooled,
        inner=innermost,
        element_bytes={**rounded_for_loops(graph, target), **written_wider(graph, target), **wide},
        batched={t: dims for t, dims in rows.items() if t in some},
        turned={t: dims for t, dims in turned.items() if t in some},
        instead={t: sources for t, sources in instead.items() if sources and t in some},
        grouped=grouped,
        wide=wide,
        padded=padded_operands(graph, target),
        behind=behind,
        deferred=waiting,
        added_up={t: a.product for a in added_up for t in a.views},
        sums={a.equation: a.other for a in added_up if a.in_place},
    )


def _deaths(
    graph: StepGraph,
    target: Target,
    materialised: Sequence[bool],
    late: Mapping[int, int],
    added_up: Sequence[Accumulation],
    summed: Collection[int] = (),
) -> list[int]:
    """The last equation that reads each tensor, itself or through what is computed of it in the same pass.

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
    """The equation at which each tensor is made; what a loop stacks is there from its beginning.

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


def _widened(graph: StepGraph, target: Target, materialised: Sequence[bool]) -> frozenset[int]:
    if not WIDE_COPIES.applies_to(target):
        return frozenset()
    tensors, found = graph.program.tensors, set()
    for eqn in graph.program.equations:
        if eqn.name != "convert_element_type" or eqn.phase == "backward" or materialised[eqn.results[0]]:
            continue
        narrow, wide = tensors[eqn.operands[0]], tensors[eqn.results[0]]
        is_wider = narrow.itemsize < _WIDE_BYTES == wide.itemsize and wide.dtype.kind == "f"
        if is_wider and not _is_normalised(graph, wide.index):
            found.add(narrow.index)
    return frozenset(found)


def _is_normalised(graph: StepGraph, t: int) -> bool:
    """Whether the maximum is taken of a value, or of what is added to it: fusions compute both again (logits)."""
    readers = [graph.program.equations[c] for c in graph.values.consumers[t]]
    readers += [
        graph.program.equations[c]
        for eqn in readers
        if graph.rules[eqn.index].family == "elementwise"
        for c in graph.values.consumers[eqn.results[0]]
    ]
    return any(eqn.name == "reduce_max" for eqn in readers)


def _buffer_bytes(graph: StepGraph, target: Target, t: int) -> int:
    tensor, index = graph.program.tensors[t], graph.values.producer[t]
    if index < 0 or tensor.itemsize >= _WIDE_BYTES or not WIDE_FUNCTIONS.applies_to(target):
        return tensor.num_bytes
    wide = graph.program.equations[index].name in NOT_RECOMPUTED
    return tensor.num_elements * _WIDE_BYTES if wide else tensor.num_bytes


def _materialised(
    graph: StepGraph,
    target: Target,
    turning: int,
    added_up: Sequence[Accumulation],
    widened: Mapping[int, int],
    written: Collection[int],
) -> list[bool]:
    program = graph.program
    result = [False] * len(program.tensors)
    for t in program.outputs:
        result[t] = bool(program.tensors[t].shape)
    for eqn in program.equations:
        if eqn.name == "optimization_barrier":  # its result is the same buffer
            result[eqn.operands[0]] = not graph.values.free[eqn.operands[0]]
        elif eqn.name in (REGION_IN, REGION_OUT) and LOOP_BOUNDARIES.applies_to(target):
            _mark_boundary(graph, eqn, result)
        elif STRIDED_SLICES.applies_to(target) and takes_every_other(eqn):
            result[eqn.operands[0]] = not graph.values.free[eqn.operands[0]]
        elif graph.rules[eqn.index].family == "gather" or not runs_inside_readers(graph, target, eqn.index):
            has_kernel = not runs_inside_readers(graph, target, eqn.index)
            for t in (*eqn.operands, *eqn.results) if has_kernel else eqn.operands[:1]:
                reads_free = graph.values.free[t] or program.tensors[t].kind == "literal"
                result[t] = not reads_free and (result[t] or not fuses_into(graph, target, eqn.index, t))
    for t in written:
        result[t] = not graph.values.free[t] and program.tensors[t].kind != "literal"
    for product, wide in widened.items():
        result[product], result[wide] = False, True
    for a in added_up:  # what the library reads and writes
        result[a.other] = result[a.other] or not a.replaces
        result[program.equations[a.equation].results[0]] = True
    for t in program.inputs:
        result[t] = True
    for eqn in program.equations if RESIDUAL_SUMS.applies_to(target) else ():
        if _is_junction(graph, target, eqn.index, turning, result):
            result[eqn.results[0]] = True
    for t in gated(graph, target, result):
        result[t] = True
    for t in (*written_behind(graph, target, result), *woven(graph, target).difference(program.outputs)):
        result[t] = False
    _save_residuals(graph, target, turning, result)
    for eqn in program.equations:
        role = eqn.params["role"] if eqn.name == REGION_IN else ""
        if role == "const" and LOOP_CONSTANTS.applies_to(target) and _is_argument(graph, eqn.operands[0]):
            result[eqn.results[0]] = False
        elif role == "x" and CUT_ARGUMENTS.applies_to(target) and _is_cut(graph, target, eqn.operands[0]):
            result[eqn.operands[0]] = False
    return result


def _is_argument(graph: StepGraph, t: int) -> bool:
    """Whether a tensor is an argument of the step, as outer loops hand it in or not."""
    made = graph.values.producer[t]
    if made < 0:
        return t in graph.program.inputs
    eqn = graph.program.equations[made]
    return eqn.name == REGION_IN and eqn.params["role"] == "const" and _is_argument(graph, eqn.operands[0])


def _is_cut(graph: StepGraph, target: Target, t: int) -> bool:
    """Whether a tensor is an argument whose leading dimension was taken apart (micro-batches): the same buffer.

    Where memory is in tiles of the last two dimensions, they have to be the same.
    """
    made = graph.values.producer[t]
    if made < 0 or graph.program.equations[made].name not in ("reshape", CUT) or t in graph.program.outputs:
        return False
    (source,) = graph.program.equations[made].operands
    shapes = [graph.program.tensors[u].shape for u in (source, t)]
    is_same = not TILES.applies_to(target) or (min(map(len, shapes)) > 2 and shapes[0][-2:] == shapes[1][-2:])
    return is_same and source in graph.program.inputs


def _mark_boundary(graph: StepGraph, eqn: Equation, materialised: list[bool]) -> None:
    """What a loop or branch reads is a buffer outside of it, what it makes is one, and so is a carry inside of it.

    A constant is the same buffer inside; a slice is computed in the fusions that read it. What is computed outside and
    read by products inside is counted once more all the same: compiled recurrent networks take about that much more.
    """
    is_entry = eqn.name == REGION_IN
    if is_entry:
        materialised[eqn.operands[0]] = not graph.values.free[eqn.operands[0]]
    if not is_entry or eqn.params["role"] == "carry":
        materialised[eqn.results[0]] = bool(graph.program.tensors[eqn.results[0]].shape)


def _is_junction(
    graph: StepGraph, target: Target, equation: int, turning: int, materialised: Sequence[bool]
) -> bool:
    """A sum of two activations that several readers share (a residual stream) is written once, not recomputed.

    A reader that only serves the backward pass (the mask of a rectifier) does not count: it is computed again there.
    Those of the rectified sum do where products compute that as they read it; elsewhere it is a buffer itself.
    """
    eqn, tensors, consumers = graph.program.equations[equation], graph.program.tensors, graph.values.consumers
    if graph.rules[equation].family != "elementwise" or eqn.name not in ("add", "add_any", "sub"):
        return False

    def readers(t: int) -> Iterator[int]:
        for c in consumers[t]:
            results, name = graph.program.equations[c].results, graph.program.equations[c].name
            if c >= turning or any(r < turning for result in results for r in consumers[result]):
                is_inside = RECTIFIED_SUMS.applies_to(target) and name == _RECTIFIER and not materialised[results[0]]
                yield from readers(results[0]) if is_inside else (c,)

    if len(set(readers(eqn.results[0]))) < 2:
        return False
    size = tensors[eqn.results[0]].num_elements
    large = {t for t in eqn.operands if tensors[t].num_elements == size and not graph.values.free[t]}
    return len(large) >= 2 and size > 1


def _save_residuals(graph: StepGraph, target: Target, turning: int, materialised: list[bool]) -> None:
    """Make a buffer of what backward fusions need and cannot recompute from buffers that live anyway."""
    program, values = graph.program, graph.values
    again = [is_recomputed(graph, target, eqn.index) for eqn in program.equations]
    kept = set(program.inputs)
    for t in program.tensors:
        if materialised[t.index] and any(c >= turning for c in values.consumers[t.index]):
            kept.add(t.index)
    kept |= kept_for_slices(graph, target, turning, materialised)
    for eqn in program.equations[:turning]:
        for t in eqn.results:
            if t in kept or not program.tensors[t].shape or values.free[t]:
                continue
            if any(c >= turning for c in values.consumers[t]):
                for keep in _narrowest(graph, target, again, t, kept, materialised):
                    kept.add(keep)
                    materialised[keep] = True


def _narrowest(
    graph: StepGraph,
    target: Target,
    again: Sequence[bool],
    t: int,
    kept: set[int],
    materialised: list[bool],
) -> list[int]:
    """The values to keep so that ``t`` can be recomputed; none when what is kept already suffices."""
    program, values = graph.program, graph.values
    missing = _missing_sources(graph, again, t, kept, materialised)
    share = SMALL_FRACTION if SMALL_STATISTICS.applies_to(target) else 0
    if sum(program.tensors[u].num_bytes for u in missing) <= share * program.tensors[t].num_bytes:
        return missing  # the statistics that a normalised value, and its mask, are computed again from
    keep: list[int] = []
    while True:
        index = values.producer[t]
        if index < 0 or not again[index] or not NARROWEST_IS_SAVED.applies_to(target):
            return [*keep, t]
        size = program.tensors[t].num_bytes
        operands = dict.fromkeys(program.equations[index].operands)
        needed = [o for o in operands if _missing_sources(graph, again, o, kept, materialised)]
        large = [o for o in needed if program.tensors[o].num_bytes > share * size]
        is_mask = MASKS_ARE_RECOMPUTED.applies_to(target) and program.equations[index].name in COMPARISONS
        if len(large) > 1 or (large and not is_mask and program.tensors[large[0]].num_bytes > size):
            return [*keep, t]
        for small in needed:
            if small not in large:
                keep.extend(_narrowest(graph, target, again, small, kept, materialised))
        if not large:
            return keep
        t = large[0]
        if materialised[t]:
            return [*keep, t]


def _missing_sources(
    graph: StepGraph, again: Sequence[bool], t: int, kept: set[int], materialised: list[bool]
) -> list[int]:
    """What ``t`` cannot be recomputed without and is not kept: buffers, and results that are not computed twice."""
    program, values = graph.program, graph.values
    stack, seen, missing = [t], set(), []
    while stack:
        u = stack.pop()
        if u in seen or u in kept or values.free[u] or not program.tensors[u].shape:
            continue
        seen.add(u)
        index = values.producer[u]
        if index < 0:
            continue
        if materialised[u] or not again[index]:
            missing.append(u)
        else:
            stack.extend(program.equations[index].operands)
    return missing
