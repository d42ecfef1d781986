"""Communication that can hide behind compute, in the costs of the solver.

Gathers of parameters can be made ahead of their use, and reductions of gradients can wait, while other kernels run;
those of activations mostly cannot, since the next kernel reads them. The seconds hidden behind the kernels of a group
are bounded by the seconds of those kernels, shared out evenly among the collectives of its parameters and gradients.
A plan's simulation gives its real hidden seconds (`jaxplan.cost.OverlappedPredictor`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from jaxplan.cost._reads import Read
from jaxplan.ir import STORED_KINDS, UNGROUPED, StepGraph


def hidden_shares(graph: StepGraph, reads: Sequence[Read]) -> dict[int, tuple[int, float]]:
    """Index of each read that can hide -> the group whose compute hides it, and the share of that for one execution.

    A parameter hides behind the group that reads it, a gradient behind the group that makes it.
    """
    behind = {i: group for i, read in enumerate(reads) if (group := _hiding_group(graph, read)) is not None}
    executions: Counter[int] = Counter()
    for i, group in behind.items():
        executions[group] += 2 if reads[i].in_both_phases else 1
    return {i: (group, 1 / executions[group]) for i, group in behind.items()}


def visible_seconds(seconds: np.ndarray, compute: np.ndarray, share: float, least: float, axis: int) -> np.ndarray:
    """Seconds of a read that are seen.

    Args:
      seconds: (K_u, K_v) or, with the choices `KEEP` and `REPEAT`, (K_u, K_v, 2), the second executed twice.
      compute: (K,) seconds of the group that hides it.
      share: of them for one execution.
      least: seconds of one execution that are always seen, if it takes as long.
      axis: 0 where the hiding group is the producer, 1 where it is the consumer.
    """
    shape = [1] * seconds.ndim
    shape[axis] = len(compute)
    executions = np.array([1.0, 2.0]) if seconds.ndim == 3 else 1.0
    hidden = executions * share * compute.reshape(shape)
    return np.maximum(np.minimum(seconds, executions * least), seconds - hidden)


def _hiding_group(graph: StepGraph, read: Read) -> int | None:
    groups = graph.grouping.groups
    if UNGROUPED in (read.producer, read.consumer) or read.producer == read.consumer or read.is_output:
        return None
    is_stored, is_kept = groups[read.producer].kind in STORED_KINDS, groups[read.consumer].kind in STORED_KINDS
    if is_stored and not is_kept:
        return read.consumer
    if is_kept and not is_stored and not read.forward:
        return read.producer
    return None
