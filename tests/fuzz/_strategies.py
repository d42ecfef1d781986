"""Random strategies of a step: for every group of operators any way to split it, not only the planner's.

Axes are dealt to the classes of a group in any order, so that layouts occur in every order of axes, logical meshes of
every shape, partial sums, copies that are made again, and chains of several collectives between groups.
"""

from __future__ import annotations

import dataclasses
import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.core._once import Once
from jaxplan.cost import Prediction, Read, boundary_shardings, find_reads, sharding_of
from jaxplan.frontend._backend import Backend
from jaxplan.ir import WHOLE, Configuration, Group, GroupSpace, StepGraph, fixed_axes
from jaxplan.mesh import AtomicAxis, Topology
from jaxplan.partition import decide_lowering
from jaxplan.plans._outline import Outline
from jaxplan.plans._plan import Plan
from jaxplan.plans._summary import input_dims, input_roles

TOPOLOGY = "cpu:8"
LEAST_SPLIT = 0.5
"""Fraction of the splittable operators that a strategy splits at least."""
_REPLICATE_ONE_IN = 6
_PARTIAL_ONE_IN = 4
_MAX_DRAWS = 30
_UNPREDICTED = Prediction(
    compute_seconds=0.0,
    communication_seconds=0.0,
    flops=0.0,
    memory_bytes=0,
    memory_parts={},
    collectives=(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A strategy and the splits it makes.

    Attributes:
      splittable, split: names of the primitives of the operators that can be split, and that are.
      backend: how it is lowered. Under constraints the compiler repairs a wrong rule with communication; in a manual
        program every operator runs on pieces, and a wrong rule gives wrong numbers.
    """

    configurations: tuple[Configuration, ...]
    repeated: tuple[int, ...]
    splittable: tuple[str, ...]
    split: tuple[str, ...]
    backend: Backend = "jit"


def draw_strategy(graph: StepGraph, topology: Topology, seed: str, backend: Backend = "jit") -> Strategy:
    """A random strategy that splits at least `LEAST_SPLIT` of the splittable operators.

    A group's configuration depends on ``seed`` and on the content of the group, not on its number, so that it stays
    while the program around it is reduced.
    """
    reads = find_reads(graph)
    for attempt in range(_MAX_DRAWS):
        drawn = [
            _draw_group(graph, group, space, topology.axes, f"{seed} {attempt}")
            for group, space in zip(graph.grouping.groups, graph.spaces, strict=True)
        ]
        _make_feasible(graph, reads, drawn)
        strategy = _described(graph, topology, reads, drawn, random.Random(f"{seed} {attempt} repeated"))
        if len(strategy.split) >= LEAST_SPLIT * len(strategy.splittable):
            return dataclasses.replace(strategy, backend=backend)
    raise AssertionError(f"no strategy in {_MAX_DRAWS} draws splits half of {strategy.splittable}")


def plan_of(graph: StepGraph, topology: Topology, strategy: Strategy) -> Plan:
    """The plan of a strategy, unpredicted, as it would come out of a file."""
    input_shardings, output_shardings = boundary_shardings(graph, strategy.configurations)
    program = graph.program
    return Plan(
        name="drawn",
        topology=topology,
        fingerprint=program.fingerprint,
        donate_argnums=program.donate_argnums,
        configurations=strategy.configurations,
        repeated=strategy.repeated,
        in_paths=program.in_paths,
        in_avals=program.in_avals,
        in_roles=input_roles(graph),
        in_dims=input_dims(graph),
        out_paths=program.out_paths,
        input_shardings=input_shardings,
        output_shardings=output_shardings,
        prediction=_UNPREDICTED,
        lower_bound_seconds=0.0,
        outline=Outline(),
        graph=graph,
        decided=Once(lambda: decide_lowering(graph, topology, strategy.configurations, strategy.repeated)),
    )


def _draw_group(
    graph: StepGraph, group: Group, space: GroupSpace, axes: Sequence[AtomicAxis], seed: str
) -> Configuration:
    """Deal the axes to the classes, each to one that it divides, or to none."""
    rng = random.Random(f"{seed} {_signature(graph, group, space)}")
    dealt: list[tuple[int, ...]] = [()] * len(space.classes)
    fixed = fixed_axes(space.classes, [axis.size for axis in axes])
    for c, taken in fixed.items():
        dealt[c] = taken
    free = set(range(len(axes))).difference(*fixed.values())
    for axis in rng.sample(sorted(free), len(free)):
        fitting = [
            c
            for c, cls in enumerate(space.classes)
            if c not in fixed
            and cls.divisible_by(math.prod(axes[a].size for a in dealt[c]) * axes[axis].size)
            and (c not in space.operand_partial or rng.randrange(_PARTIAL_ONE_IN) == 0)
        ]
        if fitting and rng.randrange(_REPLICATE_ONE_IN):
            c = rng.choice(fitting)
            dealt[c] = (*dealt[c], axis)
    return tuple(dealt)


def _signature(graph: StepGraph, group: Group, space: GroupSpace) -> int:
    names = [graph.program.equations[e].name for e in group.equations[:4]]
    shapes = [graph.program.tensors[t].shape for t in group.inputs[:4]]
    return zlib.crc32(repr((group.kind, names, shapes, [cls.sizes for cls in space.classes])).encode())


def _make_feasible(graph: StepGraph, reads: Sequence[Read], drawn: list[Configuration]) -> None:
    """Groups that read partial sums get the axes over which all that they read is partial, and no others."""
    sums = [v for v, space in enumerate(graph.spaces) if space.operand_partial]
    for v in sums:
        (c,) = graph.spaces[v].operand_partial
        while wrong := _too_partial(graph, reads, drawn, v):
            drawn[v] = (*drawn[v][:c], tuple(a for a in drawn[v][c] if a not in wrong), *drawn[v][c + 1 :])
    if any(_too_partial(graph, reads, drawn, v) for v in sums):  # one reads another
        _make_feasible(graph, reads, drawn)


def _too_partial(graph: StepGraph, reads: Sequence[Read], drawn: Sequence[Configuration], v: int) -> set[int]:
    """Axes over which group ``v`` reads partial sums of values that are none."""
    wrong: set[int] = set()
    for read in reads:
        if read.consumer == v and read.producer != v:
            made = sharding_of(graph, drawn, read.producer, read.tensor, produced=True)
            required = sharding_of(graph, drawn, v, read.tensor, produced=False)
            wrong |= set(required.partial) - set(made.partial)
    return wrong


def _described(
    graph: StepGraph,
    topology: Topology,
    reads: Sequence[Read],
    drawn: Sequence[Configuration],
    rng: random.Random,
) -> Strategy:
    splittable, split = [], []
    least = min(axis.size for axis in topology.axes)
    for group, space, config in zip(graph.grouping.groups, graph.spaces, drawn, strict=True):
        for e in group.equations if group.kind != "user" else ():  # the step itself says how those are split
            name = graph.program.equations[e].name
            classes = [c for c in space.factor_class[e] if c != WHOLE]
            if any(space.classes[c].divisible_by(least) for c in classes):
                splittable.append(name)
                if any(config[c] for c in classes):
                    split.append(name)
    return Strategy(
        configurations=tuple(drawn),
        repeated=tuple(i for i, read in enumerate(reads) if read.in_both_phases and rng.randrange(2)),
        splittable=tuple(splittable),
        split=tuple(split),
    )
