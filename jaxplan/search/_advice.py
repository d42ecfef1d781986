"""Advice on a plan: changes to the step, the machine or the options, each with the time and memory that it would give.

Every figure is of the same models as the plan's own: either the plan itself is priced again (other links, narrower
gradients, overlap), or the step is planned again (padded, recomputed, in slices, on more devices).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxplan.core import _compat
from jaxplan.core._log import inform_once
from jaxplan.core._units import format_bytes, format_seconds
from jaxplan.errors import ArgumentError, InfeasibleError, TopologyError, UnsupportedError
from jaxplan.ir import StepGraph
from jaxplan.mesh import Topology, collective_seconds, enlarged, with_bandwidth
from jaxplan.plans._advice import Advice
from jaxplan.plans._frontier import Frontier
from jaxplan.plans._plan import Plan
from jaxplan.plans._priced import PricedPlan
from jaxplan.plans._rows import short_source
from jaxplan.search._uneven_dimensions import UnevenDimension, uneven_dimensions
from jaxplan.search._what_if import Replanner

LEAST_GAIN = 0.02
"""Advice is given where it saves at least this share of the time or the memory of the plan."""
SLICES = (4, 2)
"""Numbers of micro-batches that are tried, the first that divides the batch."""
LEAST_SAVING = 0.2
"""... and a way that costs time is followed until it saves this share of the memory."""
NARROW_BYTES = 2
"""Bytes of an element of a gradient that is reduced in bfloat16."""

_REDUCING = frozenset({"all-reduce", "reduce-scatter"})


def advise(plan: Plan, replan: Replanner) -> tuple[Advice, ...]:
    """What would make a plan faster or leaner, the largest saving first.

    Raises:
      PlanMismatchError: the plan was loaded without its step.
    """
    subject = _Subject(plan=plan, replan=replan, graph=plan.require_program())
    found = [advice for maker in _MAKERS for advice in maker(subject)]
    return tuple(sorted(found, key=lambda advice: (-advice.gain, advice.kind)))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Subject:
    """The plan that advice is on, and the ways to price it again."""

    plan: Plan
    replan: Replanner
    graph: StepGraph

    @cached_property
    def priced(self) -> PricedPlan:
        return self.priced_on(self.plan.topology)

    def priced_on(self, topology: Topology) -> PricedPlan:
        plan, overlap = self.plan, self.plan.overlapped
        return PricedPlan(self.graph, topology, plan.configurations, plan.repeated, overlap=overlap)

    def again(self, topology: Topology | None = None, **changes: Any) -> Frontier | None:
        """The step planned again with other options; None where that is not possible."""
        replan, machine = self.replan, topology or self.plan.topology
        said = ", ".join([f"{name}={value}" for name, value in changes.items()] or [machine.name])
        return self.tried(said, lambda: replan.plan_graph(replan.graph, machine, changes))

    def tried(self, said: str, make: Callable[[], Frontier]) -> Frontier | None:
        """A frontier; None, and a line in the log, where nothing fits or the step cannot be planned so."""
        try:
            return make()
        except (ArgumentError, InfeasibleError, UnsupportedError) as error:
            reason = str(error).partition("\n")[0]
            inform_once(f"no advice on {said}: {reason}")
            return None

    def advice(self, kind: str, text: str, seconds: float = 0.0, memory_bytes: int = 0) -> Iterator[Advice]:
        """One piece of advice, unless it saves next to nothing; differences to the plan, negative where they save."""
        gain = max(-seconds / self.plan.time_seconds, -memory_bytes / max(1, self.plan.memory_bytes))
        if gain >= LEAST_GAIN:
            yield Advice(kind=kind, text=text, seconds=seconds, memory_bytes=memory_bytes, gain=gain)

    def instead(self, other: Plan) -> str:
        """Time and memory of another plan beside those of this one."""
        return (
            f"{format_seconds(other.time_seconds)} and {format_bytes(other.memory_bytes)} instead of "
            f"{format_seconds(self.plan.time_seconds)} and {format_bytes(self.plan.memory_bytes)}"
        )


def _padding(subject: _Subject) -> Iterator[Advice]:
    """Dimensions that the devices do not divide: the batch padded and planned again, others by their share."""
    for uneven in uneven_dimensions(subject.priced.model, subject.plan.configurations):
        if uneven.is_batch:
            yield from _padded_batch(subject, uneven)
        elif uneven.gains:
            yield from _padded_dimension(subject, uneven)


def _padded_batch(subject: _Subject, uneven: UnevenDimension) -> Iterator[Advice]:
    frontier = subject.tried(f"batch={uneven.padded}", lambda: subject.replan(batch=uneven.padded))
    if frontier is None:
        return
    other = frontier.fastest()
    for_as_many = other.time_seconds * uneven.size / uneven.padded
    text = (
        f"a batch of {uneven.padded} in place of {uneven.size} splits over {uneven.wanted} devices instead of "
        f"{uneven.parts}: {subject.instead(other)}, which is {format_seconds(for_as_many)} for {uneven.size} examples"
    )
    plan = subject.plan
    yield from subject.advice(
        "padding", text, for_as_many - plan.time_seconds, other.memory_bytes - plan.memory_bytes
    )


def _padded_dimension(subject: _Subject, uneven: UnevenDimension) -> Iterator[Advice]:
    plan = subject.plan
    spared = (uneven.flops - uneven.padded_flops) / max(1.0, plan.prediction.flops)
    seconds = -min(1.0, spared) * plan.compute_seconds
    num_bytes = round(uneven.padded_kept_bytes - uneven.kept_bytes)
    text = (
        f"{uneven.name!r} ({uneven.where}) padded from {uneven.size} to {uneven.padded} splits over {uneven.wanted} "
        f"devices instead of {uneven.parts}: at best {format_seconds(-seconds)} and {format_bytes(-num_bytes)} less"
    )
    yield from subject.advice("padding", text, seconds, num_bytes)


def _slowest_link(subject: _Subject) -> Iterator[Advice]:
    """The level of links that this plan gains most from, were it twice as fast."""
    plan = subject.plan
    if plan.topology.profile is not None or not plan.communication_seconds:
        return
    base = subject.priced.seconds
    saved = {
        level.name: base - subject.priced_on(with_bandwidth(plan.topology, {level.name: 2.0})).seconds
        for level in plan.topology.levels
    }
    name = max(saved, key=lambda level: saved[level])
    text = (
        f"the links between {_children(name)} limit this plan most: twice as fast, it takes "
        f"{format_seconds(plan.time_seconds - saved[name])} instead of {format_seconds(plan.time_seconds)}"
    )
    yield from subject.advice("link", text, -saved[name])


def _children(level: str) -> str:
    return {"node": "nodes", "device": "the devices of a node"}.get(level, f"devices along {level}")


def _operators(subject: _Subject) -> Iterator[Advice]:
    """Operators that every device runs whole: those without a rule, and those that no layout splits."""
    graph, plan, model = subject.graph, subject.plan, subject.priced.model
    seconds: dict[tuple[str, bool], float] = defaultdict(float)
    places: dict[tuple[str, bool], str] = {}
    for group in graph.grouping.groups:
        unruled = set(graph.unknown).intersection(group.equations)
        if unruled or (group.equations and not graph.spaces[group.index].classes):
            eqn = graph.program.equations[min(unruled or group.equations)]
            key = _compat.callee_name(eqn.name, eqn.params) or eqn.name, bool(unruled)
            seconds[key] += float(model.problem.time[group.index][0])
            places.setdefault(key, short_source(_compat.eqn_source_line(eqn.origin)))
    for (name, is_unknown), taken in seconds.items():
        saved = taken * (1 - 1 / plan.topology.num_devices)
        why = "has no rule" if is_unknown else "has no dimension that its rule splits"
        fix = "by a rule (jaxplan.register_rule)" if is_unknown else "by other operators (docs/operators.md)"
        text = (
            f"{name!r} at {places[name, is_unknown] or 'an unknown line'} {why} and runs whole on every device for "
            f"{format_seconds(taken)}; split over all of them {fix} it takes {format_seconds(taken - saved)}"
        )
        yield from subject.advice("operator", text, -saved)


def _more_devices(subject: _Subject) -> Iterator[Advice]:
    try:
        larger = enlarged(subject.plan.topology)
    except TopologyError:
        return
    frontier = subject.again(topology=larger)
    if frontier is None:
        return
    other, plan = frontier.fastest(), subject.plan
    text = f"{larger.num_devices} devices ({larger.name}): {subject.instead(other)}"
    yield from subject.advice(
        "devices", text, other.time_seconds - plan.time_seconds, other.memory_bytes - plan.memory_bytes
    )


def _recomputation(subject: _Subject) -> Iterator[Advice]:
    if subject.plan.remat is None:
        found = [of for of in subject.again(remat=True) or () if of.remat is not None]
        yield from _leaner(subject, "remat", "blocks recomputed (remat=True)", found)


def _micro_batches(subject: _Subject) -> Iterator[Advice]:
    if subject.graph.program.microbatches is not None:
        return
    for num in SLICES:
        frontier = subject.again(microbatches=num)
        if frontier is not None:
            text = f"the batch in {num} slices (microbatches={num})"
            yield from _leaner(subject, "microbatches", text, frontier)
            return


def _leaner(subject: _Subject, kind: str, how: str, plans: Iterable[Plan]) -> Iterator[Advice]:
    """The fastest plan that takes noticeably less memory."""
    plan = subject.plan
    lean = [of for of in plans if of.memory_bytes <= (1 - LEAST_SAVING) * plan.memory_bytes]
    if lean:
        other = min(lean, key=lambda of: of.time_seconds)
        yield from subject.advice(
            kind,
            f"{how}: {subject.instead(other)}",
            other.time_seconds - plan.time_seconds,
            other.memory_bytes - plan.memory_bytes,
        )


def _gradient_dtype(subject: _Subject) -> Iterator[Advice]:
    """Gradients that are reduced in float32, if they were cast to bfloat16 before."""
    plan, tensors = subject.plan, subject.graph.program.tensors
    stored = {tensors[t].shape for t in subject.graph.stored}
    shapes = stored | {shape[1:] for shape in stored}
    taken = saved = 0.0
    for transfer in subject.priced.transfers:
        if transfer.itemsize <= NARROW_BYTES or tensors[transfer.tensor].shape not in shapes:
            continue
        times = transfer.trips * len(transfer.spans)
        for kind, axes, size in transfer.collectives:
            if kind in _REDUCING:
                wide = collective_seconds(plan.topology, kind, size, axes)
                narrow = collective_seconds(plan.topology, kind, size * NARROW_BYTES // transfer.itemsize, axes)
                taken, saved = taken + times * wide, saved + times * (wide - narrow)
    text = (
        f"gradients are reduced in float32 for {format_seconds(taken)} a step; cast to bfloat16 before, in "
        f"{format_seconds(taken - saved)}"
    )
    yield from subject.advice("gradients", text, -saved)


def _overlap(subject: _Subject) -> Iterator[Advice]:
    """Collectives beside compute, as a scheduler that hides latencies runs them."""
    plan = subject.plan
    if plan.overlapped or not plan.communication_seconds:
        return
    simulated = PricedPlan(subject.graph, plan.topology, plan.configurations, plan.repeated, overlap=True)
    text = (
        f"communication beside compute, simulated: {format_seconds(simulated.seconds)} instead of "
        f"{format_seconds(plan.time_seconds)}; overlap=True, the default, ranks plans so"
    )
    yield from subject.advice("overlap", text, simulated.seconds - plan.time_seconds)


_MAKERS: tuple[Callable[[_Subject], Iterator[Advice]], ...] = (
    _padding,
    _slowest_link,
    _operators,
    _more_devices,
    _recomputation,
    _micro_batches,
    _gradient_dtype,
    _overlap,
)
