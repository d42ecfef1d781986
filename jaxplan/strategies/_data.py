"""Data parallelism, and what it stores split: ZeRO (arXiv 1910.02054) and FSDP (arXiv 2304.11277)."""

from __future__ import annotations

from jaxplan.ir import Group
from jaxplan.strategies._axes import Axes, all_back, all_front, innermost, node_back
from jaxplan.strategies._sketch import (
    Absent,
    Rule,
    Sketch,
    Step,
    Wishes,
    batch_wishes,
    draw,
    largest_split,
    nothing,
)


def data(step: Step) -> Sketch:
    """Every device takes a part of the batch and holds everything else."""
    return draw(step, _batch(step), nothing)


def zero1(step: Step) -> Sketch | Absent:
    """ZeRO-1: optimizer slots split over all devices, parameters whole. Each device updates its part of a parameter
    with its part of the gradient, which is scattered as it is summed, and the parts are gathered after that: as many
    bytes as data parallelism sends."""
    if not any(group.kind == "parameter" for group in step.graph.grouping.groups):
        return Absent(reason="no parameter has optimizer slots of its shape")
    split, grouping = _stored(step, all_back(step.topology).back), step.graph.grouping

    def is_slot(group: Group) -> bool:
        readers = {c for t in group.inputs for c in step.graph.values.consumers[t]}
        return group.kind == "state" and all(grouping.equation_group[c] == group.index for c in readers)

    return draw(step, _batch(step), lambda group: split(group) if is_slot(group) else {})


def zero2(step: Step) -> Sketch:
    """ZeRO-2: all state and gradients split over all devices; parameters gathered once a step, and kept."""
    return draw(step, _batch(step), _stored(step, all_back(step.topology).back))


def fsdp(step: Step) -> Sketch:
    """ZeRO-3: as ZeRO-2, but parameters are gathered for each pass."""
    return draw(step, _batch(step), _stored(step, all_back(step.topology).back), repeat_gathers=True)


def hybrid_fsdp(step: Step) -> Sketch | Absent:
    """FSDP inside each node, copies across nodes: gradients are scattered inside and added up across."""
    if len(innermost(step.topology)) == len(step.topology.axes):
        return Absent(reason="the topology has one level, where it is fsdp")
    return draw(step, _batch(step), _stored(step, node_back(step.topology).back), repeat_gathers=True)


def _batch(step: Step) -> Rule:
    """All axes to the batch."""
    axes = all_front(step.topology).front
    return lambda group: batch_wishes(step, group.index, axes)


def _stored(step: Step, axes: Axes) -> Rule:
    """Every leaf on the one dimension that the axes split most."""

    def rule(group: Group) -> Wishes:
        return largest_split(step, group, axes)

    return rule
