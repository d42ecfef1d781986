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


def zero1(step: Step) -> Absent:
    """ZeRO-1 splits optimizer slots alone, and here a parameter lies where its slots do."""
    return Absent(
        reason="a parameter and its optimizer slots have one layout; zero2 sends the same bytes and holds no more"
    )


def zero2(step: Step) -> Sketch:
    """ZeRO-2: state and gradients split over all devices; parameters gathered once a step, and kept."""
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
