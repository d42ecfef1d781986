"""Tensor parallelism as Megatron writes it (arXiv 1909.08053, with sequence parallelism arXiv 2205.05198).

Dots come in pairs: the first is split by columns, the second by rows. The value between them stays split, and one
sum per pair and pass remains. By named dimensions: the parameters' dimensions (heads, hidden, vocabulary) form two
sets such that no parameter has two dimensions of one set; the set with the smaller sums is split.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from jaxplan.ir import Group
from jaxplan.strategies._axes import AxisSplit, innermost, levels_of, num_devices, split_axes
from jaxplan.strategies._rules import apply_rules, batch_wishes
from jaxplan.strategies._step import Absent, Step, StrategyPlan, Wishes
from jaxplan.strategies._weights import Weights

LEAST_SHARE = 0.5
"""Tensor parallelism applies where it splits at least this share of the parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDims:
    """The dimensions that tensor parallelism splits.

    Attributes:
      paired: named dimensions in two or more parameters (heads, hidden): all must be divisible.
      single: those in one parameter (vocabulary): split where divisible.
    """

    paired: frozenset[int]
    single: frozenset[int]

    @property
    def all(self) -> frozenset[int]:
        return self.paired | self.single


def tensor_dims(step: Step) -> TensorDims | Absent:
    """The dimensions of parameters to split, or why there are none."""
    return step.once("tensor", lambda: _tensor_dims(step))


def _tensor_dims(step: Step) -> TensorDims | Absent:
    weights = step.weights
    if not weights.elements:
        return Absent(reason="no dot, convolution or look-up reads a parameter")
    chosen = _independent(weights, _candidates(weights))
    leaves = {leaf: dims for leaf, dims in weights.leaf_dims.items() if chosen & dims.keys()}
    share = sum(weights.elements[leaf] for leaf in leaves) / max(1, sum(weights.elements.values()))
    if share < LEAST_SHARE:
        return Absent(reason="less than half of the parameters are in dense layers that come in pairs")
    counts = Counter(d for dims in leaves.values() for d in chosen & dims.keys())
    return TensorDims(
        paired=frozenset(d for d in chosen if counts[d] > 1),
        single=frozenset(d for d in chosen if counts[d] == 1),
    )


def _candidates(weights: Weights) -> frozenset[int]:
    """Dimensions of dense parameters outside convolutions that no dot of two activations sums over."""
    found: set[int] = set()
    barred = set(weights.summed_without)
    for use in weights.uses:
        if use.kind == "convolution":
            barred |= set(use.weight)
        elif use.kind == "dot" or any(
            map(weights.is_batch, use.data)
        ):  # not rows that all look up: positions
            found |= set(use.weight)
        else:
            barred |= set(use.weight[:1])
    for dims in weights.leaf_dims.values():
        barred |= {d for d, count in dims.items() if count > 1}
    return frozenset(d for d in found - barred if d >= 0 and not weights.is_batch(d))


def _independent(weights: Weights, candidates: frozenset[int]) -> frozenset[int]:
    """Per connected part of the graph of dimensions that share a parameter, the side with the smaller sums."""
    neighbours: dict[int, set[int]] = {d: set() for d in sorted(candidates)}
    for dims in weights.leaf_dims.values():
        shared = candidates & dims.keys()
        for d in shared:
            neighbours[d] |= shared - {d}
    cost: dict[int, int] = defaultdict(int)
    for use in weights.uses:
        for d in use.reduced & candidates:
            cost[d] += use.result_bytes
    holders = Counter(d for dims in weights.leaf_dims.values() for d in dims)
    order = {d: (holders[d] < 2, cost[d], d) for d in neighbours}
    chosen: set[int] = set()
    seen: set[int] = set()
    for start in neighbours:
        if start not in seen:
            sides = _sides(neighbours, start)
            seen |= sides[0] | sides[1]
            chosen |= _better(sides, neighbours, order)
    return frozenset(chosen)


def _sides(neighbours: dict[int, set[int]], start: int) -> tuple[set[int], set[int]]:
    """Dimensions at even and at odd distance from ``start``."""
    sides: tuple[set[int], set[int]] = ({start}, set())
    frontier, turn = {start}, 0
    while frontier:
        frontier = {n for d in frontier for n in neighbours[d]} - sides[0] - sides[1]
        turn = 1 - turn
        sides[turn].update(frontier)
    return sides


