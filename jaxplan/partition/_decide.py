"""Decide how a plan is lowered: the one place that analyses a plan for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxplan.cost import build_cost_model, plan_transfers
from jaxplan.cost._plan_shardings import PlanShardings
from jaxplan.ir import CUT, UNGROUPED, WHOLE, Configuration, Equation, StepGraph
from jaxplan.mesh import Sharding, Topology
from jaxplan.partition._gather_guards import find_gather_guards, is_written_look_up
from jaxplan.partition._gradient_barriers import find_barriers, find_recompute_barriers
from jaxplan.partition._gradients import Gradients, find_gradients
from jaxplan.partition._local import runs_on_pieces
from jaxplan.partition._lowering import Deferred, Lowering, Resharding, Schedule
from jaxplan.partition._merge_guards import find_merge_guards, find_padded, find_written_slices
from jaxplan.partition._micro_batches import num_parts
from jaxplan.partition._orders import find_orders
from jaxplan.partition._resident import Resident
from jaxplan.partition._sliced_reads import find_sliced_reads
from jaxplan.partition._trip_barriers import find_trip_barriers
from jaxplan.partition._unpooling import find_unpoolings
from jaxplan.xla import is_gradient, takes_every_other

_PINNED_FAMILIES = frozenset(
    {"contraction", "convolution", "gather", "scatter", "reduction", "region", "unknown", "window"}
)


def decide_lowering(
    graph: StepGraph, topology: Topology, configurations: Sequence[Configuration], repeated: Sequence[int]
) -> Lowering:
    """The lowering decisions of a plan.

    Args:
      configurations: one for each group of the step.
      repeated: indices of the reads with a copy that is gathered again in the backward pass.
    """
    model = build_cost_model(graph, topology, configurations=[(config,) for config in configurations])
    transfers = plan_transfers(graph, topology, model.reads, configurations, frozenset(repeated), model.buffers)
    shardings = PlanShardings(graph, topology, configurations, transfers)
    resident = Resident(shardings, model)
    gradients, sliced = find_gradients(shardings, model.reads), find_sliced_reads(shardings)
    guards = find_gather_guards(shardings, resident)
    crossing = {read.tensor for read in model.reads} - sliced.tensors | sliced.whole
    equations = graph.program.equations
    return Lowering(
        **_shardings(shardings, crossing),
        reshardings=tuple(Resharding.of(t, _dtype(graph, t.tensor, t.carried)) for t in transfers),
        schedule=_schedule(resident, gradients),
        **_of_gradients(gradients),
        regather_anchors=_regather_anchors(shardings),
        gather_guards=guards,
        merge_guards=find_merge_guards(resident, {guard.equation for guard in guards}),
        written=find_written_slices(resident) | {e.index for e in equations if is_written_look_up(shardings, e)},
        written_copies=sliced.copies,
        unpoolings=find_unpoolings(resident),
        relaid=frozenset(e.index for e in equations if _is_relaid(shardings, e)),
        padded=find_padded(resident),
    )


def _dtype(graph: StepGraph, t: int, carried: int) -> str | None:
    return None if t == carried else str(graph.program.tensors[carried].dtype)


def _of_gradients(gradients: Gradients) -> dict[str, Any]:
    return {
        "reduced_at_once": gradients.reduced_at_once,
        "stored_gradients": gradients.stored,
        "sums": gradients.sums,
        "summands": gradients.summands,
        "table_gradients": gradients.tables,
    }


def _schedule(resident: Resident, gradients: Gradients) -> Schedule:
    deferred = resident.buffers.deferred
    return Schedule(
        orders=find_orders(resident),
        barriers=find_barriers(resident, gradients),
        trip_barriers=find_trip_barriers(resident),
        recompute_barriers=find_recompute_barriers(resident, gradients),
        deferred=tuple(Deferred(equation=e, after=when.after, by=when.by) for e, when in sorted(deferred.items())),
    )


def _shardings(shardings: PlanShardings, crossing: set[int]) -> dict[str, Any]:
    """Homes, reads, pinned results, islands and parts of the batch."""
    graph = shardings.graph
    grouped = [e for e in graph.program.equations if graph.grouping.equation_group[e.index] != UNGROUPED]
    groups = enumerate(graph.grouping.tensor_group)
    splits = {e.index: split for e in grouped if (split := _split(shardings, e))}
    return {
        "homes": tuple(None if group == UNGROUPED else shardings.home(t) for t, group in groups),
        "reads": {e.index: tuple(shardings.required(e, t) for t in e.operands) for e in grouped},
        "pinned": frozenset(t for e in grouped for t in e.results if _is_pinned(shardings, e, t, crossing)),
        "islands": {e: split for e, split in splits.items() if runs_on_pieces(graph.rules[e], split)},
        "micro_batch_parts": _micro_batch_parts(shardings),
    }


def _is_pinned(shardings: PlanShardings, eqn: Equation, t: int, crossing: set[int]) -> bool:
    """Whether a result is constrained to its sharding; propagation settles the others."""
    graph = shardings.graph
    if not graph.program.tensors[t].shape:
        return False
    if eqn.name == "pad" and any(min(config) < 0 for config in eqn.params["padding_config"]):
        return True  # the compiler fails where it splits a dimension that is cut
    return graph.rules[eqn.index].family in _PINNED_FAMILIES or t in crossing


def _split(shardings: PlanShardings, eqn: Equation) -> dict[int, tuple[int, ...]]:
    """Factors that the configuration of an equation's group splits, with the atomic axes."""
    group = shardings.graph.grouping.equation_group[eqn.index]
    config, classes = shardings.configurations[group], shardings.graph.spaces[group].factor_class[eqn.index]
    return {f: config[c] for f, c in enumerate(classes) if c != WHOLE and config[c]}


def _micro_batch_parts(shardings: PlanShardings) -> int:
    graph, axes = shardings.graph, shardings.topology.axes
    levels = {e.results[0]: e.params["levels"] for e in graph.program.equations if e.name == CUT}
    homes: dict[int, Sharding] = {
        t: shardings.home(t) for t in levels if graph.grouping.tensor_group[t] != UNGROUPED
    }
    return num_parts(graph.program, {t: home.num_splits(axes)[levels[t]] for t, home in homes.items()})


def _regather_anchors(shardings: PlanShardings) -> frozenset[int]:
    """Dots, weight gradients excluded, that a repeated gather may wait for, on chips that fuse operators into dots."""
    graph = shardings.graph
    if not (shardings.target.fuses_operands and shardings.repeated):
        return frozenset()
    dots = (e for e in graph.program.equations if graph.rules[e.index].family in ("contraction", "convolution"))
    return frozenset(e.index for e in dots if not is_gradient(graph, e.results[0]))


def _is_relaid(shardings: PlanShardings, eqn: Equation) -> bool:
    """Whether an associative scan takes every second element of a result, on chips that store matrices in tiles."""
    graph = shardings.graph
    if not shardings.target.tiles_arrays or graph.rules[eqn.index].family != "elementwise" or len(eqn.results) != 1:
        return False
    (t,) = eqn.results
    readers = (graph.program.equations[e] for e in graph.values.consumers[t])
    return len(graph.program.tensors[t].shape) > 2 and any(map(takes_every_other, readers))
