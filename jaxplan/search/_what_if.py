"""The same step planned again for another machine, memory limit or batch, from a frontier that is at hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxplan.core._units import parse_limit
from jaxplan.errors import ArgumentError, TraceError
from jaxplan.ir import Program, StepGraph
from jaxplan.mesh import Topology, with_bandwidth
from jaxplan.plans._advice import Advice
from jaxplan.search._programs import NoBatchError
from jaxplan.search._sort_blocks import in_sort_blocks


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replanner:
    """Plans a step again.

    Attributes:
      graph: the analysed step.
      topology: where it was planned.
      plan_graph: ``(graph, topology, changes) -> Frontier``; changes are options in place of those asked for before.
      analyse: program -> its graph.
      advise: ``(plan, this) -> tuple[Advice, ...]``.
      verify: ``(frontier, choice, cache_dir=, progress=) -> Frontier``.
    """

    graph: StepGraph
    topology: Topology
    plan_graph: Callable[[StepGraph, Topology, Mapping[str, Any]], Any]
    analyse: Callable[[Any], StepGraph]
    advise: Callable[[Any, Replanner], tuple[Advice, ...]]
    verify: Callable[..., Any]

    def __call__(
        self,
        *,
        bandwidth: float | Mapping[str, float] | None = None,
        memory: int | str | None = None,
        batch: int | None = None,
    ) -> Any:
        """See `jaxplan.Frontier.what_if`."""
        topology = self.topology if bandwidth is None else with_bandwidth(self.topology, bandwidth)
        num_devices = self.topology.num_devices
        graph = self.graph if batch is None else self.analyse(resized(self.graph, batch, num_devices))
        changes = {} if memory is None else {"memory_limit_bytes": parse_limit(memory)}
        return self.plan_graph(graph, topology, changes)


def resized(graph: StepGraph, batch: int, num_devices: int) -> Program:
    """The program of another batch size, traced again.

    Args:
      num_devices: for which the step is planned: it may have a batch only where each sorts its own rows.

    Raises:
      ArgumentError: the step has no batch, or an argument does not scale to a whole number of examples.
    """
    program = graph.program
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ArgumentError(f"batch is {batch!r}; expected the number of examples, an integer of at least 1")
    batched = graph if graph.named.batch else in_sort_blocks(graph, num_devices)
    if not batched.named.batch or program.source is None:
        reason = graph.batch.reason or "the step is not at hand"
        raise ArgumentError(f"batch={batch} cannot be asked for: the step has no batch ({reason})")
    sizes = batch_sizes(batched)
    examples = min(size for of in sizes.values() for size in of.values())
    shapes = {}
    readable = dict(zip(program.in_paths, program.readable_in_paths, strict=True))
    for path, dims in sizes.items():
        t = program.inputs[program.in_paths.index(path)]
        shape = list(program.tensors[t].shape)
        for d, size in dims.items():
            if size * batch % examples:
                raise ArgumentError(
                    f"batch={batch}: {readable[path]} has {size} where others have {examples} examples, and "
                    "does not scale to a whole number"
                )
            shape[d] = size * batch // examples
        shapes[path] = tuple(shape)
    try:
        resized = program.source.resized(shapes)
    except TraceError as error:
        said = str(error.__cause__).partition("\n")[0]
        raise ArgumentError(
            f"batch={batch} cannot be asked for: the step cannot be traced with arguments of that size: {said}\n"
            "  likely cause: a size that the step has written down, or takes from a constant"
        ) from error
    return dataclasses.replace(resized, donate_argnums=program.donate_argnums)


def batch_sizes(graph: StepGraph) -> dict[str, dict[int, int]]:
    """Of each argument that holds examples: its dimensions along them, and their sizes."""
    program, named = graph.program, graph.named
    found: dict[str, dict[int, int]] = {}
    for path, t in zip(program.in_paths, program.inputs, strict=True):
        if t in graph.stored:
            continue
        shape = program.tensors[t].shape
        dims = {d: size for d, size in enumerate(shape) if named.of.get((t, d)) in named.batch}
        if dims:
            found[path] = dims
    if not found:
        raise NoBatchError("batch: no argument of the step but its state holds examples, so its size is not an input")
    return found
