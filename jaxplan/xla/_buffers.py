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
from jaxplan.xla._copies import Bordered, bordered_images, layout_copies
from jaxplan.xla._effects import ChooseOrder, Defer, Hold, Overwrite, Share, Tile
from jaxplan.xla._facts import Facts
from jaxplan.xla._found import Found, effects
from jaxplan.xla._fusion import Fused, fuse
from jaxplan.xla._kernels import with_kernels
from jaxplan.xla._layouts import storage_of, with_storage
from jaxplan.xla._liveness import births, deaths, read_ends, share, sources_that_live_longer
from jaxplan.xla._plan_effects import CopyWide, ExtendSources
from jaxplan.xla._residuals import save_residuals
from jaxplan.xla._schedule import Schedule, schedule
from jaxplan.xla._storage import AS_DECLARED, Storage
from jaxplan.xla._target import Target
from jaxplan.xla._transfer_dtypes import TransferDtypes
from jaxplan.xla.rules.gpu.borders import PaddedImage


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Lifetimes in equation indices; index -1 is before the first equation.

    Attributes:
      target: the compiler that these are the buffers of.
      found: the effects of rules that the shardings of a plan decide on.
      materialised: per tensor, whether it is a buffer of its own.
      decided_by: per tensor, the compiler rule that decided that; None: none did, readers compute it.
      birth: equation that makes it (-1 for inputs).
      death: last equation whose fusion reads it; the number of equations for program outputs.
      read_end: per equation, the one whose fusion really reads its operands; one more, for outputs of the program.
      turning_point: index of the first backward equation (the number of equations when there is none).
      saved: materialised tensors made before and read after the turning point, inputs excluded.
      num_bytes: global bytes of each tensor as a buffer, padding and tiles not counted.
      storage: tensors that do not lie in memory as the program has them.
      dtypes: in which tensors travel.
      widened: 16-bit tensors whose resharded copies are saved once more in float32.
      bordered: images with zeros around them that convolutions read.
      batched: tensors that are buffers only where a device holds more than one element of these dimensions.
      turned: tensors that are buffers only where dots have other dimensions innermost than these (`are_turned`).
      instead: sources that values in ``batched`` and ``turned`` are recomputed from where these are not materialised:
        their live ranges extend to the last use.
      behind: order constraints: dots that make gradients -> the dots that come first, as the lowering asks.
      deferred: weight gradients that run later than the program has them; none with ``in_order``.
      after: equations with a result that is made behind another equation -> that one.
      added_up: views of a dot that a library call adds to a sum -> the dot, a buffer only where a view is resharded.
      sums: equations that add a dot, in its library call -> the other summand, over which the call writes.
      sums_alone: those of them with a result that is a buffer for that reason alone.
      in_order: the buffers as if no weight gradient was deferred, where the compiler may take that order instead.
    """

    target: Target
    found: Found
    materialised: tuple[bool, ...]
    decided_by: tuple[str | None, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]
    read_end: tuple[int, ...]
    turning_point: int
    saved: tuple[int, ...]
    num_bytes: tuple[int, ...]
    storage: Mapping[int, Storage]
    dtypes: TransferDtypes
    widened: frozenset[int]
    bordered: tuple[Bordered, ...] = ()
    batched: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    turned: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    instead: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    behind: Mapping[int, int] = field(default_factory=dict)
    deferred: Mapping[int, Defer] = field(default_factory=dict)
    after: Mapping[int, int] = field(default_factory=dict)
    added_up: Mapping[int, int] = field(default_factory=dict)
    sums: Mapping[int, int] = field(default_factory=dict)
    sums_alone: frozenset[int] = frozenset()
    in_order: Buffers | None = None

    @property
    def is_tiled(self) -> bool:
        """Whether arrays lie in memory in tiles."""
        return self.found.has(Tile)

    def storage_of(self, t: int) -> Storage:
        """How a tensor lies in memory."""
        return self.storage.get(t, AS_DECLARED)

    def held_as(self, t: int) -> tuple[Hashable, ...]:
        """The properties beside shape and dtype that decide the bytes of a tensor on a device."""
        return self.num_bytes[t], self.storage.get(t), self.batched.get(t), self.turned.get(t)

    def is_kept(self, first: int, last: int) -> bool:
        """Whether a copy made for a read at ``first``, and read at ``last`` again, lives until the backward pass."""
        return first < self.turning_point <= self.read_end[last]


def analyse_buffers(graph: StepGraph, target: Target, *, in_order: bool = False) -> Buffers:
    """Run the passes: storage, kernels, fusion, residuals, schedule, live ranges, copies.

    ``in_order``: as if every dot ran where the program has it.
    """
    return graph.derive(("buffers", in_order), target, lambda: _analysed(graph, target, in_order))


def _analysed(graph: StepGraph, target: Target, in_order: bool) -> Buffers:
    facts, storage = with_storage(Facts(graph=graph, target=target, turning=turning_point(graph.program)))
    facts, kernels = with_kernels(facts)
    fused, recomputed = _with_residuals(facts, conditional=True)
    found = storage | kernels | Found.of_effects(fused.others)
    certain, facts = facts, replace(facts, written=fused.written, recomputed=recomputed)
    result = _scheduled(facts, certain, fused, found, in_order=in_order)
    if in_order or not result.deferred or not result.found.has(ChooseOrder):
        return result
    return replace(result, in_order=_scheduled(facts, certain, fused, found, in_order=True))


def _scheduled(facts: Facts, certain: Facts, fused: Fused, found: Found, *, in_order: bool) -> Buffers:
    """The buffers of a step in one order of execution; ``certain`` has no decisions on fusion."""
    graph, materialised, turning = facts.graph, fused.written, facts.turning
    plan = schedule(facts, fused.sums, in_order=in_order)
    found |= plan.found | Found.of_effects(effects(facts, "liveness"))
    overwritten = found.of(Overwrite)
    death = deaths(graph, overwritten, materialised, plan, fused.sums)
    for effect in effects(replace(facts, death=death, in_order=in_order), "reuse"):
        if isinstance(effect, Overwrite):
            death[effect.tensor] = effect.equation - 1
    birth = births(graph, plan.after)
    share(graph, found.of(Share), birth, death)
    facts = replace(facts, read_end=read_ends(graph, materialised, death, plan.late))
    found |= layout_copies(facts, death)
    found |= Found.of_effects([*effects(facts, "heap"), *effects(facts, "work")])
    some, instead = _conditional(certain, fused, plan, overwritten, death)
    made = range(len(graph.program.tensors))
    return Buffers(
        target=facts.target,
        found=found,
        materialised=tuple(materialised),
        decided_by=tuple(fused.decided_by),
        birth=tuple(birth),
        death=tuple(death),
        read_end=tuple(facts.read_end),
        turning_point=turning,
        saved=tuple(t for t in made if materialised[t] and -1 < birth[t] < turning <= death[t]),
        num_bytes=_num_bytes(graph, found),
        storage=storage_of(facts, found),
        dtypes=TransferDtypes.of(found),
        widened=frozenset(effect.tensor for effect in found.of(CopyWide)),
        bordered=bordered_images(facts, found.of(PaddedImage), death),
        batched={t: dims for t, dims in fused.blocks.items() if t in some},
        turned={t: dims for t, dims in fused.transposes.items() if t in some},
        instead=instead if found.has(ExtendSources) else {},
        behind=plan.asked,
        deferred=plan.deferred,
        after=plan.after,
        added_up={t: a.dot for a in fused.sums for t in a.views},
        sums={a.equation: a.other for a in fused.sums if a.in_place},
        sums_alone=fused.sums_alone,
    )


def _num_bytes(graph: StepGraph, found: Found) -> tuple[int, ...]:
    """Global bytes of each tensor as a buffer, in elements of its own dtype where memory is in tiles."""
    sizes = [tensor.num_bytes for tensor in graph.program.tensors]
    for hold in found.of(Hold) if not found.has(Tile) else ():
        sizes[hold.tensor] = graph.program.tensors[hold.tensor].num_elements * hold.itemsize
    return tuple(sizes)


def _conditional(
    facts: Facts, fused: Fused, plan: Schedule, overwritten: Sequence[Overwrite], death: Sequence[int]
) -> tuple[set[int], dict[int, tuple[int, ...]]]:
    """Buffers that only some configurations write, and of these the sources that live longer where they are not."""
    if not fused.blocks and not fused.transposes:
        return set(), {}
    graph, turning = facts.graph, facts.turning
    certain = _with_residuals(facts, conditional=False)[0].written
    some = {t for t in (*fused.blocks, *fused.transposes) if not certain[t]}
    without = deaths(graph, overwritten, certain, plan, fused.sums) if some else []
    instead = {t: sources_that_live_longer(graph, t, fused.written, death, without) for t in sorted(some)}
    # Those in whose place a value is kept for the backward pass count for it: as many bytes.
    some -= {t for t, sources in instead.items() if any(death[u] < turning <= without[u] for u in sources)}
    return some, {t: sources for t, sources in instead.items() if sources and t in some}


def _with_residuals(facts: Facts, *, conditional: bool) -> tuple[Fused, tuple[bool, ...]]:
    """The buffers of both passes, and per equation whether the backward pass recomputes it."""
    fused = fuse(facts, conditional=conditional)
    return fused, save_residuals(replace(facts, written=fused.written), fused)
