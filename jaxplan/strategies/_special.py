"""Strategies for one kind of model: one weird trick, expert parallelism, spatial splits, context parallelism."""

from __future__ import annotations

from jaxplan.core import _compat
from jaxplan.ir import WHOLE, Group
from jaxplan.strategies._axes import (
    all_back,
    all_front,
    levels_of,
    node_back,
    num_devices,
    split_axes,
)
from jaxplan.strategies._rules import apply_rules, batch_wishes, nothing
from jaxplan.strategies._step import Absent, Step, StrategyPlan, Wishes
from jaxplan.strategies._tensor import sequence_dims

LEAST_CONVOLUTIONS = 0.5
"""A convolutional network does at least this share of its multiply-adds with parameters in convolutions."""


def one_weird_trick(step: Step) -> StrategyPlan | Absent:
    """The batch split in convolutions, the outputs of dense layers split behind them (Krizhevsky, arXiv 1404.5997)."""
    weights = step.weights
    convolved, dense = weights.flops("convolution"), weights.flops("dot")
    if convolved < LEAST_CONVOLUTIONS * (convolved + dense) or not convolved:
        return Absent(reason="the step is not a convolutional network")
    barred = {d for use in weights.uses if use.kind == "convolution" for d in use.weight}
    outputs = {
        d
        for use in weights.uses
        if use.kind == "dot" and use.forward
        for d in set(use.weight) & set(use.result) - barred - use.reduced
        if d >= 0
    }
    if not outputs:
        return Absent(reason="the step has no dense layer behind its convolutions")
    front, back = all_front(step.topology).front, all_back(step.topology).back
    inputs_of = {d: use.reduced for use in weights.uses if use.forward for d in set(use.weight) & outputs}

    def wishes(group: Group) -> Wishes:
        """Of a dot of two dense layers' outputs, the later layer's dimension."""
        mine = {d: c for c, d in enumerate(step.named(group.index)) if d in outputs}
        last = [c for d, c in mine.items() if not any(d in inputs_of[e] for e in mine if e != d)]
        return dict.fromkeys(last[:1], back) or batch_wishes(step, group.index, front)

    return apply_rules(step, wishes, lambda group: {} if set(step.named(group.index)) & barred else wishes(group))


def experts(step: Step) -> StrategyPlan | Absent:
    """Experts split over the devices, the rest data parallel, tokens exchanged (GShard, arXiv 2006.16668).

    Of ragged dots each device multiplies the rows of its experts, and the results add up. An expert is a matrix: a dot
    that sums nothing scales its input, and one with a parameter without outputs of its own weighs states by channel.
    """
    weights = step.weights
    dims = {
        d
        for use in weights.uses
        if use.kind == "dot" and use.reduced and set(use.weight) - use.reduced - use.batched
        for d in use.batched
        if d >= 0 and not weights.is_batch(d)
    }
    if not dims:
        return Absent(reason=_without_experts(step))
    split = _expert_axes(step, min(map(step.size, dims)))
    if not split.back:
        sizes = ", ".join(str(step.size(d)) for d in sorted(dims))
        return Absent(reason=f"the number of experts ({sizes}) does not divide by devices of a node")
    holding = [set(leaf_dims) for leaf_dims in weights.leaf_dims.values()]
    elsewhere = set().union(*(leaf_dims for leaf_dims in holding if not leaf_dims & dims))
    own = set().union(*(leaf_dims for leaf_dims in holding if leaf_dims & dims)) - elsewhere - dims
    front = all_front(step.topology).front
    holders = tuple(sorted(split.back))  # in the order of the batch, so that one all-to-all sends the tokens
    multiplied = {use.equation for use in weights.uses if use.reduced and dims & use.batched}

    def wishes(group: Group) -> Wishes:
        named = step.named(group.index)
        mine = [c for c, d in enumerate(named) if d in dims]
        inside = multiplied.intersection(group.equations) or (
            group.kind != "contraction" and own & set(named)
        )
        if mine and inside:
            return {mine[0]: holders, **batch_wishes(step, group.index, split.front)}
        return batch_wishes(step, group.index, front)

    def stored(group: Group) -> Wishes:
        named = step.named(group.index)
        mine = [c for c, d in enumerate(named) if d in dims]
        return {c: holders for c in mine[:1] if own & set(named)}

    return apply_rules(step, wishes, stored)


