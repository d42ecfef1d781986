"""Tensors of which all readers take the same slice: no more than the slice need be computed."""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.cost import Transfer
from jaxplan.cost._plan_shardings import PlanShardings
from jaxplan.ir import CONTRACTION_FAMILIES, Equation
from jaxplan.mesh import Sharding

_OF_A_ROW = 1 / 64
"""The property of a row (its label) has at most this many elements to one of the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedReads:
    """Tensors that are read by slices, and small values from which the slices are computed.

    Attributes:
      tensors: tensors of which all readers take the slice of one transfer; they need not be computed whole.
      whole: small tensors that slices are computed from; they are computed whole.
      copies: (tensor, sharding) of small gathered copies that slices are computed from; they are gathered whole.
    """

    tensors: frozenset[int]
    whole: frozenset[int]
    copies: frozenset[tuple[int, Sharding]]


def find_sliced_reads(shardings: PlanShardings) -> SlicedReads:
    """All tensors of a plan that are read by slices.

    Left to compute the whole, the compiler materialised the one-hot labels of a Llama over its vocabulary, 2 GiB. The
    whole is needed where it is computed from a gathered array: from a slice of that the compiler gathers less than
    planned. The property of a row, its label, is computed and gathered whole all the same, if no dot reads the slice:
    of the rows of experts, masked by slices, the compiler gathered less than planned. So is a tensor that is joined,
    padded or cut on the way: of the halves from which rotary positions make the gradient of a Llama's queries, the
    compiler exchanged parts that lay on another device than the slice.
    """
    found = {t.tensor: s for t in shardings.transfers if (s := _computed_from(shardings, t)) is not None}
    return SlicedReads(
        tensors=frozenset(found),
        whole=frozenset(t for small, _ in found.values() for t in small),
        copies=frozenset(copy for _, gathered in found.values() for copy in gathered),
    )


_Sources = tuple[set[int], set[tuple[int, Sharding]]]
"""Small tensors, and small gathered copies."""


def _computed_from(shardings: PlanShardings, transfer: Transfer) -> _Sources | None:
    """The small values that a transfer's slice is computed from; None where the whole tensor is needed."""
    graph, t = shardings.graph, transfer.tensor
    readers = [graph.program.equations[e] for e in graph.values.consumers[t]]
    is_sliced = all(step.kind == "slice" for step in transfer.path.steps)
    if not is_sliced or t in graph.program.outputs or any(shardings.copy_of(e, t) is not transfer for e in readers):
        return None
    found = _small_sources(shardings, t, 0)
    if found is None and not any(graph.rules[e.index].family in CONTRACTION_FAMILIES for e in readers):
        found = _small_sources(shardings, t, int(_OF_A_ROW * graph.program.tensors[t].num_elements))
    return found


def _small_sources(shardings: PlanShardings, t: int, num_elements: int) -> _Sources | None:
    """The sources of a tensor of at most so many elements, and the copies gathered for it that have as many; None if it
    is gathered, or joined, padded or cut, where it has more."""
    graph, small, gathered = shardings.graph, set[int](), set[tuple[int, Sharding]]()
    program, stack, seen = graph.program, [t], {t}
    while stack:
        u = stack.pop()
        made_by = graph.values.producer[u]
        if made_by < 0 or graph.rules[made_by].family not in ("elementwise", "shape"):
            continue
        if program.tensors[u].num_elements <= num_elements:
            small.add(u)
            continue
        eqn = program.equations[made_by]
        if graph.rules[made_by].family == "shape" and not _keeps_dims(shardings, eqn):
            return None
        for operand in set(eqn.operands) - seen:
            seen.add(operand)
            copy = shardings.copy_of(eqn, operand)
            if copy is None or not copy.collectives:
                stack.append(operand)
            elif program.tensors[operand].num_elements > num_elements:
                return None
            else:
                gathered.add((operand, copy.target))
    return small, gathered


def _keeps_dims(shardings: PlanShardings, eqn: Equation) -> bool:
    """Whether an equation that moves data leaves every dimension whole: it repeats or orders them, or adds ones."""
    if eqn.name == "reshape":
        before, after = (shardings.graph.program.tensors[t].shape for t in (eqn.operands[0], eqn.results[0]))
        return [n for n in before if n > 1] == [n for n in after if n > 1]
    return eqn.name in ("broadcast_in_dim", "transpose")
