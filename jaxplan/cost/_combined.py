"""Collectives that the compiler combines with others of their kind: the share of a latency that each of them pays."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from jaxplan.cost._reads import Read
from jaxplan.ir import CONTRACTION_FAMILIES, STORED_KINDS, UNGROUPED, StepGraph
from jaxplan.xla._buffers import Buffers
from jaxplan.xla._found import Found
from jaxplan.xla._plan_effects import Combine
from jaxplan.xla.rules.both.deferred import is_gradient

COMBINED_TOGETHER_BYTES = 2**20
"""`jaxplan.partition` lets the compiler combine at least so many bytes into one collective."""
COMPILERS_OWN_BYTES = 30 * 2**20
"""The compiler's own threshold when no option is given
(https://github.com/openxla/xla/blob/main/xla/service/collective_utils.h)."""
_SHARE_OF_MEMORY = 1 / 100
_ROUNDING = 1e-9


def combined_bytes(memory_bytes: float) -> int:
    """Bytes of the largest combined collective of a plan that takes so many: 1 % of them, within the two limits."""
    return min(COMPILERS_OWN_BYTES, max(COMBINED_TOGETHER_BYTES, int(_SHARE_OF_MEMORY * memory_bytes)))


def evenly_split_peak(graph: StepGraph, buffers: Buffers, num_devices: int) -> float:
    """Bytes on one device if all live tensors were split over all devices: close to the peak of lean plans."""
    changes = np.zeros(len(graph.program.equations) + 3)
    for t, is_buffer in enumerate(buffers.materialised):
        if is_buffer:
            changes[buffers.birth[t] + 1] += buffers.num_bytes[t]
            changes[buffers.death[t] + 2] -= buffers.num_bytes[t]
    return float(np.cumsum(changes).max()) / num_devices


def latency_shares(
    graph: StepGraph,
    reads: Sequence[Read],
    found: Found,
    is_splittable: Callable[[int], bool],
    most_bytes: int,
) -> dict[int, float]:
    """Per tensor with combined collectives, the fraction of a latency that it pays.

    Collectives are combined when they are ready together and waited for together: parameters gathered before their use
    or after their update, their gradients, and the statistics that a group takes between two dots (a mean and a
    mean of squares). Of a ResNet-50 under ZeRO-2 on 8 H100, 46 gathers are compiled to 4 and 262 all-reduces to 105. A
    tensor of which n fit into ``most_bytes`` pays the nth part of one, and all of a kind together pay whole ones. Only
    GPU programs were seen to be combined like that; on others each tensor pays. Scalars, and gradients of state that
    is not split, pay nothing here on any; a prediction adds one latency for each kind and group of them.
    """
    program, groups, rules = graph.program, graph.grouping.groups, graph.rules
    dots = [e.index for e in program.equations if rules[e.index].family in CONTRACTION_FAMILIES]
    shares: dict[int, float] = {}
    together: dict[Hashable, dict[int, int]] = defaultdict(dict)
    for read in reads:
        tensor, made = program.tensors[read.tensor], graph.values.producer[read.tensor]
        fits = 0 < tensor.num_bytes <= most_bytes and tensor.trips == 1
        may_combine = fits and found.has(Combine)
        is_parameter = read.producer != UNGROUPED and groups[read.producer].kind in STORED_KINDS
        is_update = read.consumer != UNGROUPED and groups[read.consumer].kind == "state" and not read.forward
        if not tensor.shape or (is_update and not is_splittable(read.consumer)):
            shares[read.tensor] = 0.0
        elif may_combine and (is_parameter or is_update or is_gradient(graph, read.tensor)):
            what = "updated" if read.is_output else "parameters"
            together[what if is_parameter else "gradients"][read.tensor] = tensor.num_bytes
        elif may_combine and read.consumer != UNGROUPED and made >= 0 and rules[made].family == "reduction":
            together[read.producer, bisect.bisect(dots, made)][read.tensor] = tensor.num_bytes
    for sizes in together.values():
        parts = {t: 1 / (most_bytes // size) for t, size in sizes.items()}
        whole = math.ceil(sum(parts.values()) - _ROUNDING) / sum(parts.values())
        for t, part in parts.items():
            shares.setdefault(t, min(1.0, whole * part))
    return shares
