"""Gradients of parameters in a plan: which are reduced at once, which are stored as they are made, which are sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.cost import Read
from jaxplan.ir import UNGROUPED, VIEW_PRIMITIVES, StepGraph
from jaxplan.partition._plan_shardings import PlanShardings
from jaxplan.xla import LARGE_PARAMETER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Tensors that are gradients of parameters, or parts of them.

    Attributes:
      reduced_at_once: gradient -> index of the only transfer to the sharding of its parameter, with one execution.
      stored: those that are made in the sharding of their parameter.
      sums: those of biases and scales.
      summands: parts that are added up before they are reduced.
      tables: equations that make the gradient of a large table.
    """

    reduced_at_once: dict[int, int]
    stored: frozenset[int]
    sums: frozenset[int]
    summands: frozenset[int]
    tables: frozenset[int]

    @property
    def complete(self) -> tuple[int, ...]:
        """Gradients with a final value on a device, but for sums that are combined with others."""
        return (*self.reduced_at_once, *sorted(self.stored), *sorted(self.sums))


def find_gradients(shardings: PlanShardings, reads: Sequence[Read]) -> Gradients:
    """The gradients of a plan, from the reads of its update."""
    graph = shardings.graph
    read = {f.tensor for f in reads if _is_read_by(graph, f, "state")}
    at_once = {
        t.tensor: i for i, t in enumerate(shardings.transfers) if t.tensor in read and len(t.spans) == 1
    }
    return Gradients(
        reduced_at_once=at_once,
        stored=frozenset(read - {t.tensor for t in shardings.transfers}),
        sums=frozenset(f.tensor for f in reads if _is_sum(graph, f)),
        summands=frozenset(f.tensor for f in reads if _is_read_by(graph, f, "sum")),
        tables=frozenset(e for t in at_once if _is_table(graph, e := graph.values.producer[t])),
    )


def _is_read_by(graph: StepGraph, read: Read, kind: str) -> bool:
    """Whether a group of a kind reads the result of a contraction, or of a sum, of the backward pass."""
    groups, made_by = graph.grouping.groups, graph.values.producer[read.tensor]
    return (
        read.consumer != UNGROUPED
        and groups[read.consumer].kind == kind
        and groups[read.producer].kind in ("contraction", "sum")
        and made_by >= 0
        and graph.program.equations[made_by].phase == "backward"
    )


def _is_sum(graph: StepGraph, read: Read) -> bool:
    """Whether a state group reads the result of a reduction of the backward pass: the gradient of a bias or scale.

    The compiler combines its sum over the devices with others, so only a device's own part can be waited for.
    """
    made_by = graph.values.producer[read.tensor]
    if read.consumer == UNGROUPED or made_by < 0:
        return False
    eqn = graph.program.equations[made_by]
    while eqn.name in VIEW_PRIMITIVES and (source := graph.values.producer[eqn.operands[0]]) >= 0:
        eqn = graph.program.equations[source]
    is_reduction = graph.rules[eqn.index].family == "reduction"
    return graph.grouping.groups[read.consumer].kind == "state" and eqn.phase == "backward" and is_reduction


def _is_table(graph: StepGraph, equation: int) -> bool:
    """Whether an equation makes the gradient of a large table: it adds to zeros."""
    eqn, program = graph.program.equations[equation], graph.program
    if eqn.name != "scatter-add" or program.tensors[eqn.operands[0]].num_bytes < LARGE_PARAMETER_BYTES:
        return False
    made_by = graph.values.producer[eqn.operands[0]]
    if made_by < 0 or program.equations[made_by].name != "broadcast_in_dim":
        return False
    return all(program.tensors[t].kind == "literal" for t in program.equations[made_by].operands)
