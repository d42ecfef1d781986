"""Which tensors cross from one layout to another, and where: the reads that the problem's edges price.

A *flow* is one tensor read by one group. Producer and consumer each have a layout for it, given by their
configurations; where they differ the tensor is resharded, once for all reads of the read in one phase.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from jaxplan.ir import UNGROUPED, Configuration, GroupSpace, StepGraph, turning_point
from jaxplan.mesh import Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Reads of one tensor by one group.

    Reads are told apart by their place in the program, not by the phase of the equation that reads: values that an
    update computes from the initial parameters, or a second loss of parameters that the first one read, come after a
    backward pass although no gradient enters them.

    Attributes:
      tensor: tensor index.
      producer, consumer: group indices (`UNGROUPED`: replicated scalars).
      forward: indices of the equations that read it before the first backward equation, ascending.
      later: of those that read it from there on, ascending; all of them come after ``forward``.
      is_output: the read is the program's own output, which takes the layout of the input it replaces.
    """

    tensor: int
    producer: int
    consumer: int
    forward: tuple[int, ...]
    later: tuple[int, ...]
    is_output: bool = False

    def __post_init__(self) -> None:
        assert self.equations and is_ascending(self.equations), f"reads of tensor {self.tensor} are in no order: {self}"

    @property
    def equations(self) -> tuple[int, ...]:
        """All reads, in program order."""
        return self.forward + self.later

    @property
    def in_both_phases(self) -> bool:
        """Both phases read it: a resharded copy can be kept in between, or gathered again."""
        return bool(self.forward) and bool(self.later)


def is_ascending(equations: Sequence[int]) -> bool:
    """Whether equation indices are in program order, none of them twice."""
    return all(a < b for a, b in itertools.pairwise(equations))


def find_reads(graph: StepGraph) -> tuple[Read, ...]:
    """All reads, in order of tensor, then consumer."""
    program, grouping = graph.program, graph.grouping
    readers: dict[tuple[int, int], list[int]] = {}
    for eqn in program.equations:
        group = grouping.equation_group[eqn.index]
        for t in dict.fromkeys(eqn.operands):
            if _is_placed(graph, t) and not passes_partial(graph, group, eqn.index, t):
                readers.setdefault((t, group), []).append(eqn.index)
    turning, reads = turning_point(program), []
    for (t, group), equations in sorted(readers.items()):
        producer = grouping.tensor_group[t]
        if group == producer and t not in graph.spaces[producer].tensor_partial:
            continue
        cut = bisect.bisect_left(equations, turning)
        forward, later = tuple(equations[:cut]), tuple(equations[cut:])
        reads.append(Read(tensor=t, producer=producer, consumer=group, forward=forward, later=later))
    reads.extend(_output_reads(graph))
    return tuple(reads)


def _output_reads(graph: StepGraph) -> list[Read]:
    program, grouping = graph.program, graph.grouping
    reads = []
    for position, t in enumerate(program.outputs):
        if not _is_placed(graph, t):
            continue
        home = grouping.tensor_group[t]
        wanted = home
        if position in program.aliases:
            wanted = grouping.tensor_group[program.inputs[program.aliases[position]]]
        partial = t in graph.spaces[home].tensor_partial
        if wanted != home or partial:
            later = (len(program.equations),)
            reads.append(
                Read(tensor=t, producer=home, consumer=wanted, forward=(), later=later, is_output=True)
            )
    return reads


def _is_placed(graph: StepGraph, t: int) -> bool:
    return graph.grouping.tensor_group[t] != UNGROUPED and not graph.values.free[t]


def passes_partial(graph: StepGraph, group: int, equation: int, t: int) -> bool:
    """Inside a contraction group a view hands a partial sum on as it is."""
    if group == UNGROUPED or graph.grouping.tensor_group[t] != group:
        return False
    partial = graph.spaces[group].tensor_partial
    if t not in partial:
        return False
    result = graph.program.equations[equation].results[0]
    is_view = graph.rules[equation].family in ("shape", "elementwise")
    return is_view and graph.grouping.groups[group].kind == "contraction" and result in partial


def sharding_of(
    graph: StepGraph, configurations: Sequence[Configuration], group: int, t: int, *, produced: bool
) -> Sharding:
    """The layout in which ``group`` makes (``produced``) or reads tensor ``t`` under the chosen configurations."""
    if group == UNGROUPED:
        return Sharding.replicated(len(graph.program.tensors[t].shape))
    space = graph.spaces[group]
    dims = space.tensor_dims.get(t)
    if dims is None:
        dims = ((),) * len(graph.program.tensors[t].shape)
    partial = space.tensor_partial.get(t, ()) if produced else space.operand_partial
    return _sharding(dims, partial, configurations[group])


def boundary_shardings(
    graph: StepGraph, configurations: Sequence[Configuration]
) -> tuple[tuple[Sharding, ...], tuple[Sharding, ...]]:
    """Layouts of the inputs, and of the outputs.

    An output that replaces an input has its layout; every other keeps that of its group, sums taken.
    """
    program = graph.program

    def home(t: int) -> Sharding:
        return sharding_of(graph, configurations, graph.grouping.tensor_group[t], t, produced=True)

    inputs = tuple(home(t) for t in program.inputs)
    outputs = tuple(
        inputs[program.aliases[position]] if position in program.aliases else Sharding(home(t).dims)
        for position, t in enumerate(program.outputs)
    )
    return inputs, outputs


def produced_sharding(space: GroupSpace, config: Configuration, t: int, rank: int) -> Sharding:
    """The layout in which a group makes ``t``, partial sums included."""
    return _sharding(space.tensor_dims.get(t, ((),) * rank), space.tensor_partial.get(t, ()), config)


def required_sharding(space: GroupSpace, config: Configuration, t: int, rank: int) -> Sharding:
    """The layout in which a group reads ``t``; a sum group may read, and make, partial sums."""
    return _sharding(space.tensor_dims.get(t, ((),) * rank), space.operand_partial, config)


@lru_cache(maxsize=2**18)
def _sharding(dims: tuple[tuple[int, ...], ...], partial: tuple[int, ...], config: Configuration) -> Sharding:
    """The axes of the classes of each dimension; equal layers ask for the same again and again."""
    return Sharding(
        tuple([tuple([a for c in classes for a in config[c]]) for classes in dims]),
        tuple(sorted([a for c in partial for a in config[c]])),
    )


def distinct_shardings(shardings: Sequence[Sharding]) -> tuple[tuple[Sharding, ...], tuple[int, ...]]:
    """Distinct layouts in order of appearance, and the index of each given one."""
    index: dict[Sharding, int] = {}
    positions = tuple([index.setdefault(sharding, len(index)) for sharding in shardings])
    return tuple(index), positions
