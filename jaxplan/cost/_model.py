"""The planning problem of a step on a topology: nodes are groups, edges are reads (design section 7).

Objective, in the symbols of `jaxplan.solvers.Problem`:

  time_v[k]          compute of group v under configuration k (`compute_seconds`) and the reshardings inside it
  memory_v[k]        its inputs and the activations that it saves for the backward pass, bytes per device
  time_uv[k, l, c]   resharding of every tensor that v reads of u (`Pricer.read_tables`)
  memory_uv[k, l, c] copies that are kept for the backward pass
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.cost._pricing import REPEAT, Pricer
from jaxplan.cost._reads import Read
from jaxplan.ir import Configuration, StepGraph
from jaxplan.mesh import Topology
from jaxplan.solvers import Problem
from jaxplan.xla._buffers import Buffers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostModel:
    """A step on a topology, priced.

    Attributes:
      configurations: per group, its configurations.
      reads: reads that may reshard.
      problem: the additive formulation; node v is group v.
      edge_reads: per edge of the problem, the reads that it prices; a read in both phases has an edge to itself.
      latency_shares: tensor -> fraction of a latency, where its collectives are combined, see `latency_shares`.
      compute: per group (K,) seconds of compute.
      equation_seconds: group -> seconds of compute of each of its equations, per configuration, (K, equations).
      flops: per group (K,) floating-point operations on one device.
      overlapped: whether predicted times count communication that runs beside compute; the problem never does.
      host_bytes: per group (K,) bytes of its inputs that live on the host; empty where none does.
      link_bytes: per group (K,) bytes that a step brings from there to the device; the way back runs beside it.
    """

    graph: StepGraph
    topology: Topology
    buffers: Buffers
    pricer: Pricer
    configurations: tuple[tuple[Configuration, ...], ...]
    reads: tuple[Read, ...]
    problem: Problem
    edge_reads: tuple[tuple[int, ...], ...]
    latency_shares: Mapping[int, float]
    compute: tuple[np.ndarray, ...]
    flops: tuple[np.ndarray, ...]
    equation_seconds: Callable[[int], np.ndarray]
    overlapped: bool = False
    host_bytes: tuple[np.ndarray, ...] = ()
    link_bytes: tuple[np.ndarray, ...] = ()

    def chosen(self, assignment: Sequence[int]) -> tuple[Configuration, ...]:
        """The configuration of each group."""
        return tuple(configs[k] for configs, k in zip(self.configurations, assignment, strict=True))

    def repeated(self, choices: Sequence[int]) -> frozenset[int]:
        """Reads that gather their copy again, by index, from the choices of the problem's edges."""
        return frozenset(
            read
            for reads, choice in zip(self.edge_reads, choices, strict=True)
            if choice == REPEAT
            for read in reads
            if self.reads[read].in_both_phases
        )
