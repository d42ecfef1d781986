"""Where a plan asks the compiler for weight gradients: the decision that prediction and lowering share.

A dot that makes the gradient of a parameter, or a sum that makes one of a scale, may run at any time before the update.
The compiler was seen to defer all of them, and to keep their operands. That is harmless after the peak of a plan and
costs memory before it, so the lowering asks for the gradients there, and only there.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxplan.cost._deferred_arrays import DeferredArrays
from jaxplan.cost._live_ranges import WORKSPACE
from jaxplan.cost._masked_rows import MaskedCopies
from jaxplan.cost._model import CostModel
from jaxplan.cost._padded_images import PaddedImages
from jaxplan.cost._plan_shardings import PlanShardings
from jaxplan.cost._reads import Read
from jaxplan.cost._transfers import Transfer
from jaxplan.ir import (
    CONTRACTION_FAMILIES,
    UNGROUPED,
    VIEW_PRIMITIVES,
    Configuration,
    Equation,
    StepGraph,
    backward_barriers,
)
from jaxplan.xla._lifetimes import Lifetimes
from jaxplan.xla.rules.both.schedule import LARGE_PARAMETER_BYTES

LEAST_HELD = 0.03
"""Of the peak without arguments, held by deferred gradients: a barrier costs a little time, as operators on its two
sides are no longer fused."""
NEAR = 0.1
"""How far below the peak, of it, live arrays and held ones must stay together: the compiler holds more than is counted
here, results of fusions of both sides and other operators that it defers: in a Conformer 10 % of the peak."""
A_BLOCK = 8
"""Dots before one where the peak would be higher, about a block of a transformer, get no barrier as well: two barriers
so close made programs larger, a Llama by the probabilities of its attention, 1 GiB. Not so before convolutions."""

Held = Callable[[int, int], float]
"""(equation, an earlier one) -> bytes on a device that deferred gradients, made between the two, hold at the first."""


def barrier_places(graph: StepGraph, making: Collection[int], curve: np.ndarray, held: Held, near: float) -> list[int]:
    """Dots of the backward pass that run only after all earlier weight gradients, ascending.

    Args:
      making: equations that make gradients (`gradient_makers`).
      curve: (equations + 1,) live bytes on a device, arguments and scratch of dots excluded, as if none was deferred.
      held: bytes that deferred ones hold.
      near: as `NEAR`.
    """
    search = _Search(graph, making, curve, held)
    matrices = {place for place in search.above() if graph.rules[place].family == "contraction"}
    places: list[int] = []
    for number, place in enumerate(search.dots):
        most, size = search.held(number, places)
        is_alone = matrices.isdisjoint(search.dots[number + 1 : number + 1 + A_BLOCK])
        is_near = most > (1 - near) * search.peak and is_alone
        if size > LEAST_HELD * search.peak and (is_near or most > (1 + LEAST_HELD) * search.peak):
            places.append(place)
    return places


class _Search:
    """Live bytes between each two dots of the backward pass, with those that deferred gradients hold.

    Attributes:
      peak: bytes on a device, arguments excluded, as if no gradient was deferred.
      dots: those of the backward pass that make no gradient of a parameter.
    """

    def __init__(self, graph: StepGraph, making: Collection[int], curve: np.ndarray, held: Held) -> None:
        self._held = held
        self.peak = curve.max()
        backward = graph.derive("backward pass", None, lambda: _BackwardPass.of(graph))
        self._loops, self._barriers = backward.loops, backward.barriers
        self.dots = [e for e in backward.dots if e not in making]
        before_end = curve[: len(graph.program.equations)]
        self._most = np.maximum.reduceat(before_end, self.dots).tolist() if self.dots else []

    def held(self, number: int, places: Sequence[int]) -> tuple[float, float]:
        """The most bytes from a dot, by its place in `dots`, to the next, with held ones, and the held bytes.

        Args:
          places: dots before it that have barriers, ascending.
        """
        place = self.dots[number]
        loop = bisect.bisect_left(self._loops, place)
        complete = max(
            self._barriers[bisect.bisect_right(self._barriers, place) - 2],
            self._loops[loop - 1] if loop else -1,
            places[-1] if places else -1,
        )
        size = self._held(place, complete)
        return self._most[number] + size, size

    def above(self) -> list[int]:
        """Dots at which deferred gradients alone would raise the peak, ascending."""
        found: list[int] = []
        for number, place in enumerate(self.dots):
            if self.held(number, found)[0] > (1 + LEAST_HELD) * self.peak:
                found.append(place)
        return found


@dataclass(frozen=True, slots=True)
class _BackwardPass:
    """Equations of the backward pass, outside of loops, ascending.

    Attributes:
      dots: those that make no part of a gradient; parts, such as the gradient of one layer of a stack, may run late.
      loops: the first of each loop of the program.
      barriers: the first of each, behind two that stand for the beginning: at each barrier, the gradients made before
        the one before are complete anyway.
    """

    dots: list[int]
    loops: list[int]
    barriers: list[int]

    @classmethod
    def of(cls, graph: StepGraph) -> _BackwardPass:
        program = graph.program
        backward = (e for e in program.equations if e.phase == "backward" and e.region < 0)
        parts = _parts_of_gradients(graph)
        return cls(
            [e.index for e in backward if is_dot(graph, e) and not parts[e.results[0]]],
            sorted(region.start for region in program.regions if region.parent < 0),
            [-1, -1, *(equations.start for equations in backward_barriers(program))],
        )


def _parts_of_gradients(graph: StepGraph) -> list[bool]:
    """Of each tensor, whether updates alone read it, or arrays that are put together or computed element by element of
    it, and that updates alone read."""
    return graph.derive("parts of gradients", None, lambda: _found_parts(graph))


def _found_parts(graph: StepGraph) -> list[bool]:
    program, consumers = graph.program, graph.values.consumers
    found = [False] * len(program.tensors)

    def leads_to_update(eqn: Equation) -> bool:
        is_part = graph.rules[eqn.index].family in ("elementwise", "shape") and all(found[r] for r in eqn.results)
        return is_part or eqn.phase == "update"

    for eqn in reversed(program.equations):
        for t in eqn.results:
            readers = [program.equations[e] for e in consumers[t]]
            found[t] = bool(readers) and t not in program.returned and all(map(leads_to_update, readers))
    return found


def is_dot(graph: StepGraph, eqn: Equation) -> bool:
    """Whether an equation is a dot or a convolution."""
    return graph.rules[eqn.index].family in CONTRACTION_FAMILIES


def gradient_makers(graph: StepGraph, gradients: Iterable[int]) -> set[int]:
    """The dots and sums, outside of loops, that make gradients, or the tensors that are cast or transposed to one."""
    known: dict[int, list[int]] = graph.derive("makers of gradients", None, dict)
    found: set[int] = set()
    for t in gradients:
        if t not in known:
            known[t] = list(_makers(graph, t))
        found.update(known[t])
    return found


def _makers(graph: StepGraph, t: int) -> Iterator[int]:
    stack = [t]
    while stack:
        index = graph.values.producer[stack.pop()]
        if index < 0 or graph.program.equations[index].region >= 0:
            continue
        eqn = graph.program.equations[index]
        if is_dot(graph, eqn) or graph.rules[index].family == "reduction":
            yield index
        elif graph.rules[index].family in ("elementwise", "shape") and len(eqn.operands) == 1:
            stack.extend(eqn.operands)


def reads_gradient(graph: StepGraph, read: Read, kind: str = "state") -> bool:
    """Whether a group of a kind reads the result of a contraction, or of a sum, of the backward pass.

    State groups also read gradients of the layers of a stack, which another group puts together, and gradients that
    another group casts or transposes for them.
    """
    groups, made_by = graph.grouping.groups, graph.values.producer[read.tensor]
    return (
        read.consumer != UNGROUPED
        and (groups[read.consumer].kind == kind or (kind == "state" and _is_part_of_update(graph, read.tensor)))
        and groups[read.producer].kind in ("contraction", "sum")
        and made_by >= 0
        and graph.program.equations[made_by].phase == "backward"
    )


def _is_part_of_update(graph: StepGraph, t: int) -> bool:
    """Whether a tensor is a gradient that updates alone read, behind other operators: it is put in the place of its
    layer in a stack, transposed or cast, not added to others."""
    equations, consumers = graph.program.equations, graph.values.consumers

    def passes_on(e: int) -> bool:
        is_cast = graph.rules[e].family == "elementwise" and len(equations[e].operands) == 1
        return equations[e].phase != "update" and (is_cast or graph.rules[e].family == "shape")

    return _parts_of_gradients(graph)[t] and all(map(passes_on, consumers[t]))


def reads_sum(graph: StepGraph, read: Read) -> bool:
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


def makes_table_gradient(graph: StepGraph, equation: int) -> bool:
    """Whether an equation makes the gradient of a large table, all of which take turns: it adds to zeros."""
    eqn, program = graph.program.equations[equation], graph.program
    if eqn.name != "scatter-add" or program.tensors[eqn.operands[0]].num_bytes < LARGE_PARAMETER_BYTES:
        return False
    made_by = graph.values.producer[eqn.operands[0]]
    if made_by < 0 or program.equations[made_by].name != "broadcast_in_dim":
        return False
    return all(program.tensors[t].kind == "literal" for t in program.equations[made_by].operands)


class AskedGradients:
    """Whether plans of one model ask the compiler for weight gradients in the order of the program."""

    def __init__(self, model: CostModel) -> None:
        graph = self._graph = model.graph
        self._topology, self._buffers = model.topology, model.buffers.in_order or model.buffers
        self._gradients = {read.tensor for read in model.reads if reads_gradient(graph, read)}
        self._sums = {read.tensor for read in model.reads if reads_sum(graph, read)}
        made = ((t, graph.values.producer[t]) for t in self._gradients)
        self._tables = {t for t, e in made if makes_table_gradient(graph, e)}
        self._recomputes = bool(backward_barriers(graph.program))
        self._padded = PaddedImages(replace(model, buffers=self._buffers))
        self._masked = MaskedCopies(replace(model, buffers=self._buffers))

    def are_asked(
        self,
        assignment: Sequence[int],
        configurations: Sequence[Configuration],
        transfers: Sequence[Transfer],
        in_order: Lifetimes,
    ) -> bool:
        """Whether the lowering of a plan asks for some, or the compiler does not defer them by itself.

        It was seen not to, in perceptrons, where a gradient is the last reader of so much in the order of the program
        that deferring it would raise the peak.

        Args:
          assignment, configurations: one for each group, by number and itself.
          transfers: those of the plan.
          in_order: live ranges as if none was deferred.
        """
        executed = {t.tensor: len(t.spans) for t in transfers}
        if self._recomputes or any(executed.get(t) == 1 for t in self._tables):
            return True
        complete = {t for t in self._gradients if executed.get(t, 1) == 1} | self._sums
        making = gradient_makers(self._graph, complete)
        if not making:
            return False
        end = len(self._graph.program.equations)
        sizes = np.where(np.array(in_order.labels) == WORKSPACE, 0, in_order.sizes)
        curve = replace(in_order, sizes=sizes).curve()[: 2 * end + 2].reshape(end + 1, 2).max(axis=1)
        last = in_order.last // 2
        makes = np.isin(np.arange(end + 1), list(making))
        until = np.cumsum(np.bincount(last, weights=sizes, minlength=end + 1)[: end + 1] * makes)

        def read_last_by(place: int, complete: int) -> float:
            return until[place - 1] - (until[complete] if complete >= 0 else 0)

        shardings = PlanShardings(self._graph, self._topology, configurations, transfers)
        padded = self._padded.read_last_by(assignment, configurations)
        padded |= self._masked.read_by_gradients(configurations)
        asked_for = DeferredArrays(shardings, self._buffers, making, padded).num_bytes_between
        return any(barrier_places(self._graph, making, curve, held, NEAR) for held in (read_last_by, asked_for))
