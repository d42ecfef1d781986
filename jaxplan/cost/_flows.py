"""Which tensors cross from one layout to another, and where: the reads that the problem's edges price.

A *flow* is one tensor read by one group. Producer and consumer each have a layout for it, given by their
configurations; where they differ the tensor is resharded, once for all reads of the flow in one phase.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from jaxplan.ir import UNGROUPED, Configuration, GroupSpace, StepGraph, turning_point
from jaxplan.mesh import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Reads of one tensor by one group.

    Reads are told apart by their place in the program, not by the phase of the equation that reads: what an update
    computes of the initial parameters, or a second loss of parameters that the first one read, comes after a backward
    pass although no gradient enters it.

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
        assert self.reads and is_ascending(self.reads), f"reads of tensor {self.tensor} are in no order: {self.reads}"

    @property
    def reads(self) -> tuple[int, ...]:
        """All reads, in program order."""
        return self.forward + self.later

    @property
    def reads_twice(self) -> bool:
        """Both phases read it: a resharded copy can be kept in between, or made again."""
        return bool(self.forward) and bool(self.later)


def is_ascending(equations: Sequence[int]) -> bool:
    """Whether equation indices are in program order, none of them twice."""
    return all(a < b for a, b in itertools.pairwise(equations))


def find_flows(graph: StepGraph) -> tuple[Flow, ...]:
    """All flows, in order of tensor, then consumer."""
    program, grouping = graph.program, graph.grouping
    reads: dict[tuple[int, int], list[int]] = {}
    for eqn in program.equations:
        group = grouping.equation_group[eqn.index]
        for t in dict.fromkeys(eqn.operands):
            if _is_placed(graph, t) and not passes_partial(graph, group, eqn.index, t):
                reads.setdefault((t, group), []).append(eqn.index)
    turning, flows = turning_point(program), []
    for (t, group), equations in sorted(reads.items()):
        producer = grouping.tensor_group[t]
        if group == producer and t not in graph.spaces[producer].tensor_partial:
            continue
        cut = bisect.bisect_left(equations, turning)
        forward, later = tuple(equations[:cut]), tuple(equations[cut:])
        flows.append(Flow(tensor=t, producer=producer, consumer=group, forward=forward, later=later))
    flows.extend(_output_flows(graph))
    return tuple(flows)


def _output_flows(graph: StepGraph) -> list[Flow]:
    program, grouping = graph.program, graph.grouping
    flows = []
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
            flows.append(
                Flow(tensor=t, producer=home, consumer=wanted, forward=(), later=later, is_output=True)
            )
    return flows


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


def layout_of(
    graph: StepGraph, configurations: Sequence[Configuration], group: int, t: int, *, produced: bool
) -> Layout:
    """The layout in which ``group`` makes (``produced``) or reads tensor ``t`` under the chosen configurations."""
    if group == UNGROUPED:
        return Layout.replicated(len(graph.program.tensors[t].shape))
    space = graph.spaces[group]
    dims = space.tensor_dims.get(t)
    if dims is None:
        dims = ((),) * len(graph.program.tensors[t].shape)
    partial = space.tensor_partial.get(t, ()) if produced else space.operand_partial
    return _layout(dims, partial, configurations[group])


def boundary_layouts(
    graph: StepGraph, configurations: Sequence[Configuration]
) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """Layouts of the inputs, and of the outputs.

    An output that replaces an input has its layout; every other keeps that of its group, sums taken.
    """
    program = graph.program

    def home(t: int) -> Layout:
        return layout_of(graph, configurations, graph.grouping.tensor_group[t], t, produced=True)

    inputs = tuple(home(t) for t in program.inputs)
    outputs = tuple(
        inputs[program.aliases[position]] if position in program.aliases else Layout(home(t).dims)
        for position, t in enumerate(program.outputs)
    )
    return inputs, outputs


def produced_layout(space: GroupSpace, config: Configuration, t: int, rank: int) -> Layout:
    """The layout in which a group makes ``t``, partial sums included."""
    return _layout(space.tensor_dims.get(t, ((),) * rank), space.tensor_partial.get(t, ()), config)


def required_layout(space: GroupSpace, config: Configuration, t: int, rank: int) -> Layout:
    """The layout in which a group reads ``t``; a sum group may read, and make, partial sums."""
    return _layout(space.tensor_dims.get(t, ((),) * rank), space.operand_partial, config)


@lru_cache(maxsize=2**18)
def _layout(dims: tuple[tuple[int, ...], ...], partial: tuple[int, ...], config: Configuration) -> Layout:
    """The axes of the classes of each dimension; equal layers ask for the same again and again."""
    return Layout(
        tuple([tuple([a for c in classes for a in config[c]]) for classes in dims]),
        tuple(sorted([a for c in partial for a in config[c]])),
    )


def distinct_layouts(layouts: Sequence[Layout]) -> tuple[tuple[Layout, ...], tuple[int, ...]]:
    """Distinct layouts in order of appearance, and the index of each given one."""
    index: dict[Layout, int] = {}
    positions = tuple([index.setdefault(layout, len(index)) for layout in layouts])
    return tuple(index), positions
