"""The stage that prices a step: configurations of every operator with their costs, reference strategies among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxplan.cost import CostModel, ModelBuilder
from jaxplan.frontend._options import Options
from jaxplan.ir import StepGraph, ordered
from jaxplan.mesh import Topology
from jaxplan.plans._pinned import Pinned
from jaxplan.search._fixed import Kept, kept_limits
from jaxplan.search._open_configurations import Opened, open_configurations
from jaxplan.search._pins import meets, pinned_arguments, resolve_pins
from jaxplan.search._published import partitions
from jaxplan.search._traced import Report
from jaxplan.strategies import Absent, StrategyPlan, apply_strategies, checked_names, own_strategies
from jaxplan.xla import Buffers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Priced:
    """A step with the costs of its configurations on one machine.

    Attributes:
      model: time and memory of the configurations that the solvers choose from.
      strategies: strategies by name; one of the solver's own name is its result.
      forbidden: names of those that pins rule out; the others are points of the model.
      absent: strategies that do not apply, and why.
      most_configurations: bounds and gaps are within so many configurations an operator; None: within all.
      certificate: the configurations that bounds and gaps leave out, in words; None where they cover all.
      free: dimensions that do not keep the split that they were to keep, and why.
      opened: the configurations of the model, to open more; None where strategies alone are points.
      pinned: the pins of the options.
    """

    model: CostModel
    strategies: Mapping[str, StrategyPlan] = dataclasses.field(default_factory=dict)
    forbidden: frozenset[str] = frozenset()
    absent: Mapping[str, str] = dataclasses.field(default_factory=dict)
    most_configurations: int | None = None
    certificate: str | None = None
    free: tuple[str, ...] = ()
    opened: Opened | None = None
    pinned: tuple[Pinned, ...] = ()

    @property
    def allowed(self) -> dict[str, StrategyPlan]:
        """The strategies that are points of the model."""
        return {name: strategy for name, strategy in self.strategies.items() if name not in self.forbidden}


def price(graph: StepGraph, topology: Topology, options: Options, report: Report) -> Priced:
    """Open and price the configurations of a step.

    Raises:
      ArgumentError: pins or references of the options do not fit the step.
      InfeasibleError: no configuration meets the pins.
    """
    report("costs")
    kept = Kept(limits=resolve_pins(options.pins, graph, topology, options.axes))
    pinned = pinned_arguments(options.pins, kept.limits, graph)
    if options.kept:
        kept = kept_limits(options.kept, graph, topology, kept.limits)
    limits = kept.limits
    strategies, absent = _strategies_of(graph, topology, options)
    allowed = {name: s for name, s in strategies.items() if meets(limits, s.configurations, topology)}
    opened = open_configurations(
        graph,
        topology,
        lambda fraction: report("costs", fraction),
        [strategy.configurations for strategy in allowed.values()],
        options.overlap and topology.hides_communication,
        limits,
    )
    return Priced(
        model=opened.model,
        strategies=strategies,
        forbidden=frozenset(strategies) - frozenset(allowed),
        absent=absent,
        most_configurations=opened.most_configurations,
        certificate=opened.certificate(),
        opened=opened,
        free=kept.free,
        pinned=pinned,
    )


def _strategies_of(
    graph: StepGraph, topology: Topology, options: Options
) -> tuple[dict[str, StrategyPlan], dict[str, str]]:
    """Reference strategies that apply, the person's own among them, and why others do not."""
    references = graph.derive("strategies", topology, lambda: apply_strategies(graph, topology))
    strategies = {**references.plans, **partitions(graph, topology, options.solver)} if graph.spaces else {}
    names = checked_names(options.references, topology)
    own: dict[str, Any] = own_strategies(graph, topology, names, options.axes)
    absent = {**references.absent, **{name: of.reason for name, of in own.items() if isinstance(of, Absent)}}
    strategies.update({name: of for name, of in own.items() if not isinstance(of, Absent)})
    return strategies, absent


def model_of_strategies(
    strategies: Mapping[str, StrategyPlan],
    graph: StepGraph,
    topology: Topology,
    *,
    overlap: bool = False,
    buffers: Buffers | None = None,
) -> CostModel:
    """The cost model of a step in which strategies alone are points; ``buffers`` are those of the step if known."""
    builder = ModelBuilder(graph, topology, overlap=overlap, buffers=buffers)
    spaces = graph.spaces
    configurations = [
        ordered({((),) * len(space.classes), *of}) if v not in builder.table.tiny else (((),) * len(space.classes),)
        for v, (space, *of) in enumerate(zip(spaces, *(s.configurations for s in strategies.values()), strict=True))
    ]
    return builder.build(configurations)
