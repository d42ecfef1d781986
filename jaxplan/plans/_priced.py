"""A plan priced again from its program: the seconds of each transfer and equation, and of other shardings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxplan.core import _compat
from jaxplan.core._paths import readable_path
from jaxplan.cost import (
    KEEP,
    REPEAT,
    CostModel,
    ModelBuilder,
    Prediction,
    Predictor,
    Transfer,
    predictor_of_plan,
    remembered,
)
from jaxplan.ir import VIEW_PRIMITIVES, Configuration, StepGraph
from jaxplan.mesh import Topology, collective_seconds
from jaxplan.plans._plan_data import PlanData
from jaxplan.plans._rows import short_source
from jaxplan.simulate import OverlappedPredictor


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One tensor that is brought to another layout.

    Attributes:
      tensor: path of the argument that it is, or is a cast or view of; else dtype and shape.
      kinds: collectives of its way, in order.
      source: the source line that makes or reads it.
      reader: the operator that reads it first.
      seconds: of all executions in one step.
      num_bytes: bytes per device of all executions.
      count: executions in one step.
    """

    tensor: str
    kinds: tuple[str, ...]
    source: str
    reader: str
    seconds: float
    num_bytes: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another configuration of one group, all else as it is; differences to the plan.

    Communication is that which no compute hides.
    """

    configuration: Configuration
    seconds: float
    compute_seconds: float
    communication_seconds: float
    memory_bytes: int


class PricedPlan:
    """Costs of one plan: every group has the plan's configuration, and one group may have others too."""

    def __init__(
        self,
        graph: StepGraph,
        topology: Topology,
        configurations: Sequence[Configuration],
        repeated: Sequence[int],
        group: int | None = None,
        overlap: bool = False,
    ) -> None:
        self.graph, self.topology, self.group = graph, topology, group
        chosen: list[tuple[Configuration, ...]] = [(config,) for config in configurations]
        if group is None:
            predictor = predictor_of_plan(graph, topology, configurations)
        else:
            builder = ModelBuilder(graph, topology)
            others = builder.configurations()[group]
            chosen[group] = (configurations[group], *(c for c in others if c != configurations[group]))
            predictor = Predictor(builder.build(chosen))
        self.predictor = OverlappedPredictor(predictor.model) if overlap else predictor
        self.model: CostModel = predictor.model
        self.assignment = [0] * len(configurations)
        wanted = frozenset(repeated)
        self.choices = [REPEAT if wanted.intersection(reads) else KEEP for reads in self.model.edge_reads]

    @cached_property
    def _predicted(self) -> Prediction:
        return self.predictor.predict(self.assignment, self.choices)[0]

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self._predicted.time_seconds

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """All reshardings of the plan."""
        return self.predictor.transfers(self.assignment, self.choices)

    def alternatives(self) -> list[Alternative]:
        """The other configurations of the group, the cheapest in time first."""
        assert self.group is not None
        base = self._predicted
        found = []
        for k, config in enumerate(self.model.configurations[self.group]):
            if k == 0 or not np.isfinite(self.model.problem.time[self.group][k]):
                continue
            assignment = list(self.assignment)
            assignment[self.group] = k
            other, _ = self.predictor.predict(assignment, self.choices)
            found.append(
                Alternative(
                    configuration=config,
                    seconds=other.time_seconds - base.time_seconds,
                    compute_seconds=other.compute_seconds - base.compute_seconds,
                    communication_seconds=_exposed(other) - _exposed(base),
                    memory_bytes=other.memory_bytes - base.memory_bytes,
                )
            )
        return sorted(found, key=lambda other: (other.seconds, other.memory_bytes))

    @cached_property
    def edges(self) -> list[Edge]:
        """Transfers that communicate, the longest first."""
        found = [self._edge(transfer) for transfer in self.transfers if transfer.collectives]
        return sorted(found, key=lambda edge: (-edge.seconds, edge.tensor, edge.reader))

    def _name(self, t: int) -> str:
        tensor, source = self.graph.program.tensors[t], t
        while not self.graph.program.tensors[source].path:
            producer = self.graph.values.producer[source]
            if producer < 0 or self.graph.program.equations[producer].name not in VIEW_PRIMITIVES:
                return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"
            source = self.graph.program.equations[producer].operands[0]
        return readable_path(self.graph.program.tensors[source].path, self.graph.program.argument_names)

    def _edge(self, transfer: Transfer) -> Edge:
        program = self.graph.program
        first = transfer.spans[0].readers[0]
        reader = program.equations[first] if first < len(program.equations) else None
        producer = self.graph.values.producer[transfer.tensor]
        made = program.equations[producer] if producer >= 0 else reader
        share = self.model.latency_shares.get(transfer.tensor, 1.0)
        once, again = (
            sum(collective_seconds(self.topology, kind, size, axes, of) for kind, axes, size in transfer.collectives)
            for of in (share, 1.0)
        )
        times = transfer.trips * len(transfer.spans)
        return Edge(
            tensor=self._name(transfer.tensor),
            kinds=tuple(kind for kind, _, _ in transfer.collectives),
            source=short_source(_compat.eqn_source_line(made.origin)) if made is not None else "",
            reader=reader.name if reader is not None else "the result",
            seconds=transfer.trips * (once + again * (len(transfer.spans) - 1)),
            num_bytes=times * sum(int(size) for _, _, size in transfer.collectives),
            count=times,
        )


def _exposed(prediction: Prediction) -> float:
    return prediction.communication_seconds - prediction.hidden_seconds


def priced_plan(plan: PlanData) -> PricedPlan:
    """A plan priced from its program, once for equal plans of a step.

    Raises:
      PlanMismatchError: the plan has no program.
    """
    graph = plan.require_program()
    overlap = plan.overlapped
    key = plan.configurations, plan.repeated, overlap

    def price() -> PricedPlan:
        return PricedPlan(graph, plan.topology, plan.configurations, plan.repeated, overlap=overlap)

    return remembered(graph, plan.topology, "priced plans", key, price)