def _without_experts(step: Step) -> str:
    """Why no dimension is one of experts."""
    program = step.graph.program
    ragged = [eqn for eqn in program.equations if eqn.name == "ragged_dot_general"]
    if not ragged:
        return "the step has no experts: no dot with one parameter for each of several inputs"
    line = _compat.eqn_source_line(ragged[0].origin)
    place = f" at {line}" if line else ""
    return f"the groups of {ragged[0].name!r}{place} are no dimension of one parameter with one count of rows each"


def _expert_axes(step: Step, number: int):
    """As many of the innermost axes as divide the number of experts."""
    levels = levels_of(step.topology)
    for n in range(len(step.topology.axes), -1, -1):
        left, taken = n, []
        for axes in reversed(levels):
            taken.append(min(left, len(axes)))
            left -= taken[-1]
        split = split_axes(step.topology, taken[::-1])
        if number % num_devices(step.topology, split.back) == 0:
            return split
    raise AssertionError("no axis at all divides everything")


def spatial(step: Step) -> StrategyPlan | Absent:
    """Rows of images split inside a node, the batch across nodes; convolutions exchange the rows at the edges."""
    rows: set[int] = set()
    for use in step.weights.uses:
        eqn = step.graph.program.equations[use.equation]
        if use.kind != "convolution":
            continue
        numbers = eqn.params["dimension_numbers"]
        for t, places in ((eqn.operands[0], numbers.lhs_spec), (eqn.results[0], numbers.out_spec)):
            if len(places) > 2 and use.forward:
                rows.add(step.graph.named.of.get((t, places[2]), -1))
        if use.forward and not _is_split(step, use.equation, numbers.lhs_spec):
            return Absent(reason="a convolution reads windows that cannot be cut into equal parts")
    rows.discard(-1)
    if not rows:
        return Absent(reason="the step has no convolution over images")
    return _inside(step, frozenset(rows))


def _is_split(step: Step, equation: int, places: tuple[int, ...]) -> bool:
    """Whether the rows of a convolution are a class of its group."""
    rule = step.graph.rules[equation]
    factors = rule.operands[0][places[2]] if len(places) > 2 else ()
    group = step.graph.grouping.equation_group[equation]
    return bool(factors) and step.graph.spaces[group].factor_class[equation][factors[0]] != WHOLE


def context(step: Step) -> StrategyPlan | Absent:
    """The sequence split inside a node, the batch across; attention gathers keys and values (arXiv 2407.21783)."""
    sequences = sequence_dims(step)
    if not sequences:
        return Absent(reason="the step has no attention over a sequence")
    return _inside(step, sequences)


def _inside(step: Step, dims: frozenset[int]) -> StrategyPlan | Absent:
    """One of ``dims`` in every group on the axes inside a node (queries in attention); the batch on the others."""
    split = node_back(step.topology)
    parts = num_devices(step.topology, split.back)
    if all(step.size(d) % parts for d in dims):
        sizes = ", ".join(f"{step.name(d)} ({step.size(d)})" for d in sorted(dims))
        return Absent(reason=f"{sizes} does not divide by the {parts} devices of a node")
    compared = _compared(step, dims)

    def wishes(group: Group) -> Wishes:
        named = step.named(group.index)
        mine = [c for c, d in enumerate(named) if d in dims and c not in compared.get(group.index, ())]
        return {**dict.fromkeys(mine[:1], split.back), **batch_wishes(step, group.index, split.front)}

    return apply_rules(step, wishes, nothing)


def _compared(step: Step, dims: frozenset[int]) -> dict[int, set[int]]:
    """Per group that holds a sequence twice, its classes of keys: the softmax takes its maximum over them."""
    graph = step.graph
    keys: set[tuple[int, int]] = set()
    for eqn in graph.program.equations:
        group = graph.grouping.equation_group[eqn.index]
        if eqn.name != "reduce_max" or group < 0:
            continue
        classes = graph.spaces[group].factor_class[eqn.index]
        reduced = {
            classes[f] for f, factor in enumerate(graph.rules[eqn.index].factors) if factor.kind == "reduce"
        }
        for t, t_dims in graph.spaces[group].tensor_dims.items():
            keys |= {(t, d) for d, held in enumerate(t_dims) if set(held) & reduced - {WHOLE}}
    found: dict[int, set[int]] = {}
    for group in graph.grouping.groups:
        named = step.named(group.index)
        twice = {c for c, d in enumerate(named) if d in dims and named.count(d) > 1}
        for t, t_dims in graph.spaces[group.index].tensor_dims.items():
            for d, held in enumerate(t_dims):
                if (t, d) in keys and twice & set(held):
                    found.setdefault(group.index, set()).update(twice & set(held))
    return found
