"""Tofu's partition of a step, and those of the searches that it was compared with.

Source: Tofu, section 4 (communication is minimised, every tensor is partitioned), 4.2.1 (coalescing), 4.4 (recursion
over the prime factors of the device count), 6.3 (EqualChop, AllRow-Greedy, AllRow-Rand, greedy by size).

Costs are the bytes that a device receives: the collectives of the plan's own paths on a machine whose links are all
equal and have no latency. Stored tensors are split over all axes that divide one of their dimensions, operators over
all that divide one of their factors, and each operator fetches its operands when it needs them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxplan.cost import REPEAT, CostModel, ModelBuilder
from jaxplan.ir import STORED_KINDS, Configuration, StepGraph, fixed_axes
from jaxplan.mesh import Link, Topology
from jaxplan.search._recurrences import layer_groups, time_step_classes
from jaxplan.solvers import (
    Problem,
    all_row_greedy,
    all_row_random,
    coalesce,
    critical_dp,
    greedy_largest_first,
    recursive_dp,
)
from jaxplan.strategies import StrategyPlan

PARTITION_SOLVERS = ("tofu", "equal-chop", "all-row-greedy", "greedy-by-size")
PARTITION_SEARCHES = (*PARTITION_SOLVERS, "all-row-random")
"""Those that `partition` knows: random draws are a baseline, and no solver."""
_UNIT_LINK = Link(bandwidth_bytes_per_second=1e9, latency_seconds=0.0)

Options = tuple[tuple[Configuration, ...], ...]
"""Per group the configurations that a step of the search chooses from."""


def partition(graph: StepGraph, topology: Topology, solver: str) -> StrategyPlan:
    """The configuration of every group that one of `PARTITION_SEARCHES` ends at; copies are fetched again."""
    search = _PartitionSearch(graph, topology)
    axes = tuple(range(len(topology.axes)))
    if solver == "tofu":
        configurations = search.recursively(axes)
    else:
        options = search.options(search.start, axes)
        configurations = search.chosen(options, search.at_once(options, solver))
    return StrategyPlan(configurations=configurations, repeat_gathers=True)


class _PartitionSearch:
    """Problems of splitting a step over some axes more, in bytes.

    Attributes:
      start: per group the configuration before any decision: the step's own sharding.
      classes: groups of equal number decide together.
    """

    def __init__(self, graph: StepGraph, topology: Topology) -> None:
        self.graph = graph
        self.machine = _counting_bytes(topology)
        self._builder = ModelBuilder(graph, self.machine)
        sizes = [axis.size for axis in topology.axes]
        fixed = [fixed_axes(space.classes, sizes) for space in graph.spaces]
        self.start = tuple(
            tuple(of.get(c, ()) for c in range(len(space.classes))) for of, space in zip(fixed, graph.spaces)
        )
        self._fixed = fixed
        self.classes = time_step_classes(graph, self._builder.reads)
        self._firsts = [self.classes.index(number) for number in range(max(self.classes, default=-1) + 1)]

    def options(self, before: Sequence[Configuration], axes: Sequence[int]) -> Options:
        """Per group, the configurations in which some axes split one class besides, as many as divide any."""
        found = []
        for v, config in enumerate(before):
            taken = {c: self._dividing(v, c, config[c], axes) for c in self._splittable(v)}
            most = max(map(len, taken.values()), default=0)
            is_free = most > 0 and not set(axes) & {a for split in config for a in split}
            options = [
                (*config[:c], (*config[c], *more), *config[c + 1 :]) for c, more in taken.items() if len(more) == most
            ]
            found.append(tuple(options) if is_free else (config,))
        return tuple(found)

    def recursively(self, axes: Sequence[int]) -> tuple[Configuration, ...]:
        """Decide one axis after the other, outermost first, each given the ones before it."""
        levels = [self.options(self.start, axes[:1])]
        configurations = [self.start]

        def recost(steps: tuple[tuple[int, ...], ...]) -> Problem | None:
            configurations.append(self.chosen(levels[-1], steps[-1]))
            if len(steps) == len(axes):
                return None
            levels.append(self.options(configurations[-1], (axes[len(steps)],)))
            return self.problem(levels[-1])[0]

        if axes:
            problem, model = self.problem(levels[0])
            recursive_dp(problem, recost, self.edge_bytes(problem, model), self.layers(levels[0]))
        return configurations[-1]

    def at_once(self, options: Options, solver: str) -> tuple[int, ...]:
        """One of the searches that split every tensor along one dimension alone."""
        problem, model = self.problem(options)
        if solver == "equal-chop":
            return critical_dp(problem, self.edge_bytes(problem, model), self.layers(options))
        if solver == "greedy-by-size":
            return greedy_largest_first(problem, self._node_bytes())
        rows = [self._row(v, options[v]) for v in self._firsts]
        kinds = [self.graph.grouping.groups[v].kind for v in self._firsts]
        suits_itself = [kind not in STORED_KINDS for kind in kinds]
        pick = all_row_random if solver == "all-row-random" else all_row_greedy
        return pick(problem, dict(enumerate(rows)), suits_itself)

    def problem(self, options: Options) -> tuple[Problem, CostModel]:
        """Bytes received, in thousand millions, over classes of groups; and the model that they are of."""
        model = self._builder.build(options)
        edges = []
        for edge in model.problem.edges:
            table = edge.time
            if table.ndim == 3:  # fetched in both passes, where there is something to fetch
                again = table[..., REPEAT]
                table = np.where(np.isfinite(again), again, table.min(axis=2))
            edges.append((edge.source, edge.target, table))
        own = [np.maximum(time - compute, 0.0) for time, compute in zip(model.problem.time, model.compute)]
        whole = Problem(time=own, edges=edges, names=model.problem.names)
        return coalesce(whole, self.classes), model

    def edge_bytes(self, problem: Problem, model: CostModel) -> list[float]:
        """Bytes of all tensors on each edge of the problem over classes."""
        sizes: dict[tuple[int, int], float] = {}
        tensors = self.graph.program.tensors
        for edge, reads in zip(model.problem.edges, model.edge_reads, strict=True):
            ends = sorted((self.classes[edge.source], self.classes[edge.target]))
            num_bytes = sum(tensors[model.reads[f].tensor].num_bytes for f in reads)
            sizes[ends[0], ends[1]] = sizes.get((ends[0], ends[1]), 0.0) + num_bytes
        return [sizes[edge.source, edge.target] for edge in problem.edges]

    def chosen(self, options: Options, assignment: Sequence[int]) -> tuple[Configuration, ...]:
        """The configuration of each group, from one choice for each class."""
        return tuple(of[assignment[number]] for of, number in zip(options, self.classes, strict=True))

    def layers(self, options: Options) -> list[int]:
        """Per class of groups the first class of its layer (`layer_groups`)."""
        return [*layer_groups(self.graph, self._builder.reads, self.classes, [len(of) == 1 for of in options])]

    def _splittable(self, v: int) -> list[int]:
        """Classes along which a group may be split: no summands that stay apart, nothing that the step lays out."""
        space = self.graph.spaces[v]
        left_out = {*space.operand_partial, *self._fixed[v]}
        if self.graph.grouping.groups[v].kind in STORED_KINDS:
            held = {c for dims in space.tensor_dims.values() for dim in dims for c in dim}
            left_out |= set(range(len(space.classes))) - held
        return [c for c in range(len(space.classes)) if c not in left_out]

    def _dividing(self, v: int, c: int, taken: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
        """Those of some axes, in order, that divide a class of a group beside its present splits."""
        parts = math.prod(self.machine.axes[a].size for a in taken)
        found: list[int] = []
        for axis in axes:
            more = parts * self.machine.axes[axis].size
            if self.graph.spaces[v].classes[c].divisible_by(more):
                found.append(axis)
                parts = more
        return tuple(found)

    def _node_bytes(self) -> list[float]:
        """Bytes of the largest tensor of each class of groups, all of its members together."""
        sizes = [0.0] * len(self._firsts)
        for space, number in zip(self.graph.spaces, self.classes):
            sizes[number] += max((self.graph.program.tensors[t].num_bytes for t in space.tensor_dims), default=0)
        return sizes

    def _row(self, v: int, options: Sequence[Configuration]) -> int:
        """Which of a group's options splits the first dimension that can be of its largest tensor."""
        space, tensors = self.graph.spaces[v], self.graph.program.tensors
        largest = max(space.tensor_dims, key=lambda t: (tensors[t].num_bytes, -t), default=None)
        for dim in space.tensor_dims.get(largest, ()) if largest is not None else ():
            for k, config in enumerate(options):
                if any(len(config[c]) > len(self.start[v][c]) for c in dim):
                    return k
        return 0


def _counting_bytes(topology: Topology) -> Topology:
    """The machine with equal links and no latencies: seconds of its collectives count bytes."""
    return dataclasses.replace(
        topology,
        name=f"{topology.name}, bytes",
        chip=dataclasses.replace(topology.chip, collective_launch_seconds=0.0),
        levels=tuple(dataclasses.replace(level, link=_UNIT_LINK) for level in topology.levels),
        profile=None,
    )
