"""Pipelines of priced stages as plans: seconds, bytes, and where every argument lives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxplan.cost import Prediction
from jaxplan.ir import StepGraph
from jaxplan.ir.stages import Cut, Part, Port
from jaxplan.mesh import Sharding, Topology, collective_seconds
from jaxplan.partition.stages import port_bytes
from jaxplan.plans._outline import Outline
from jaxplan.plans._stage_data import SCHEDULES, Stage, simulated
from jaxplan.plans._staged_plan import StagedPlan
from jaxplan.plans._summary import input_dims, input_roles
from jaxplan.plans._undominated import undominated
from jaxplan.search.stages._priced_stage import StagePoint

_IN_FLIGHT = "activations of micro-batches in flight"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """A cut of a step and the devices of its stages.

    Attributes:
      graph: the step as it was traced.
      topology: the whole machine; ``topologies``: of each stage, ``first_devices`` where each begins.
    """

    graph: StepGraph
    cut: Cut
    parts: tuple[Part, ...]
    topology: Topology
    topologies: tuple[Topology, ...]
    first_devices: tuple[int, ...]

    @property
    def num_micro_batches(self) -> int:
        return self.cut.step.microbatches.num

    def in_flight(self, stage: int, schedule: str) -> int:
        """Most micro-batches between the two passes of a stage."""
        if schedule == "gpipe":
            return self.num_micro_batches
        return min(len(self.parts) - stage, self.num_micro_batches)

    def link_axes(self, stage: int) -> tuple[int, ...]:
        """The outermost axis of the machine that differs between the devices of a stage and the next one."""
        return outermost_difference(self.topology, self.first_devices[stage], self.first_devices[stage + 1])


def outermost_difference(topology: Topology, one: int, other: int) -> tuple[int, ...]:
    """The slowest axis along which two devices differ."""
    below = topology.num_devices
    for k, axis in enumerate(topology.axes):
        below //= axis.size
        if one // below % axis.size != other // below % axis.size:
            return (k,)
    return ()


def pipelines(layout: Layout, points: Sequence[Sequence[StagePoint]]) -> list[StagedPlan]:
    """The plans of a layout that no other beats; of each stage the fastest plan that fits ever larger memories."""
    found = []
    if not all(points):
        return found
    for schedule in SCHEDULES:
        counts = [layout.in_flight(s, schedule) for s in range(len(points))]
        limits = sorted({p.memory_bytes(n) for of, n in zip(points, counts, strict=True) for p in of})
        for limit in limits:
            fitting = [
                [p for p in of if p.memory_bytes(n) <= limit] for of, n in zip(points, counts, strict=True)
            ]
            if all(fitting):
                chosen = [min(of, key=lambda p: p.slice_seconds) for of in fitting]
                found.append(staged_plan(layout, chosen, schedule))
    return undominated(found)


def staged_plan(layout: Layout, chosen: Sequence[StagePoint], schedule: str) -> StagedPlan:
    """The plan of one choice for each stage."""
    stages = tuple(_stage(layout, chosen, s, schedule) for s in range(len(chosen)))
    run = simulated(stages, schedule, layout.num_micro_batches)
    around = max(p.once for p in chosen) + max(p.update for p in chosen) + _copy_seconds(layout, chosen)
    program = layout.graph.program
    input_shardings = tuple(_in_layout(layout, stages, i) for i in range(len(program.inputs)))
    return StagedPlan(
        name="plan",
        topology=layout.topology,
        fingerprint=program.fingerprint,
        configurations=(),
        repeated=(),
        donate_argnums=program.donate_argnums,
        in_paths=program.in_paths,
        in_avals=program.in_avals,
        in_roles=input_roles(layout.graph),
        in_dims=input_dims(layout.graph),
        argument_names=layout.graph.program.argument_names,
        out_paths=program.out_paths,
        input_shardings=input_shardings,
        output_shardings=tuple(_out_layout(layout, stages, input_shardings, o) for o in range(len(program.outputs))),
        prediction=_prediction(layout, chosen, stages, run.seconds + around),
        lower_bound_seconds=0.0,
        outline=_outline(stages),
        microbatches=layout.cut.step.microbatches,
        graph=layout.graph,
        stages=stages,
        schedule=schedule,
        in_stages=tuple(layout.cut.owner[i] for i in range(len(program.inputs))),
        bubble=run.bubble,
        cut=layout.cut,
        parts=layout.parts,
    )


def _stage(layout: Layout, chosen: Sequence[StagePoint], s: int, schedule: str) -> Stage:
    point = chosen[s]
    return Stage(
        first_device=layout.first_devices[s],
        start=layout.cut.starts[s],
        plan=point.plan,
        once_seconds=point.once,
        forward_seconds=point.forward,
        backward_seconds=point.backward,
        update_seconds=point.update,
        send_seconds=_send_seconds(layout, chosen, s),
        held_bytes=point.kept_bytes,
        received_bytes=point.received_bytes,
        in_flight=layout.in_flight(s, schedule),
    )


def _send_seconds(layout: Layout, chosen: Sequence[StagePoint], s: int) -> float:
    """Of one micro-batch over the link behind a stage, the larger of both directions."""
    if s + 1 == len(chosen):
        return 0.0
    forward = backward = 0
    for reader, part in enumerate(layout.parts):
        for port in part.inputs:
            if port.kind != "value":
                continue
            maker, num_bytes = layout.cut.home(port.number), port_bytes(chosen[reader].plan, part, port)
            forward += num_bytes if maker <= s < reader else 0
            backward += num_bytes if reader <= s < maker else 0
    axes = layout.link_axes(s)
    return collective_seconds(layout.topology, "collective-permute", max(forward, backward), axes)


def _copy_seconds(layout: Layout, chosen: Sequence[StagePoint]) -> float:
    """Of values that cross between stages once a step: parameters that several read, sums, and scalars."""
    total = 0.0
    for reader, part in enumerate(layout.parts):
        for port in part.inputs:
            maker = layout.cut.owner[port.number] if port.kind == "input" else layout.cut.home(port.number)
            if port.kind not in ("input", "late") or maker == reader:
                continue
            size = port_bytes(chosen[reader].plan, part, port)
            axes = outermost_difference(
                layout.topology, layout.first_devices[maker], layout.first_devices[reader]
            )
            total += collective_seconds(layout.topology, "collective-permute", size, axes)
    return total


def _prediction(
    layout: Layout, chosen: Sequence[StagePoint], stages: Sequence[Stage], seconds: float
) -> Prediction:
    fullest = max(range(len(stages)), key=lambda s: stages[s].memory_bytes)
    slowest = max(chosen, key=lambda p: p.slice_seconds)
    sends = 2 * sum(stage.send_seconds for stage in stages)
    communication = min(seconds, layout.num_micro_batches * slowest.communication + sends)
    of = chosen[fullest].plan.prediction
    more = stages[fullest].memory_bytes - of.memory_bytes
    return Prediction(
        compute_seconds=seconds - communication,
        communication_seconds=communication,
        flops=layout.num_micro_batches * max(p.plan.prediction.flops for p in chosen),
        memory_bytes=stages[fullest].memory_bytes,
        memory_parts={**of.memory_parts, _IN_FLIGHT: more},
        collectives=(),
    )


def _outline(stages: Sequence[Stage]) -> Outline:
    """That of the stage with most arithmetic."""
    return max(stages, key=lambda stage: stage.plan.prediction.flops).plan.outline


def _on_the_whole(sharding: Sharding, part: Topology, whole: Topology) -> Sharding:
    """A sharding over the axes of a part as one over those of the machine: the part's devices follow each other."""
    axes = {a: len(whole.axes) - len(part.axes) + a for a in range(len(part.axes))}
    if any(part.axes[a].size != whole.axes[b].size for a, b in axes.items()):
        return Sharding.replicated(len(sharding.dims))
    return Sharding(tuple(tuple(axes[a] for a in dim) for dim in sharding.dims))


def _in_layout(layout: Layout, stages: Sequence[Stage], i: int) -> Sharding:
    stage = layout.cut.owner[i]
    part, plan = layout.parts[stage], stages[stage].plan
    for kind in ("input", "slice"):
        if (port := Port(kind, i)) in part.inputs:
            sharding = plan.input_shardings[part.inputs.index(port)]
            return _on_the_whole(sharding, plan.topology, layout.topology)
    program = layout.graph.program
    return Sharding.replicated(len(program.tensors[program.inputs[i]].shape))


def _out_layout(layout: Layout, stages: Sequence[Stage], input_shardings: Sequence[Sharding], o: int) -> Sharding:
    program = layout.graph.program
    if o in program.aliases:
        return input_shardings[program.aliases[o]]
    for part, stage in zip(layout.parts, stages, strict=True):
        if (port := Port("result", o)) in part.outputs:
            sharding = stage.plan.output_shardings[part.outputs.index(port)]
            return _on_the_whole(sharding, stage.plan.topology, layout.topology)
    return Sharding.replicated(len(program.tensors[program.outputs[o]].shape))
