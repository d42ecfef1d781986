"""For a step that fits in no way: the changes to machine, batch and options with which it would fit."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.core._units import format_bytes
from jaxplan.errors import InfeasibleError, JaxplanError
from jaxplan.frontend._options import Options
from jaxplan.ir import StepGraph, analyse
from jaxplan.mesh import Topology, enlarged
from jaxplan.plans._plan import Plan
from jaxplan.search._pins import meets, resolve_pins
from jaxplan.search._price import model_of_strategies
from jaxplan.search._solve import draw_references
from jaxplan.search._what_if import batch_sizes, resized
from jaxplan.simulate import predictor_of
from jaxplan.strategies import apply_strategies

FACTORS = (2, 4, 8, 16, 32)
"""So many times the devices, or so many times fewer examples, are tried, the first that fits."""


def with_ways_out(
    error: InfeasibleError, graph: StepGraph, topology: Topology, options: Options
) -> InfeasibleError:
    """The error with a line for each change that makes the step fit.

    Only the reference strategies are priced, which takes a fraction of a search: searched plans may need less still.
    """
    ways = [
        *_devices(graph, topology, options),
        *_batch(graph, topology, options),
        *_options(options),
    ]
    if not ways:
        return error
    return InfeasibleError(
        "\n                ".join([f"{error}\n  would fit:    {ways[0]}", *ways[1:]]),
        smallest_memory_bytes=error.smallest_memory_bytes,
        memory_parts=error.memory_parts,
    )


def _devices(graph: StepGraph, topology: Topology, options: Options) -> Iterator[str]:
    limit = _limit(options)
    arguments = sum(graph.program.tensors[t].num_bytes for t in graph.program.inputs)
    for factor in FACTORS:
        try:
            larger = enlarged(topology, factor)
        except JaxplanError:  # measured links, or more devices than there can be
            return
        if arguments > limit * larger.num_devices:
            continue
        plan = _leanest(graph, larger, options)
        if plan is not None and plan.memory_bytes <= limit:
            yield f"{larger.num_devices} devices ({larger.name}): {_described(plan)}"
            return


def _batch(graph: StepGraph, topology: Topology, options: Options) -> Iterator[str]:
    limit = _limit(options)
    try:
        examples = min(size for of in batch_sizes(graph).values() for size in of.values())
    except JaxplanError:
        return
    for factor in FACTORS:
        if examples % factor:
            return
        try:
            plan = _leanest(analyse(resized(graph, examples // factor, topology.num_devices)), topology, options)
        except JaxplanError:
            return
        if plan is not None and plan.memory_bytes <= limit:
            yield f"a batch of {examples // factor} in place of {examples}: {_described(plan)}"
            return


def _options(options: Options) -> Iterator[str]:
    """Options that the caller has ruled out; by default both are tried before a step is refused."""
    if options.remat is False:
        yield "perhaps with blocks recomputed: remat=False rules it out"
    if options.microbatches is False:
        yield "perhaps in micro-batches: microbatches=False rules them out"


def _leanest(graph: StepGraph, topology: Topology, options: Options) -> Plan | None:
    """The reference strategy of least memory among those that meet the pins."""
    try:
        limits = resolve_pins(options.pins, graph, topology, options.axes)
    except JaxplanError:  # names of axes that are of the given machine, or a split that this one has not
        return None
    found = apply_strategies(graph, topology).plans
    strategies = {name: of for name, of in found.items() if meets(limits, of.configurations, topology)}
    if not strategies:
        return None
    drawn = draw_references(predictor_of(model_of_strategies(strategies, graph, topology)), strategies)
    return min((of.plan for of in drawn.values()), key=lambda plan: plan.memory_bytes, default=None)


def _limit(options: Options) -> int:
    assert options.memory_limit_bytes is not None
    return options.memory_limit_bytes


def _described(plan: Plan) -> str:
    return f"{plan.name} needs {format_bytes(plan.memory_bytes)}"
