"""The largest buffers of a plan at its predicted peak, each with the compiler rule that made it one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxplan.cost._plan_model import predictor_of_plan
from jaxplan.cost._pricing import KEEP, REPEAT
from jaxplan.ir import Configuration, StepGraph
from jaxplan.mesh import Topology


class Held(NamedTuple):
    """A tensor that the step computes and that is live at the peak.

    Attributes:
      tensor: its index.
      num_bytes: on one device.
      rule: the compiler rule by which it is a buffer (docs/compiler_rules.md).
    """

    tensor: int
    num_bytes: int
    rule: str


def held_at_peak(
    graph: StepGraph, topology: Topology, configurations: Sequence[Configuration], repeated: Sequence[int]
) -> list[Held]:
    """Largest first; ``repeated`` are the reads that gather their copy again."""
    predictor = predictor_of_plan(graph, topology, configurations)
    model = predictor.model
    wanted, zeros = frozenset(repeated), [0] * len(configurations)
    choices = [REPEAT if any(read in wanted for read in reads) else KEEP for reads in model.edge_reads]
    live = predictor.lifetimes(zeros, model.chosen(zeros), predictor.transfers(zeros, choices))
    top = int(np.argmax(live.curve())) if len(live.sizes) else 0
    found = [
        Held(t, int(live.sizes[i]), model.buffers.decided_by[t] or "")
        for t, i in live.home.items()
        if live.first[i] <= top <= live.last[i] and live.sizes[i]
    ]
    return sorted(found, key=lambda held: (-held.num_bytes, held.tensor))
