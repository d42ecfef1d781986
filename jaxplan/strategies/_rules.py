"""Strategies from rules over named dimensions: a configuration for every group."""

from __future__ import annotations

from jaxplan.cost import sharding_of
from jaxplan.ir import STORED_KINDS, UNGROUPED, Configuration, Group, is_stack
from jaxplan.strategies._as_stored import (
    compute_as_stored,
    gather_in_trips,
    measure_as_stored,
    scatter_in_trips,
)
from jaxplan.strategies._axes import Axes, dividing, num_devices
from jaxplan.strategies._step import Rule, Step, StrategyPlan, Wishes, configuration


def apply_rules(
    step: Step, compute: Rule, state: Rule, *, repeat_gathers: bool = False, is_given: bool = False
) -> StrategyPlan:
    """Configure every group: stored arrays by the rule ``state``, all other groups by ``compute``.

    State that examples have each for themselves (a cache of keys and values, environments) is computed with like other
    values of the examples, unless the shardings of all arguments are given.

    The summands of a sum group stay partial sums over every axis over which all of them are partial: they are added
    first and reduced once.
    """
    configurations: list[Configuration] = []
    for group in step.graph.grouping.groups:
        is_stored = group.kind in STORED_KINDS and (is_given or not _is_of_examples(step, group))
        wishes = (state if is_stored else compute)(group)
        configurations.append(configuration(step, group.index, wishes))
    gather_in_trips(step, configurations, repeat_gathers)
    scatter_in_trips(step, configurations)
    measure_as_stored(step, configurations)
    compute_as_stored(step, configurations)
    _add_first(step, configurations)
    return StrategyPlan(configurations=tuple(configurations), repeat_gathers=repeat_gathers)


def _is_of_examples(step: Step, group: Group) -> bool:
    """Whether a group is state with the dimension of the examples."""
    return group.kind == "state" and any(d in step.graph.named.batch for d in step.named(group.index))


def _add_first(step: Step, configurations: list[Configuration]) -> None:
    """Leave summands partial where all summands of a sum group are; a summand may be a sum group itself."""
    wished = list(configurations)
    sums = [group for group in step.graph.grouping.groups if step.graph.spaces[group.index].operand_partial]
    for _ in sums:
        before = list(configurations)
        for group in sums:
            configurations[group.index] = _summing(step, group, wished[group.index], configurations)
        if configurations == before:
            return


def _summing(
    step: Step, group: Group, wished: Configuration, configurations: list[Configuration]
) -> Configuration:
    """The configuration of a sum group: axes over which all its summands are partial stay partial."""
    partial: set[int] | None = None
    for e in group.equations:
        for t in step.graph.program.equations[e].operands:
            home = step.graph.grouping.tensor_group[t]
            if home in (group.index, UNGROUPED) or step.graph.values.free[t]:
                continue
            found = set(sharding_of(step.graph, configurations, home, t, produced=True).partial)
            partial = found if partial is None else partial & found
    kept = partial or set()
    (last,) = step.graph.spaces[group.index].operand_partial
    config = [tuple(a for a in axes if a not in kept) for axes in wished]
    config[last] = tuple(sorted(kept, key=lambda a: (step.topology.axes[a].level, -a)))
    return tuple(config)


def batch_wishes(step: Step, v: int, axes: Axes) -> dict[int, Axes]:
    """Wishes that put the batch of a group on ``axes``.

    A group may hold the batch in several classes, of tensors that no operator ties (around a flattening, for example);
    each of them is split. Where one tensor holds several batches, the most important one is split.
    """
    batch = step.graph.named.batch
    classes = [c for c, dimension in enumerate(step.named(v)) if dimension in batch]
    return dict.fromkeys(sorted(classes, key=lambda c: batch.index(step.named(v)[c])), axes)


def largest_split(step: Step, group: Group, axes: Axes) -> Wishes:
    """A wish for the one class of a group that ``axes`` split into most parts; ties to the larger dimension.

    The layers of a stack are excluded: a loop over a split stack would send each layer from device to device.
    """
    best, wish = (1, 0), {}
    space, graph = step.graph.spaces[group.index], step.graph
    stacks = [t for t in group.inputs if is_stack(graph.program, graph.values, t)]
    layers = {c for t in stacks for c in space.tensor_dims[t][0]}
    for c, cls in enumerate(space.classes):
        if c in layers:
            continue
        parts = num_devices(step.topology, dividing(cls, axes, step.topology))
        key = (parts, min(cls.sizes, default=0))
        if parts > 1 and key > best:
            best, wish = key, {c: axes}
    return wish


def nothing(group: Group) -> Wishes:
    """No wishes: whole on every device."""
    return {}