def _better(
    sides: Iterable[set[int]], neighbours: dict[int, set[int]], order: dict[int, tuple[bool, int, int]]
) -> set[int]:
    """The side with the smaller sums; of an odd cycle an independent set: dimensions of several parameters first (not
    the three of a kernel that holds queries, keys and values), and of these the smallest sums.

    Args:
      order: of each dimension whether one parameter alone has it, the bytes of sums over it, and its index.
    """
    best: set[int] = set()
    best_key: tuple[int, int] | None = None
    for side in sides:
        taken: set[int] = set()
        for d in sorted(side, key=order.__getitem__):
            if not neighbours[d] & taken:
                taken.add(d)
        untouched = sum(
            1 for d in neighbours if d in set().union(*sides) and not ({d} | neighbours[d]) & taken
        )
        key = (untouched, sum(order[d][1] for d in taken))
        if taken and (best_key is None or key < best_key):
            best, best_key = taken, key
    return best


def sequence_dims(step: Step) -> frozenset[int]:
    """Named dimensions that occur twice in a dot of two activations: the sequences that attention compares.

    Batches are excluded: a contrastive loss compares examples with each other in the same way.
    """
    return frozenset(d for d in step.weights.compared if not step.weights.is_batch(d))


def megatron(step: Step) -> StrategyPlan | Absent:
    """Tensors split inside a node, as far as heads and hidden divide, and the batch over the rest."""
    split = _megatron_axes(step)
    return split if isinstance(split, Absent) else tensor_parallel(step, split)


def megatron_sequence(step: Step) -> StrategyPlan | Absent:
    """Megatron with activations between the pairs split by the sequence."""
    split = _megatron_axes(step)
    if isinstance(split, Absent):
        return split
    sequences = sequence_dims(step)
    if not sequences:
        return Absent(reason="the step has no attention over a sequence")
    parts = num_devices(step.topology, split.back)
    if all(step.size(d) % parts for d in sequences):
        sizes = ", ".join(str(step.size(d)) for d in sorted(sequences))
        return Absent(reason=f"the sequence ({sizes}) does not divide by the {parts} devices of a tensor")
    return tensor_parallel(step, split, sequences)


def _megatron_axes(step: Step) -> AxisSplit | Absent:
    """As many axes of the node as all paired dimensions divide by."""
    found = tensor_dims(step)
    if isinstance(found, Absent):
        return found
    inside = set(innermost(step.topology))
    levels = levels_of(step.topology)
    for n in range(len(inside), 0, -1):
        left, taken = n, []
        for axes in reversed(levels):
            taken.append(min(left, len(axes)) if inside.issuperset(axes) else 0)
            left -= taken[-1]
        split = split_axes(step.topology, taken[::-1])
        if not _undivided(step, found, num_devices(step.topology, split.back)):
            return split
    return Absent(reason=_undivided(step, found, step.topology.axes[-1].size))


def _undivided(step: Step, found: TensorDims, parts: int) -> str:
    """The dimensions that the devices of a tensor group do not divide, as text; empty if they divide all."""
    sizes = {step.name(d): step.size(d) for d in sorted(found.paired or found.single) if step.size(d) % parts}
    if not sizes:
        return ""
    named = ", ".join(f"{name} ({size})" for name, size in sizes.items())
    return f"{named} does not divide by the {parts} devices of a tensor"


def grid(step: Step, split: AxisSplit) -> StrategyPlan | Absent:
    """Data times tensor parallelism on one grid of devices."""
    found = tensor_dims(step)
    if isinstance(found, Absent):
        return found
    problem = _undivided(step, found, num_devices(step.topology, split.back))
    return Absent(reason=problem) if problem else tensor_parallel(step, split)


def tensor_parallel(step: Step, split: AxisSplit, sequences: frozenset[int] = frozenset()) -> StrategyPlan | Absent:
    """The batch on the front axes; on the others tensor dimensions, and ``sequences`` where there is none of them."""
    found = tensor_dims(step)
    if isinstance(found, Absent):
        return found

    dims = found.all

    def wishes(group: Group, others: frozenset[int]) -> Wishes:
        named = step.named(group.index)
        back = [c for c, d in enumerate(named) if d in dims]
        if not back and not any(named.count(d) > 1 for d in others):
            back = [c for c, d in enumerate(named) if d in others]
        return {**batch_wishes(step, group.index, split.front), **dict.fromkeys(back[:1], split.back)}

    return apply_rules(
        step, lambda group: wishes(group, sequences), lambda group: _only_tensor(step, group, dims, split)
    )


def _only_tensor(step: Step, group: Group, dims: frozenset[int], split: AxisSplit) -> Wishes:
    classes = [c for c, d in enumerate(step.named(group.index)) if d in dims]
    return dict.fromkeys(classes[:1], split.back)
