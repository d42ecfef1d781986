"""Everything the planner knows of a step before costs: program, rules, values, groups and their spaces."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jaxplan.errors import ArgumentError
from jaxplan.ir._batch import Batch, find_batch
from jaxplan.ir._blocks import Remat
from jaxplan.ir._count import Count
from jaxplan.ir._count_registry import operator_count
from jaxplan.ir._dimension_names import dimension_names
from jaxplan.ir._dimensions import NamedDimensions, named_dimensions
from jaxplan.ir._grouping import UNGROUPED, Grouping
from jaxplan.ir._groups import coarsen
from jaxplan.ir._hosted_values import hosted_values
from jaxplan.ir._offload import Offload, Waiting, waiting_values
from jaxplan.ir._program import Equation, LoopRemat, MicroBatches, Program, SortBlocks, Source
from jaxplan.ir._registry import operator_rule
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._space import GroupSpace, SpaceFacts
from jaxplan.ir._spaces import Structures, group_spaces
from jaxplan.ir._stacks import recomputing_loops
from jaxplan.ir._values import Values, analyse_values

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGraph:
    """The analysed step.

    Attributes:
      program: the traced step.
      rules: one operator rule per equation.
      counts: the work of each equation, None where nobody counted it.
      values: value facts per tensor.
      named: the named dimensions.
      grouping: groups of equations.
      spaces: one iteration space per group.
      state: tensor indices of inputs that are state (parameters, optimizer slots, caches; `jaxplan.ir.StatePair`).
      batch: the dimension that examples are independent along, and the parameters that they share.
      remat: the blocks that a plan chose to recompute in the backward pass; None in a step as it was traced.
      offload: the arrays that live on the host between two uses; None: none does.
      traced: the step as it was traced, where ``remat`` is something.
      derived: results of later stages that depend on the step and the machine alone, so that pins or another limit
        need not recompute them; by stage, the machine of the last call and its result.
    """

    program: Program
    rules: tuple[OperatorRule, ...]
    counts: tuple[Count | None, ...]
    values: Values
    named: NamedDimensions
    grouping: Grouping
    spaces: tuple[GroupSpace, ...]
    state: frozenset[int]
    batch: Batch
    remat: Remat | None = None
    offload: Offload | None = None
    traced: StepGraph | None = None
    derived: dict[Hashable, tuple[Hashable, Any]] = field(init=False, default_factory=dict, compare=False, repr=False)

    def derive(self, stage: Hashable, machine: Hashable, compute: Callable[[], T]) -> T:
        """``compute()``, or its result where the last call of the stage was for an equal machine."""
        known = self.derived.get(stage)
        if known is None or known[0] != machine:
            known = self.derived[stage] = machine, compute()
        return known[1]

    @property
    def recomputing_loops(self) -> frozenset[int]:
        """Regions of scans of the backward pass that recompute a dot."""
        found = functools.partial(recomputing_loops, self.program, self.rules, self.values)
        return self.derive("recomputing loops", None, found)

    @property
    def stored(self) -> frozenset[int]:
        """Tensor indices of the arrays that a step keeps from call to call: its state, and untrained parameters."""
        return self.state | self.batch.parameters

    @property
    def on_host(self) -> frozenset[int]:
        """Tensor indices of the arguments that live on the host."""
        return frozenset(self.program.inputs[i] for i in self.offload.arguments) if self.offload else frozenset()

    @property
    def parameters_on_host(self) -> dict[int, int]:
        """Values that are on the host with parameters -> the equation that passes each on (`hosted_values`)."""
        places = self.offload.parameters if self.offload else ()
        inputs = [self.program.inputs[i] for i in places]
        return hosted_values(self.program, self.values, inputs) if inputs else {}

    @property
    def waiting(self) -> tuple[tuple[Waiting, ...], ...]:
        """For each recomputed region, in the order of the forward pass, its operands that could wait on the host."""
        return waiting_values(self.program, self.values, self.stored)

    @property
    def waiting_on_host(self) -> tuple[Waiting, ...]:
        """Those that do."""
        regions = self.waiting[: self.offload.regions] if self.offload and self.offload.regions else ()
        return tuple(w for of in regions for w in of)

    @property
    def unknown(self) -> tuple[int, ...]:
        """Equations without an operator rule: they run replicated."""
        return tuple(e.index for e in self.program.equations if self.rules[e.index].family == "unknown")

    @property
    def uncounted(self) -> tuple[int, ...]:
        """Equations without a complete count of their work; their time is that of the counted part."""
        counts = enumerate(self.counts)
        return tuple(index for index, count in counts if count is None or count.caveat)


def rule_of(program: Program, eqn: Equation) -> OperatorRule:
    """The operator rule of one equation."""
    avals = program.tensors
    return operator_rule(
        eqn.name, [avals[t] for t in eqn.operands], [avals[t] for t in eqn.results], eqn.params
    )


def count_of(program: Program, eqn: Equation, rule: OperatorRule) -> Count | None:
    """The work of one equation."""
    avals = program.tensors
    ins, outs = [avals[t] for t in eqn.operands], [avals[t] for t in eqn.results]
    return operator_count(eqn.name, ins, outs, eqn.params, rule)


def analyse(
    program: Program,
    stage: Callable[[str], None] = lambda name: None,
    *,
    gradients_apart: bool = False,
    rules: Sequence[OperatorRule] | None = None,
    structures: Structures | None = None,
    known: tuple[NamedDimensions, Batch] | None = None,
    counts: Mapping[int, Count | None] | None = None,
) -> StepGraph:
    """Rules, values, named dimensions, groups and spaces of a program; ``stage`` is told what begins.

    Args:
      gradients_apart: the gradients of a contraction are groups of their own, to measure the cost of sharing.
      rules: one per equation, where they are known already.
      structures: those of a program that differs in few places; new ones are added.
      known: dimensions by name, and the batch, of a program made from one that has them: its own operators may no
        longer tell them.
      counts: the work of some equations, where it is known already.
    """
    stage("rules")
    rules = tuple([rule_of(program, eqn) for eqn in program.equations] if rules is None else rules)
    values = analyse_values(program, rules)
    stage("groups")
    state = frozenset(program.state)
    named, batch = known or _named(program, rules, values, state)
    grouping, primal_of = coarsen(program, rules, values, batch.parameters - state, gradients_apart=gradients_apart)
    replaced = {program.outputs[o]: program.inputs[i] for o, i in program.aliases.items()}
    home = grouping.tensor_group  # in one group nothing is resharded between a state array and its successor
    together = {new: old for new, old in replaced.items() if home[new] == home[old]}
    alike = {**replaced, **primal_of, **together}
    facts = SpaceFacts(program=program, rules=rules, named=named, primal_of=alike, number=values.number)
    spaces = group_spaces(grouping.groups, facts, Structures() if structures is None else structures)
    for new, old in replaced.items():
        _place_as(spaces, grouping.tensor_group[old], new, old)
    return StepGraph(
        program=program,
        rules=rules,
        counts=tuple(_counts(program, rules, counts or {})),
        values=values,
        named=named,
        grouping=grouping,
        spaces=tuple(spaces),
        state=state,
        batch=batch,
    )


def _counts(
    program: Program, rules: Sequence[OperatorRule], known: Mapping[int, Count | None]
) -> Iterator[Count | None]:
    """The work of each equation, as known or by its rule."""
    for eqn, rule in zip(program.equations, rules, strict=True):
        yield known[eqn.index] if eqn.index in known else count_of(program, eqn, rule)


def _named(
    program: Program, rules: tuple[OperatorRule, ...], values: Values, state: frozenset[int]
) -> tuple[NamedDimensions, Batch]:
    """The dimensions of a program by name, and its batch."""
    named = named_dimensions(program, rules)
    batch = find_batch(program, rules, values, named, state)
    return dimension_names(program, rules, values, named.with_batch(batch.dimensions), batch), batch


def sliced_graph(graph: StepGraph, microbatches: MicroBatches | None) -> StepGraph:
    """The step of ``graph`` traced and analysed again, its batch in given slices; None: as the step says.

    Raises:
      ArgumentError: the batch does not divide.
      NotSeparableError: examples are not independent; names the line.
    """
    program = graph.program
    if program.source is None:
        raise ArgumentError("micro-batches need the step itself, which is not at hand")
    sliced = program.source.sliced(microbatches)
    return analyse(dataclasses.replace(sliced, donate_argnums=program.donate_argnums))


def loop_recomputed_graph(graph: StepGraph, recomputed_loops: LoopRemat | None) -> StepGraph:
    """The step of ``graph`` traced and analysed again, with layers of its loops recomputed; itself where that
    changes nothing."""
    return _traced_again(graph, lambda source: source.recomputed(recomputed_loops))


def sorted_graph(graph: StepGraph, sort_blocks: SortBlocks | None) -> StepGraph:
    """The step of ``graph`` traced and analysed again, its rows for ragged dots sorted in blocks; itself where that
    changes nothing."""
    return _traced_again(graph, lambda source: source.sorted_in_blocks(sort_blocks))


def _traced_again(graph: StepGraph, trace: Callable[[Source], Program]) -> StepGraph:
    """The step in another form; itself where that is the same program, or the step is not at hand."""
    program = graph.program
    if program.source is None:
        return graph
    again = trace(program.source)
    if again.fingerprint == program.fingerprint:
        return graph
    return analyse(dataclasses.replace(again, donate_argnums=program.donate_argnums))


def _place_as(spaces: list[GroupSpace], group: int, new: int, old: int) -> None:
    """Let a group that holds an input, and not the output that replaces it, want that output as it has the input."""
    dims = spaces[group].tensor_dims if group != UNGROUPED else {}
    if old in dims and new not in dims:
        spaces[group] = dataclasses.replace(spaces[group], tensor_dims={**dims, new: dims[old]})

