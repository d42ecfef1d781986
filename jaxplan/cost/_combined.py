"""Collectives that the compiler combines with others of their kind: the share of a latency that each of them pays."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from jaxplan.cost._flows import Flow
from jaxplan.ir import CONTRACTION_FAMILIES, UNGROUPED, StepGraph

COMBINED_TOGETHER_BYTES = 2**20
"""Small tensors, up to this size, travel together up to this size: the least that `jaxplan.partition` lets the compiler
combine."""


def latency_shares(
    graph: StepGraph, flows: Sequence[Flow], is_splittable: Callable[[int], bool]
) -> dict[int, float]:
    """Per tensor whose collectives are combined the share of a latency that it pays: its part of those that are left.

    Combined are what is ready together and waits for each other, in GPU programs: small parameters that are gathered,
    their gradients, and the statistics that a group takes between two products (a mean and a mean of squares). Of a
    ResNet-50 under ZeRO-2 on 8 H100, 46 gathers are compiled to 4 and 262 all-reduces to 105. Scalars, and gradients of
    state that is not split, pay nothing here; a prediction adds one latency for each kind and group of them.
    """
    program, groups, rules = graph.program, graph.grouping.groups, graph.rules
    products = [e.index for e in program.equations if rules[e.index].family in CONTRACTION_FAMILIES]
    shares: dict[int, float] = {}
    together: dict[Hashable, dict[int, int]] = defaultdict(dict)
    for flow in flows:
        tensor, made = program.tensors[flow.tensor], graph.values.producer[flow.tensor]
        is_small = 0 < tensor.num_bytes <= COMBINED_TOGETHER_BYTES and tensor.trips == 1
        is_parameter = flow.producer != UNGROUPED and groups[flow.producer].kind == "state"
        is_update = flow.consumer != UNGROUPED and groups[flow.consumer].kind == "state" and not flow.forward
        if not tensor.shape or (is_update and not is_splittable(flow.consumer)):
            shares[flow.tensor] = 0.0
        elif is_small and (is_parameter or is_update):
            together["parameters" if is_parameter else "gradients"][flow.tensor] = tensor.num_bytes
        elif is_small and flow.consumer != UNGROUPED and made >= 0 and rules[made].family == "reduction":
            together[flow.producer, bisect.bisect(products, made)][flow.tensor] = tensor.num_bytes
    for place, sizes in together.items():
        left = math.ceil(sum(sizes.values()) / COMBINED_TOGETHER_BYTES)
        if left > 1 or not isinstance(place, str):  # a program of less than that is all latency, whatever is combined
            for t in sizes:
                shares.setdefault(t, min(1.0, max(left, 1) / len(sizes)))
    return shares
