"""The dot or convolution that makes a tensor, itself or through fused operators."""

from __future__ import annotations

from jaxplan.cost._model import CostModel
from jaxplan.ir import CONTRACTION_FAMILIES


class DotsBehind:
    """Of the tensors of one model."""

    def __init__(self, model: CostModel) -> None:
        graph = model.graph
        self._graph, self._materialised = graph, model.buffers.materialised
        calls = (e.index for e in graph.program.equations if graph.rules[e.index].family in CONTRACTION_FAMILIES)
        self._library_calls = frozenset(calls)
        self._known: dict[int, int | None] = {}

    def of(self, t: int) -> int | None:
        """The index of its equation; None: there is none."""
        if t not in self._known:
            graph, materialised = self._graph, self._materialised
            stack, seen, found = [t], {t}, None
            while stack and found is None:
                index = graph.values.producer[stack.pop()]
                found = index if index in self._library_calls else None
                is_fused = index >= 0 and graph.rules[index].family in ("elementwise", "shape")
                operands = graph.program.equations[index].operands if is_fused else ()
                calls = [u for u in operands if graph.values.producer[u] in self._library_calls]
                stack += [u for u in operands if u not in seen and not materialised[u]] + calls
                seen.update(operands)
            self._known[t] = found
        return self._known[t]
