"""The entry of `jaxplan.plan_together`: steps in, joint frontier out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxplan.core._collector import paused_collector
from jaxplan.core._interrupt import interruptible
from jaxplan.core._progress import Progress
from jaxplan.errors import ArgumentError, UnsupportedError
from jaxplan.frontend._arguments import step_name
from jaxplan.frontend._options import Options
from jaxplan.ir import StepGraph
from jaxplan.mesh import Topology, parse_topology
from jaxplan.plans._joint import JointFrontier
from jaxplan.search._entry import StepToPlan
from jaxplan.search._joint_problem import JointProblem, Member
from jaxplan.search._operator_notes import operator_notes
from jaxplan.search._pins import is_about
from jaxplan.search._planner import check_plannable
from jaxplan.search._price import Priced, price
from jaxplan.search._shared import find_shared, leaves_of
from jaxplan.search._together import JointSearch, joint_plans, open_together
from jaxplan.search._together_again import plan_again
from jaxplan.solvers import FRONTIER_SOLVERS


@interruptible()
def plan_together_on(
    steps: Mapping[str, StepToPlan],
    options: Options,
    weights: Mapping[str, float] | None,
    said: Mapping[str, str] | None,
) -> JointFrontier:
    """See `jaxplan.plan_together`."""
    weights = checked_weights(steps, weights)
    if options.solver not in FRONTIER_SOLVERS:
        raise UnsupportedError(
            f"plan_together was given solver={options.solver!r}; expected one of {', '.join(FRONTIER_SOLVERS)}, which "
            "find a whole frontier"
        )
    topology = parse_topology(options.topology)
    options = options.on(topology)
    with Progress(options.progress) as report:
        graphs = {name: step.graph(topology, report) for name, step in steps.items()}
        for name, step in steps.items():
            check_plannable(graphs[name], topology, f"{name} ({step_name(step.step)})")
        shared = find_shared(graphs, said)
        own = _own_options(graphs, topology, options)
        with paused_collector():
            priced = [price(graph, topology, of, report) for graph, of in zip(graphs.values(), own, strict=True)]
            priced = open_together(priced, list(graphs), shared)
        members = [
            Member(name=name, weight=weights[name], model=of.model) for name, of in zip(graphs, priced, strict=True)
        ]
        leaves = [leaves_of(name, graph) for name, graph in graphs.items()]
        search = JointSearch(JointProblem(members, shared, leaves), priced, options, report)
        search.run()
        plan_again(search, graphs, own, report)
        paths = [{leaf.step: leaf.path for leaf in reversed(of.leaves)} for of in shared]
        paths = [{name: of[name] for name in graphs if name in of} for of in paths]
        plans, references = joint_plans(search, paths, options.memory_limit_bytes)
        report("score", 1.0)
    return JointFrontier.from_plans(
        plans,
        references=references,
        memory_limit_bytes=options.memory_limit_bytes,
        search_seconds=sum(seconds for stage, seconds in report.seconds.items() if stage != "trace"),
        notes=_notes(graphs, priced),
    )


def checked_weights(steps: Mapping[str, object], weights: Mapping[str, float] | None) -> dict[str, float]:
    """How often each step counts, 1 where nothing is said.

    Raises:
      ArgumentError: a name that no step has, or a number that is not positive.
    """
    given = dict(weights or {})
    unknown = [name for name in given if name not in steps]
    if unknown:
        raise ArgumentError(
            f"weights names {', '.join(map(repr, unknown))}; expected names of the steps: "
            f"{', '.join(map(repr, steps))}"
        )
    for name, weight in given.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not (is_number and 0 < weight < math.inf):
            raise ArgumentError(
                f"weights[{name!r}] is {weight!r}; expected a positive number: how often the step runs"
            )
    return {name: float(given.get(name, 1.0)) for name in steps}


def _own_options(graphs: Mapping[str, StepGraph], topology: Topology, options: Options) -> list[Options]:
    """The options of each step: a pin applies to the steps that it is about.

    Raises:
      ArgumentError: a pin is about no step.
    """
    pins: dict[str, list[Any]] = {name: [] for name in graphs}
    for pin in options.pins:
        about = [name for name, graph in graphs.items() if is_about(pin, graph, topology, options.axes)]
        if not about:
            raise ArgumentError(
                f"pin {pin} matches nothing in any of the steps {', '.join(graphs)}.\n"
                "  expected: a path of an argument, the name of a hint or of a dimension (docs/steering.md)"
            )
        for name in about:
            pins[name].append(pin)
    return [dataclasses.replace(options, pins=tuple(of)) for of in pins.values()]


def _notes(graphs: Mapping[str, StepGraph], priced: Sequence[Priced]) -> list[str]:
    notes = [f"{name}: {note}" for name, graph in graphs.items() for note in operator_notes(graph)]
    return notes + list(dict.fromkeys(of.certificate for of in priced if of.certificate))
