"""The pipeline: graph, cost model, solutions, candidates, frontier; each stage is one call, in this order."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping
from typing import Any

from jaxplan.core import _compat
from jaxplan.core._collector import paused_collector
from jaxplan.core._interrupt import TIME_LIMIT_NOTE, interruptible
from jaxplan.core._log import logger
from jaxplan.core._progress import Progress
from jaxplan.errors import ArgumentError, UnsupportedError
from jaxplan.frontend._options import Options
from jaxplan.ir import Equation, StepGraph, analyse
from jaxplan.mesh import Topology
from jaxplan.plans._frontier import Frontier
from jaxplan.search._advice import advise
from jaxplan.search._assemble import NOTHING_MSG, assemble
from jaxplan.search._kept_plans import cache_of, keep_frontier, kept_frontier, search_key
from jaxplan.search._loops import plan_with_loops
from jaxplan.search._microbatches import plan_with_microbatches
from jaxplan.search._offload import plan_with_offload
from jaxplan.search._price import price
from jaxplan.search._score import score
from jaxplan.search._sequences import plan_with_sequences
from jaxplan.search._solve import solve
from jaxplan.search._sort_blocks import plan_with_sort_blocks
from jaxplan.search._verify import verify
from jaxplan.search._what_if import Replanner
from jaxplan.search.stages import StagePricer, StageSearch, plan_with_stages

_ORDERED_MSG = (
    "the step {name} has ordered effects, which JAX runs on one device alone.\n"
    "  likely cause: jax.debug.print or a callback with ordered=True, here or in a callee of the step (verbose=True)\n"
    "  fix: ordered=False"
)

_ALONE_MSG = (
    "plans in stages cannot be looked for together with {options}.\n"
    "  expected: stages without pins, a kept layout or state on the host, and with micro-batches\n"
    "  fix: leave one of them out, or stages=False"
)


def plan_graph(
    graph: StepGraph, *, topology: Topology, options: Options, report: Progress, name: str
) -> Frontier:
    """The frontier of an analysed step.

    Args:
      options: their memory limit, if any, is that of the machine.
      name: how an error calls the step.

    Raises:
      InfeasibleError: no plan fits the limit.
    """
    with interruptible() as interruption:
        cache = cache_of(options)
        if cache is None:
            return _search(graph, topology, options, report, name)
        report("cache")
        key = search_key(graph, topology, options)
        found = None if key is None else kept_frontier(cache, key, graph)
        if found is not None:
            report("cache", 1.0)
            return _with_search(found, graph, topology, options, report, name)
        frontier = _search(graph, topology, options, report, name)
        if key is not None and not interruption.happened:
            keep_frontier(cache, key, frontier)
        return frontier


def _search(
    graph: StepGraph, topology: Topology, options: Options, report: Progress, name: str
) -> Frontier:
    """The frontier of a step that no cache has."""
    limit = options.memory_limit_bytes
    with interruptible() as interruption, paused_collector():
        if options.time_limit is not None and interruption.deadline is None:
            interruption.deadline = time.monotonic() + options.time_limit

        def plan(offload: bool) -> Frontier:
            chosen = dataclasses.replace(options, offload=offload)

            def plan_one(of: StepGraph) -> Frontier:
                return _plan_graph(of, topology, chosen, report, name)

            most_bytes = None if limit is None or offload else limit * topology.num_devices

            def in_slices(of: StepGraph) -> Frontier:
                return plan_with_microbatches(
                    of,
                    options.microbatches,
                    lambda of: plan_with_sequences(of, plan_one, limit, topology.num_devices),
                    limit,
                    most_bytes,
                )

            def in_blocks(of: StepGraph) -> Frontier:
                return plan_with_sort_blocks(of, in_slices, topology.num_devices)

            return plan_with_loops(graph, options.remat, in_blocks)

        def search() -> StageSearch:
            _check_stageable(options)
            alone = dataclasses.replace(
                options, microbatches=False, offload=False, stages=False, references=None, axes=None, kept=()
            )
            pricer = StagePricer(lambda of, part: _search(of, part, alone.on(part), report, name))
            return StageSearch(graph, topology, pricer, options.microbatches, limit)

        whole = functools.partial(plan_with_offload, options.offload, plan, limit)
        found = plan_with_stages(options.stages, whole, search, limit)
        if TIME_LIMIT_NOTE in found.notes:
            logger.warning("%s: after %g s %s", name, options.time_limit, TIME_LIMIT_NOTE)
        return found


def _plan_graph(
    graph: StepGraph, topology: Topology, options: Options, report: Progress, name: str
) -> Frontier:
    """The stages after the analysis, each one call."""
    check_plannable(graph, topology, name)
    priced = price(graph, topology, options, report)
    solutions = solve(priced, options, report)
    candidates = score(solutions, options, report)
    frontier = assemble(candidates, options, name)
    report("score", 1.0)
    return _with_search(frontier, graph, topology, options, report, name)


def _with_search(
    frontier: Frontier, graph: StepGraph, topology: Topology, options: Options, report: Progress, name: str
) -> Frontier:
    """The frontier with the seconds that it took, and a function to plan the step again."""
    seconds = sum(of for stage, of in report.seconds.items() if stage != "trace")
    replan = _replanner(graph, topology, options, name)
    return dataclasses.replace(frontier, search_seconds=seconds, replan=replan)


def _check_stageable(options: Options) -> None:
    """Raise for options on the whole step that no stage could keep."""
    given = [name for name in ("pins", "kept", "offload") if getattr(options, name)]
    if given or options.microbatches is False:
        given += ["microbatches=False"] if options.microbatches is False else []
        raise ArgumentError(_ALONE_MSG.format(options=", ".join(given)))


def check_plannable(graph: StepGraph, topology: Topology, name: str) -> None:
    if not graph.program.equations:
        raise ArgumentError(NOTHING_MSG.format(name=name))
    if topology.num_devices > 1 and any(map(_is_ordered, graph.program.equations)):
        raise UnsupportedError(_ORDERED_MSG.format(name=name))


def _is_ordered(eqn: Equation) -> bool:
    return bool(getattr(eqn.origin, "effects", None)) and _compat.has_ordered_effects(eqn.origin)


def _replanner(graph: StepGraph, topology: Topology, options: Options, name: str) -> Replanner:
    """A function that plans the step again, quietly, with other links, another limit or another batch."""

    def again(graph: StepGraph, topology: Topology, changes: Mapping[str, Any]) -> Frontier:
        sliced = {"microbatches": False} if graph.program.microbatches is not None else {}
        other = dataclasses.replace(options, **(sliced | dict(changes)))
        with Progress(False) as report:
            return plan_graph(graph, topology=topology, options=other, report=report, name=name)

    return Replanner(
        graph=graph, topology=topology, plan_graph=again, analyse=analyse, advise=advise, verify=verify
    )
