"""The dot or convolution that makes a tensor, itself or through fused operators."""

from __future__ import annotations

from collections.abc import Sequence

from jaxplan.core._interner import ByIdentity
from jaxplan.cost._model import CostModel
from jaxplan.ir import CONTRACTION_FAMILIES, StepGraph


class DotsBehind:
    """Of the tensors of one step."""

    def __init__(self, graph: StepGraph, materialised: Sequence[bool]) -> None:
        self._graph, self._materialised = graph, materialised
        calls = (e.index for e in graph.program.equations if graph.rules[e.index].family in CONTRACTION_FAMILIES)
        self._library_calls = frozenset(calls)
        self._known: dict[int, int | None] = {}

    @classmethod
    def of_model(cls, model: CostModel) -> DotsBehind:
        """Those of a model's step; the same for all models of it."""
        graph, materialised = model.graph, model.buffers.materialised
        stage = "dots behind", ByIdentity(materialised, None)
        return graph.derive(stage, None, lambda: cls(graph, materialised))

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
