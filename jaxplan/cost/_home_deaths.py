"""When the original of a tensor dies that a plan reshards: readers of copies do not count."""

from __future__ import annotations

import bisect
import functools
import heapq
import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from jaxplan.core._interner import Memo
from jaxplan.cost._dots_behind import DotsBehind
from jaxplan.cost._hosted_parameters import sums_at_once
from jaxplan.cost._model import CostModel
from jaxplan.cost._reads import sharding_of
from jaxplan.cost._transfers import Transfer
from jaxplan.ir import CONTRACTION_FAMILIES, REGION_IN, UNGROUPED, Configuration, StepGraph
from jaxplan.mesh import Sharding
from jaxplan.xla._plan_effects import AwaitBarriers, AwaitNextGradient, ReduceInPlace, ShortenSources
from jaxplan.xla.rules.both.deferred import is_gradient


class HomeDeaths:
    """Of the plans of one model; deaths for equal transfers and readers are remembered."""

    def __init__(self, model: CostModel, behind: DotsBehind) -> None:
        graph, buffers = model.graph, model.buffers
        program = graph.program
        self.model, self._read_end, self._behind = model, buffers.read_end, behind
        self._barriers = [barrier for effect in buffers.found.of(AwaitBarriers) for barrier in effect.barriers]
        self._sums_at_once = sums_at_once(graph)
        self._reduced_in_place = {effect.tensor for effect in buffers.found.of(ReduceInPlace)}
        self._awaits_next, self._shortens = map(buffers.found.has, (AwaitNextGradient, ShortenSources))
        self._shortens = self._shortens or bool(self._sums_at_once)
        self._homes = Memo()
        self._reads: dict[tuple[int, Any], dict[Sharding, int]] = {}
        self._readers: dict[int, Callable[[Sequence[int]], Any]] = {}
        calls = (e for e in program.equations if graph.rules[e.index].family in CONTRACTION_FAMILIES)
        results = (e.results[0] for e in calls if e.region < 0)
        born = sorted((buffers.birth[t], t) for t in results if is_gradient(graph, t))
        self._gradient_births, self._gradients = [birth for birth, _ in born], [t for _, t in born]
        self._behind_tensors = graph.derive("gradients behind", None, lambda: _gradients_behind(graph))

    def of(
        self, assignment: Sequence[int], chosen: Sequence[Configuration], transfers: Sequence[Transfer]
    ) -> dict[int, int]:
        """Last read of the original copy of tensors that are resharded: readers of copies do not count."""
        of_tensor: dict[int, list[Transfer]] = defaultdict(list)
        for transfer in transfers:
            of_tensor[transfer.tensor].append(transfer)
        result: dict[int, int] = {}
        homes, added_up = self._homes, self.model.buffers.added_up
        for t, moved in of_tensor.items():
            key = t, homes.to_find(moved), self._read_by(t)(assignment)
            found = homes.get(key)
            if found is None:
                homes.numbers(moved)
                found = homes[key] = self._home_death(t, moved, assignment, chosen)
            result[t] = found
            if t in added_up:
                result.setdefault(added_up[t], found)
        if self._shortens:
            self._shorten_sources(result)
        return result

    def _home_death(
        self, t: int, moved: Sequence[Transfer], assignment: Sequence[int], chosen: Sequence[Configuration]
    ) -> int:
        """Last read of the original copy of one tensor that is resharded."""
        executed = [
            max(
                self._executed_by(transfer, first) - self._is_reduced_in_place(transfer),
                self._scattered_by(transfer, first),
            )
            for transfer in moved
            for first in self._starts(transfer)
        ]
        wanted = {transfer.target for transfer in moved}
        ends = [end for sharding, end in self._last_reads(t, assignment, chosen).items() if sharding not in wanted]
        return max(executed + ends)

    def _starts(self, transfer: Transfer) -> list[int]:
        """The equations before which a transfer is executed."""
        if transfer.tensor in self._sums_at_once and transfer.path.shardings[0].partial:
            return [self.model.graph.values.producer[transfer.tensor]]
        return [span.first for span in transfer.spans]

    def _is_reduced_in_place(self, transfer: Transfer) -> bool:
        """Whether the sum is written over the partial result that it is made of."""
        only_sums = all(step.kind == "all-reduce" for step in transfer.path.steps)
        return only_sums and transfer.tensor in self._reduced_in_place

    def _read_by(self, t: int) -> Callable[[Sequence[int]], Any]:
        """A function from an assignment to the part of it that says how the groups which read a tensor read it."""
        found = self._readers.get(t)
        if found is None:
            graph = self.model.graph
            groups = sorted({graph.grouping.equation_group[c] for c in graph.values.consumers[t]} - {UNGROUPED})
            found = self._readers[t] = operator.itemgetter(*groups) if groups else lambda assignment: ()
        return found

    def _last_reads(
        self, t: int, assignment: Sequence[int], chosen: Sequence[Configuration]
    ) -> dict[Sharding, int]:
        """Layout in which a tensor is read -> the end of its last read, for the configurations of the readers."""
        graph = self.model.graph
        key = t, self._read_by(t)(assignment)
        if key not in self._reads:
            ends: dict[Sharding, int] = {}
            for c in graph.values.consumers[t]:
                sharding = sharding_of(graph, chosen, graph.grouping.equation_group[c], t, produced=False)
                ends[sharding] = max(ends.get(sharding, 0), self._read_end[c])
            self._reads[key] = ends
        return self._reads[key]

    def _executed_by(self, transfer: Transfer, first: int) -> int:
        """By when a transfer is executed at the latest.

        Between regions of the backward pass that are recomputed, the compiler was seen to defer the dot that
        makes a gradient for as long as it may: until the barrier after the next, where the lowering asks for it.
        """
        is_partial = transfer.path.shardings[0].partial and transfer.tensor not in self._sums_at_once
        if not is_partial or not self._barriers or first <= self._barriers[0]:
            return first
        k = bisect.bisect_left(self._barriers, first) + 1
        if k >= len(self._barriers):
            return first
        return min(self._barriers[k], self._read_end[transfer.spans[-1].last])

    def _scattered_by(self, transfer: Transfer, first: int) -> int:
        """The dot that runs beside the scatter of a gradient, which keeps the scatter's operand live; -1: none.

        GPU programs start a reduce-scatter and make the next gradient before they wait for it. One that is computed of
        the scattered gradient (of a network that is trained against another, after its update) cannot be made so early.
        """
        first_step = next(iter(transfer.path.steps), None)  # zeros become partial sums without any
        is_scattered = self._awaits_next and first_step is not None and first_step.kind == "reduce-scatter"
        dot = self._behind.of(transfer.tensor) if is_scattered else None
        if dot is None or not is_gradient(self.model.graph, transfer.tensor):
            return -1
        made = self.model.buffers.birth[self.model.graph.program.equations[dot].results[0]]
        following = bisect.bisect_right(self._gradient_births, max(first, made))
        own = self._behind_tensors[transfer.tensor]
        while following < len(self._gradients) and own & ~self._behind_tensors[self._gradients[following]] == 0:
            following += 1
        return self._gradient_births[following] if following < len(self._gradient_births) else -1

    def _shorten_sources(self, deaths: dict[int, int]) -> None:
        """Sources of a fused, resharded value are live no longer than that value: a weight gradient that is
        transposed, reduced and kept as a shard does not outlive its reduction."""
        buffers, values = self.model.buffers, self.model.graph.values
        equations = self.model.graph.program.equations
        outputs, moved = set(self.model.graph.program.outputs), frozenset(deaths)
        waiting = [(-values.producer[t], t) for t in deaths if not buffers.materialised[t]]
        heapq.heapify(waiting)
        while waiting:
            index = -heapq.heappop(waiting)[0]
            for u in equations[index].operands if index >= 0 else ():
                if u in moved or u in outputs or buffers.birth[u] < 0:
                    continue
                last = max(
                    self._read_end[c]
                    if buffers.materialised[r] or equations[c].name == REGION_IN
                    else deaths.get(r, buffers.death[r])
                    for c in values.consumers[u]
                    for r in equations[c].results
                )
                if last < deaths.get(u, buffers.death[u]):
                    deaths[u] = last
                    if not buffers.materialised[u]:
                        heapq.heappush(waiting, (-values.producer[u], u))


def _gradients_behind(graph: StepGraph) -> dict[int, int]:
    """Tensor -> the set of gradients that it is computed of, a bit for each; gradients and their views count too."""
    behind: dict[int, int] = {}
    gradients = set[int]()
    for eqn in graph.program.equations:
        of = functools.reduce(operator.or_, (behind.get(t, 0) for t in eqn.operands), 0)
        for t in eqn.results:
            own = of
            if is_gradient(graph, t):
                own |= 0 if gradients.intersection(eqn.operands) else 1 << len(gradients)
                gradients.add(t)
            if own:
                behind[t] = own
    return behind
