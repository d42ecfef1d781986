"""Data parallelism, and its forms with sharded state: ZeRO (arXiv 1910.02054) and FSDP (arXiv 2304.11277)."""

from __future__ import annotations

from jaxplan.ir import STORED_KINDS, Group
from jaxplan.strategies._axes import Axes, all_back, all_front, innermost, node_back
from jaxplan.strategies._rules import apply_rules, batch_wishes, largest_split, nothing
from jaxplan.strategies._step import Absent, Rule, Step, StrategyPlan, Wishes


def data(step: Step) -> StrategyPlan | Absent:
    """Every device takes a part of the batch and holds a copy of parameters and state."""
    return _batch_split(step, nothing)


def zero1(step: Step) -> StrategyPlan | Absent:
    """ZeRO-1: optimizer slots split over all devices, parameters whole. Each device updates its part of a parameter
    with its part of the gradient, which is scattered as it is summed, and the parts are gathered after that: as many
    bytes as data parallelism sends."""
    parameters = [group for group in step.graph.grouping.groups if group.kind == "parameter"]
    if all(step.graph.state.isdisjoint(group.inputs) for group in parameters):
        return Absent(reason="no parameter has optimizer slots of its shape")
    split, grouping = _stored(step, all_back(step.topology).back), step.graph.grouping

    def is_slot(group: Group) -> bool:
        readers = {c for t in group.inputs for c in step.graph.values.consumers[t]}
        return group.kind == "state" and all(grouping.equation_group[c] == group.index for c in readers)

    return _batch_split(step, lambda group: split(group) if is_slot(group) else {})


def zero2(step: Step) -> StrategyPlan | Absent:
    """ZeRO-2: all state and gradients split over all devices; parameters gathered once a step, and kept."""
    return _batch_split(step, _stored(step, all_back(step.topology).back))


def fsdp(step: Step) -> StrategyPlan | Absent:
    """ZeRO-3: as ZeRO-2, but parameters are gathered for each pass, and of a stack of layers one layer in each trip."""
    return _batch_split(step, _stored(step, all_back(step.topology).back), repeat_gathers=True)


def hybrid_fsdp(step: Step) -> StrategyPlan | Absent:
    """FSDP inside each node, copies across nodes: gradients are scattered inside and added up across."""
    if len(innermost(step.topology)) == len(step.topology.axes):
        return Absent(reason="the topology has one level, where it is fsdp")
    return _batch_split(step, _stored(step, node_back(step.topology).back), repeat_gathers=True)


def _batch_split(step: Step, state: Rule, *, repeat_gathers: bool = False) -> StrategyPlan | Absent:
    """The batch on all axes, stored arrays by a rule; absent where no device would compute less for it."""
    axes, graph = all_front(step.topology).front, step.graph
    if axes and not graph.named.batch:
        return Absent(reason=graph.batch.reason)

    def compute(group: Group) -> Wishes:
        return batch_wishes(step, group.index, axes)

    strategy_plan = apply_rules(step, compute, state, repeat_gathers=repeat_gathers)
    if axes and not _splits_batch(step, strategy_plan):
        return Absent(reason=_why_not_split(step))
    return strategy_plan


def _why_not_split(step: Step) -> str:
    """Why splitting the batch spares no device a part of the arithmetic."""
    batch = [step.size(k) for k in step.graph.named.batch]
    sizes = ", ".join(map(str, batch))
    if any(size % axis.size == 0 for size in batch for axis in step.topology.axes):
        return f"no dot of the step can be split over the batch ({sizes}): every device would compute all of them"
    return f"the batch ({sizes}) does not divide by any of the {step.topology.num_devices} devices"


def _splits_batch(step: Step, strategy_plan: StrategyPlan) -> bool:
    """Whether the batch splits dots; in a step without dots, whether it splits any operator."""
    kinds = {group.kind for group in step.graph.grouping.groups}
    computing = "contraction" if "contraction" in kinds else None
    return any(
        axes and dimension in step.graph.named.batch
        for group, config in zip(step.graph.grouping.groups, strategy_plan.configurations, strict=True)
        if group.kind == computing or (computing is None and group.kind not in STORED_KINDS)
        for dimension, axes in zip(step.named(group.index), config, strict=True)
    )


def _stored(step: Step, axes: Axes) -> Rule:
    """Every leaf split in one dimension: the one that the axes split into most parts."""

    def rule(group: Group) -> Wishes:
        return largest_split(step, group, axes)

    return rule
