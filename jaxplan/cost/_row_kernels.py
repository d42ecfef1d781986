"""Time of kernels that normalise rows on GPUs: a softmax, its gradient, and the logarithm of a sum of exponentials.

Such a kernel holds a row and reduces it before it writes, and streams slower than one that is element-wise. Of a
softmax whose gradient is wanted there are two in the forward pass: one for the statistics that are saved, and one that
normalises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jaxplan.cost._passes import WRITE
from jaxplan.ir import Equation, StepGraph
from jaxplan.mesh import Efficiency
from jaxplan.xla._buffers import Buffers

_ONE_KERNEL = frozenset({"elementwise", "reduction", "shape", "source"})
"""Families of operators that are computed in the kernel of a row."""


def row_factors(graph: StepGraph, buffers: Buffers, efficiency: Efficiency) -> Mapping[tuple[str, int], float]:
    """(Phase or `WRITE`, tensor) -> seconds of that pass over those of a streaming kernel, where rows are reduced."""
    factors = dict[tuple[str, int], float]()
    if efficiency.rows is None:
        return factors
    statistics, norms, gradients = efficiency.rows
    for eqn in graph.program.equations:
        if graph.rules[eqn.index].family == "reduction":
            factors.update({(eqn.phase, t): norms for t in _reduced(graph, buffers, eqn)})
    for reduction in graph.program.equations:
        exponentials = _exponentials(graph, reduction)
        if exponentials is None:
            continue
        whole = _Whole(graph, buffers, exponentials)
        filled = _filled(graph, reduction)
        read, written = whole.around([*whole.readers(exponentials, reduction.phase), reduction], reduction.phase)
        is_normalised = any(graph.values.consumers[t] for t in written)
        twice = filled * (statistics + norms) if is_normalised else 2 * norms
        factors.update({(reduction.phase, t): twice for t in read})
        for t in written:
            factors[WRITE, t] = filled * norms
        again = [e for e in whole.readers(exponentials, "backward") if reduction.phase != "backward"]
        read, written = whole.around(again, "backward")
        if whole.reduces:
            factors.update({("backward", t): filled * gradients for t in read})
            factors.update({(WRITE, t): filled * gradients for t in written})
    return factors


def rows_in_blocks(phase: str, efficiency: Efficiency) -> float:
    """Seconds of the passes over the scores of an attention in blocks over those of streaming ones.

    Of the five passes forward three are kernels of rows, of the ten of the backward pass the gradient's three
    (`jaxplan.ir.attention`).
    """
    if efficiency.rows is None:
        return 1.0
    statistics, norms, gradients = efficiency.rows
    return (7 + 3 * gradients) / 10 if phase == "backward" else (2 + statistics + 2 * norms) / 5


def _reduced(graph: StepGraph, buffers: Buffers, reduction: Equation) -> set[int]:
    """The buffers that a reduction computes its operand from in its kernel."""
    values, equations = graph.values, graph.program.equations
    size = graph.program.tensors[reduction.operands[0]].num_elements
    found, left, seen = set[int](), list(reduction.operands), set(reduction.operands)
    while left:
        t = left.pop()
        if graph.program.tensors[t].num_elements != size:
            continue
        if buffers.materialised[t]:
            found.add(t)
        elif (made_by := values.producer[t]) >= 0 and graph.rules[made_by].family in _ONE_KERNEL:
            new = [u for u in equations[made_by].operands if u not in seen]
            seen.update(new)
            left += new
    return found


def _exponentials(graph: StepGraph, reduction: Equation) -> int | None:
    """The tensor of exponentials of which an equation adds up the rows."""
    if reduction.name != "reduce_sum" or reduction.phase == "backward":
        return None
    (t,) = reduction.operands
    if not 0 < len(reduction.params["axes"]) < len(graph.program.tensors[t].shape):
        return None
    made_by = graph.values.producer[t]
    while made_by >= 0 and (eqn := graph.program.equations[made_by]).name in ("convert_element_type", "select_n"):
        t = eqn.operands[-1]
        made_by = graph.values.producer[t]
    return t if made_by >= 0 and graph.program.equations[made_by].name == "exp" else None


def _filled(graph: StepGraph, reduction: Equation) -> float:
    """Elements of a row of a kernel, a power of two, over those that there are."""
    shape, length = graph.program.tensors[reduction.operands[0]].shape, 1
    for axis in reduction.params["axes"]:
        length *= shape[axis]
    return (1 << max(0, length - 1).bit_length()) / length


class _Whole:
    """The tensors as large as some exponentials, and the operators of one kernel with them."""

    def __init__(self, graph: StepGraph, buffers: Buffers, exponentials: int) -> None:
        self._graph, self._written = graph, buffers.materialised
        self._size = graph.program.tensors[exponentials].num_elements
        self.reduces = False

    def readers(self, t: int, phase: str) -> list[Equation]:
        """Equations of a phase that compute with the exponentials, or with values normalised from them."""
        equations, consumers = self._graph.program.equations, self._graph.values.consumers
        found, left, seen = list[Equation](), [t], {t}
        while left:
            for c in consumers[left.pop()]:
                eqn = equations[c]
                if self._graph.rules[c].family != "elementwise":
                    continue
                if eqn.phase == phase:
                    found.append(eqn)
                if eqn.phase != "backward":
                    new = [r for r in eqn.results if self._is_whole(r) and r not in seen]
                    seen.update(new)
                    left += new
        return found

    def around(self, some: Iterable[Equation], phase: str) -> tuple[set[int], set[int]]:
        """Buffers that the kernels of equations read and write, as large as the exponentials."""
        equations, values = self._graph.program.equations, self._graph.values
        read, written, self.reduces = set[int](), set[int](), False
        left, seen = list(some), {eqn.index for eqn in some}
        while left:
            eqn = left.pop()
            self.reduces |= self._graph.rules[eqn.index].family == "reduction"
            near = []
            for t in eqn.operands:
                if not self._is_whole(t):
                    continue
                if self._written[t]:
                    read.add(t)
                else:
                    near.append(values.producer[t])
            for t in eqn.results:
                if self._is_whole(t) and self._written[t]:
                    written.add(t)
                else:
                    near += values.consumers[t]
            for e in near:
                is_inside = e >= 0 and e not in seen and self._graph.rules[e].family in _ONE_KERNEL
                if is_inside and (equations[e].phase == phase or self._makes_again(e)):
                    seen.add(e)
                    left.append(equations[e])
        return read, written

    def _makes_again(self, e: int) -> bool:
        """Whether an equation of the forward pass makes a value that the backward pass recomputes."""
        eqn = self._graph.program.equations[e]
        return eqn.phase == "forward" and any(self._is_whole(t) and not self._written[t] for t in eqn.results)

    def _is_whole(self, t: int) -> bool:
        return self._graph.program.tensors[t].num_elements == self._size
