"""Parameters that live on the host: when they are on the device, and how often they are copied there.

The operators of a pass read one copy of a parameter; it is made for the first of them, and dies after the last
(`jaxplan.ir.hosted_values`). A resharding reads it where it is executed. The copy for the update is counted with those
of the other arrays that the update reads (`jaxplan.cost._offload`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from jaxplan.cost._buffer_sizes import BufferSizes
from jaxplan.cost._model import CostModel
from jaxplan.cost._transfers import Transfer
from jaxplan.ir import (
    CONTRACTION_FAMILIES,
    REGION_IN,
    UNGROUPED,
    StepGraph,
    equations_of_passes,
    hosted_sources,
)


class HostedParameters:
    """Of the plans of one model; nothing where none has parameters on the host."""

    def __init__(self, model: CostModel) -> None:
        self.model, graph = model, model.graph
        self._passed_by = graph.parameters_on_host
        self._passes = equations_of_passes(graph.program) if self._passed_by else frozenset[int]()
        self._group = {t: graph.grouping.tensor_group[t] for t in self._passed_by}
        sizes = BufferSizes(model)
        tensors, sources = graph.program.tensors, hosted_sources(graph.program, self._passed_by)
        itemsizes = {t: (tensors[source].dtype.itemsize, tensors[t].dtype.itemsize) for t, source in sources.items()}
        self._held = {t: on_host / on_device for t, (on_host, on_device) in itemsizes.items()}
        self._bytes = {t: sizes(v, [t])[0] for t, v in self._group.items() if v != UNGROUPED}

    def on_device(
        self, assignment: Sequence[int], transfers: Sequence[Transfer]
    ) -> Mapping[int, list[tuple[int, int, float]]]:
        """Value that a plan has on the host -> (first, last equation, bytes) of its copies on the device."""
        if not self._passed_by:
            return {}
        moved: dict[int, list[Transfer]] = defaultdict(list)
        for transfer in transfers:
            moved[transfer.tensor].append(transfer)
        graph, found = self.model.graph, dict[int, list[tuple[int, int, float]]]()
        for t, passed_by in self._passed_by.items():
            if passed_by >= 0:
                (source,) = graph.program.equations[passed_by].operands
                if source not in found or passed_by in _readers(moved[source]):
                    continue
            found[t] = []
            if t in self._bytes:
                size = float(self._bytes[t][assignment[self._group[t]]])
                found[t] += self._copies(t, size, moved[t])
        return found

    def _copies(self, t: int, size: float, moved: Sequence[Transfer]) -> Iterator[tuple[int, int, float]]:
        reads = [*self._reads(t, _readers(moved)), *((s.first, s.first) for x in moved for s in x.spans)]
        equations, held = self.model.graph.program.equations, size * self._held[t]
        for is_backward in (False, True):
            own = [r for r in reads if r[0] in self._passes and (equations[r[0]].phase == "backward") == is_backward]
            if own:
                first = min(first for first, _ in own)
                yield first, max(last for _, last in own), size
                if held != size:
                    yield first, first, held

    def _reads(self, t: int, elsewhere: frozenset[int]) -> Iterator[tuple[int, int]]:
        """(first, last equation) of each read on the device in the sharding in which the value is."""
        program, read_end = self.model.graph.program, self.model.buffers.read_end
        for c in self.model.graph.values.consumers[t]:
            eqn = program.equations[c]
            if c in elsewhere or any(self._passed_by.get(r) == c for r in eqn.results):
                continue
            is_entry = eqn.name == REGION_IN
            yield c, max(read_end[c], program.regions[eqn.params["region"]].stop - 1) if is_entry else read_end[c]


def _readers(transfers: Sequence[Transfer]) -> frozenset[int]:
    """Equations that read a copy in another sharding."""
    return frozenset(e for transfer in transfers for span in transfer.spans for e in span.readers)


def sums_at_once(graph: StepGraph) -> frozenset[int]:
    """Results of dots of the backward pass, and views of them, that are summed over devices as soon as they are made.

    A copy of a parameter from the host waits for the dots before it, so the compiler does not defer them.
    """
    if not graph.parameters_on_host:
        return frozenset()
    found = set[int]()
    for eqn in graph.program.equations:
        family = graph.rules[eqn.index].family
        is_view = family in ("elementwise", "shape") and len(eqn.operands) == 1 and eqn.operands[0] in found
        if eqn.phase == "backward" and (family in CONTRACTION_FAMILIES or is_view):
            found.update(eqn.results)
    return frozenset(found)


def sent_to_device(graph: StepGraph) -> dict[int, int]:
    """Value on the host -> how often it is copied to the device for the forward and the backward pass."""
    passed_by = graph.parameters_on_host
    passes = equations_of_passes(graph.program) if passed_by else frozenset[int]()
    equations, tensors = graph.program.equations, graph.program.tensors
    found = {}
    for t in passed_by:
        readers = (equations[c] for c in graph.values.consumers[t] if c in passes)
        phases = {e.phase == "backward" for e in readers if all(passed_by.get(r) != e.index for r in e.results)}
        if phases:
            found[t] = len(phases) * tensors[t].trips
    return found
