"""The shardings of one plan: where every tensor is made and read, and how many bytes of it a device holds."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from jaxplan.cost._reads import passes_partial, sharding_of
from jaxplan.cost._tiles import padded_bytes
from jaxplan.cost._transfers import Transfer
from jaxplan.ir import STORED_KINDS, UNGROUPED, Configuration, Equation, StepGraph
from jaxplan.mesh import Sharding, Topology
from jaxplan.xla import Target


class PlanShardings:
    """A step, the configuration of each of its groups, and the transfers between them.

    Attributes:
      graph, topology: the analysed step, and the machine.
      target: the compiler that the plan is compiled by.
      configurations: one for each group.
      transfers: all reshardings, in order of first execution.
    """

    def __init__(
        self,
        graph: StepGraph,
        topology: Topology,
        configurations: Sequence[Configuration],
        transfers: Sequence[Transfer],
    ) -> None:
        self.graph, self.topology = graph, topology
        self.target = Target.of(topology.chip, topology.num_devices)
        self.configurations, self.transfers = tuple(configurations), tuple(transfers)
        self._by_read = {(t.tensor, t.target): t for t in transfers}

    def home(self, t: int) -> Sharding:
        """Sharding in which a tensor is made or comes in."""
        group = self.graph.grouping.tensor_group[t]
        return sharding_of(self.graph, self.configurations, group, t, produced=True)

    def read(self, eqn: Equation, t: int) -> Sharding:
        """Sharding in which an equation reads a tensor, partial sums taken."""
        group = self.graph.grouping.equation_group[eqn.index]
        return sharding_of(self.graph, self.configurations, group, t, produced=False)

    def required(self, eqn: Equation, t: int) -> Sharding:
        """Sharding in which an equation of a group reads a tensor; partial where it passes partial sums on."""
        sharding, home = self.read(eqn, t), self.home(t)
        group = self.graph.grouping.equation_group[eqn.index]
        passes_on = (t, sharding) not in self._by_read or passes_partial(self.graph, group, eqn.index, t)
        return home if home.partial and passes_on else sharding

    def copy_of(self, eqn: Equation, t: int) -> Transfer | None:
        """The transfer that brings an operand to the sharding in which an equation reads it; None: there is none."""
        groups = self.graph.grouping
        if UNGROUPED in (groups.equation_group[eqn.index], groups.tensor_group[t]):
            return None
        return self._by_read.get((t, self.read(eqn, t)))

    def local_shape(self, eqn: Equation, t: int) -> tuple[int, ...]:
        """Shape of an operand on one device, as an equation reads it."""
        return tuple(self.read(eqn, t).local_shape(self.graph.program.tensors[t].shape, self.topology.axes))

    def local_bytes(self, t: int, sharding: Sharding | None = None) -> int:
        """Bytes of a tensor on one device; by default in the sharding in which it is made."""
        tensor = self.graph.program.tensors[t]
        shape = (sharding or self.home(t)).local_shape(tensor.shape, self.topology.axes) if tensor.shape else ()
        return padded_bytes(shape, tensor.itemsize) if self.target.tiles_arrays else math.prod(shape) * tensor.itemsize

    def is_gathered_parameter(self, transfer: Transfer) -> bool:
        """Whether a transfer gathers a parameter, or a view of one."""
        group = self.graph.grouping.tensor_group[transfer.tensor]
        gathers = any(step.kind == "all-gather" for step in transfer.path.steps)
        return gathers and group != UNGROUPED and self.graph.grouping.groups[group].kind in STORED_KINDS

    @functools.cached_property
    def repeated(self) -> frozenset[int]:
        """Tensors with a copy that is gathered again in the backward pass."""
        return frozenset(transfer.tensor for transfer in self.transfers if transfer.repeated)
