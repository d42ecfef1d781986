"""A step planned on one machine, or on parts of one, or on several: the part that the entry points share."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxplan.core._collector import paused_collector
from jaxplan.core._files import check_folder
from jaxplan.core._interrupt import current, interruptible
from jaxplan.core._progress import Progress
from jaxplan.core._units import format_bytes
from jaxplan.errors import InfeasibleError
from jaxplan.frontend._absent_gpu import NEWEST_GPU, Assumption, assumption_for
from jaxplan.frontend._arguments import step_name
from jaxplan.frontend._options import Options
from jaxplan.ir import StepGraph
from jaxplan.mesh import Topology, parse_topology
from jaxplan.plans._choice import check_choice
from jaxplan.plans._frontier import Frontier
from jaxplan.search._compare import Comparison, compare_on
from jaxplan.search._hosted import check_hosted, keeping, with_host_arguments
from jaxplan.search._kept_plans import programs_folder
from jaxplan.search._planner import plan_graph
from jaxplan.search._scaling import MinDevices, Scaling, checked_counts, find_fewest, scale
from jaxplan.search._traced import Report, Traced, analyse_traced, trace_step
from jaxplan.search._verify import AUTO, check_verifiable, checked_choice, verified_near_limit, verify
from jaxplan.search._would_fit import with_ways_out
from jaxplan.strategies import checked_names

MOST_SEARCHES = 3
"""The first, and those for leaner plans where the compiler needs more than predicted."""

_LEANER_NOTE = (
    "compiled, the leanest plan of an earlier search takes {compiled}: leaner ones were searched, at most {limit} by "
    "their prediction"
)


class StepToPlan:
    """A step with its arguments, traced when it is first planned and analysed once for all machines.

    Thread-safe. A step that asks for the GPU that it runs on (fused attention of cuDNN) is traced once for each kind.

    Attributes:
      step, args, kwargs: as the person gave them.
      options: of the trace: settings and donation.
    """

    def __init__(
        self, step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], options: Options
    ) -> None:
        self.step, self.args, self.kwargs, self.options = step, tuple(args), dict(kwargs), options
        self._lock = threading.Lock()
        self._graphs: dict[Assumption, tuple[Traced, StepGraph]] = {}

    def __repr__(self) -> str:
        return f"jaxplan.trace({step_name(self.step)})"

    def graph(self, topology: Topology | None, report: Report) -> StepGraph:
        """The analysed step for a machine, or, for None, for all machines if the step is the same on all."""
        assumption = NEWEST_GPU if topology is None else assumption_for(topology)
        with self._lock:
            for known, graph in self._graphs.values():
                if known.is_general or known.assumption == assumption:
                    return graph
            report("trace")
            with paused_collector():
                traced = trace_step(
                    self.step, self.args, self.kwargs, assumption=assumption, **self.options.trace_arguments
                )
            graph = analyse_traced(traced, report)
            self._graphs[assumption] = traced, graph
            return graph


@interruptible()
@paused_collector()
def plan_on(step: StepToPlan, options: Options) -> Frontier:
    """The frontier of a step on one machine, verified if that was asked for; see `jaxplan.plan`."""
    topology = parse_topology(options.topology)
    options, hosted = with_host_arguments(options, step.step, step.args, step.kwargs)
    around = _checked_before_search(options, topology)
    limited = options.on(topology)

    def search(options: Options, report: Progress) -> Frontier:
        found = plan_graph(graph, topology=topology, options=options, report=report, name=step_name(step.step))
        return keeping(found, hosted)

    with Progress(options.progress) as report:
        graph = step.graph(topology, report)
        check_hosted(graph, hosted)
        try:
            frontier = search(limited, report)
        except InfeasibleError as error:
            raise _with_ways_out(error, graph, limited) from None
    if current().happened:
        return frontier
    with Progress(options.progress) as report:
        try:
            return _verified(frontier, limited, around, report, search)
        except InfeasibleError as error:
            raise _with_ways_out(error, graph, limited) from None


def _with_ways_out(error: InfeasibleError, graph: StepGraph, options: Options) -> InfeasibleError:
    """`with_ways_out`; the error as it is where the step is planned again without pins, nobody waits, or pins that no
    machine meets are the cause."""
    if options.kept or current().happened or error.smallest_memory_bytes is None:
        return error
    return with_ways_out(error, graph, parse_topology(options.topology), options)


def _verified(
    frontier: Frontier,
    options: Options,
    around: str | int | None,
    report: Progress,
    search: Callable[[Options, Progress], Frontier],
    searches: int = MOST_SEARCHES,
) -> Frontier:
    """The frontier as its compiled plans have it; where none of them fits, that of a search for leaner ones.

    Raises:
      InfeasibleError: no plan fits as compiled, and leaner ones are not found or do not fit either.
    """
    limit, cache_dir = options.memory_limit_bytes, programs_folder(options)
    try:
        if options.verify != AUTO:
            return frontier if around is None else verify(frontier, around, cache_dir=cache_dir, progress=report)
        if options.time_limit is not None:  # a compiler takes longer than any search
            return frontier
        return verified_near_limit(frontier, options.choose, cache_dir=cache_dir, progress=report)
    except InfeasibleError as error:
        compiled = error.smallest_memory_bytes
        if searches == 1 or compiled is None or limit is None or current().happened:
            raise
        predicted = min(plan.prediction.memory_bytes for plan in frontier.points)
        lower = min(limit * predicted // compiled, predicted - 1)
        try:
            leaner = search(dataclasses.replace(options, memory_limit_bytes=lower), report)
        except InfeasibleError:
            raise error from None
    note = _LEANER_NOTE.format(compiled=format_bytes(compiled), limit=format_bytes(lower))
    leaner = dataclasses.replace(leaner, memory_limit_bytes=limit, notes=(*leaner.notes, note))
    return _verified(leaner, options, around, report, search, searches - 1)


def _checked_before_search(options: Options, topology: Topology) -> str | int | None:
    """Raise the errors that the options would raise after the search; returns the choice to verify around, if any."""
    around = checked_choice(options.verify, options.choose)
    names = checked_names(options.references, topology)
    for option, which in (("choose", options.choose), ("verify", around)):
        if which is not None and which not in names:
            check_choice(which, topology, option)
    if around is not None:
        check_verifiable(topology)
        if options.cache_dir is not None:
            check_folder(options.cache_dir)
    return around


@interruptible()
def min_devices_of(step: StepToPlan, options: Options) -> MinDevices:
    """See `jaxplan.min_devices`."""
    topology = parse_topology(options.topology)
    options = options.on(topology)
    assert options.memory_limit_bytes is not None
    with Progress(options.progress) as report:
        graph = step.graph(topology, report)
        tensors = graph.program.tensors
        return find_fewest(
            topology,
            options.memory_limit_bytes,
            _planner_of_parts(step, options, report),
            sum(tensors[t].num_bytes for t in graph.program.inputs),
        )


@interruptible()
def scaling_of(step: StepToPlan, options: Options, device_counts: Sequence[int] | None) -> Scaling:
    """See `jaxplan.scaling`."""
    topology = parse_topology(options.topology)
    checked_counts(topology, device_counts)  # before the trace, which takes long
    options = options.on(topology)
    assert options.memory_limit_bytes is not None
    with Progress(options.progress) as report:
        step.graph(topology, report)
        plan_part = _planner_of_parts(step, options, report)
        return scale(topology, options.memory_limit_bytes, plan_part, device_counts)


@interruptible()
def compare_for(
    step: StepToPlan, options: Options, topologies: Sequence[Any], prices: Mapping[str, float] | None
) -> Comparison:
    """See `jaxplan.compare`."""
    with Progress(options.progress) as report:
        step.graph(None, report)
        plan_machine = _planner_of_parts(step, options, report, named=True)
        return compare_on(topologies, prices, parse_topology, plan_machine)


def _planner_of_parts(
    step: StepToPlan, options: Options, report: Progress, *, named: bool = False
) -> Callable[[Topology], Frontier]:
    """Plans the step on a machine; stages are reported with its number of devices, or its name."""

    def plan_part(machine: Topology) -> Frontier:
        where = machine.name if named else machine.num_devices
        graph = step.graph(machine, report)
        with Progress(lambda stage, fraction: report(f"{stage} on {where}", fraction)) as stages:
            return plan_graph(
                graph,
                topology=machine,
                options=options.on(machine),
                report=stages,
                name=step_name(step.step),
            )

    return plan_part
