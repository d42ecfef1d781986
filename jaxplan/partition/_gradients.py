"""Gradients of parameters in a plan: which are reduced at once, which are stored as they are made, which are sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.cost import Read, makes_table_gradient, reads_gradient, reads_sum
from jaxplan.cost._plan_shardings import PlanShardings


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
    read = {f.tensor for f in reads if reads_gradient(graph, f)}
    at_once = {
        t.tensor: i for i, t in enumerate(shardings.transfers) if t.tensor in read and len(t.spans) == 1
    }
    summands = frozenset(f.tensor for f in reads if reads_gradient(graph, f, "sum"))
    return Gradients(
        reduced_at_once=at_once,
        stored=frozenset(read - {t.tensor for t in shardings.transfers}),
        sums=frozenset(f.tensor for f in reads if reads_sum(graph, f)),
        summands=summands,
        tables=frozenset(
            e for t in [*at_once, *summands] if makes_table_gradient(graph, e := graph.values.producer[t])
        ),
    )
