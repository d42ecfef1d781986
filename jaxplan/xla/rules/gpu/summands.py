"""Summands of sums over columns, materialised where the kernel of the sum would not fill the chip.

XLA fuses by estimated time. A sum over all dimensions but the last ones runs in one block of threads for every 32
columns that it keeps, and on few multiprocessors the equations fused into it take long, casts from 16 bits most of
all: then the compiler writes the summands, in float32, by a kernel that fills the chip. Sums over more than 4096
rows are taken in two steps with many blocks. Seen in the gradients of scales, and of means and variances, of
compiled group, layer and batch norms alike.
https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/priority_fusion.cc and, for the two steps,
https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/tree_reduction_rewriter.cc
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.ir import Equation, StepGraph, Tensor
from jaxplan.xla._effects import Temporary
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import XLA, CompilerRule, Fitted
from jaxplan.xla._target import Target

MOST_ROWS_AT_ONCE = 4096
"""A longer sum over columns is taken in two steps: ``ReductionDimensionRaceFreeBound``, 32 lanes of 128 rows."""
COLUMNS_OF_A_BLOCK = 32
MOST_CASTS = 2.0
"""Fitted: casts for each summand, times the share of the chip that runs them, that compiled group norms on H100 still
fuse. Of 17 shapes with 16 to 512 blocks on 132 multiprocessors all come out as they were compiled."""
_NARROW_BYTES, _WIDE_BYTES = 2, 4
_PRIORITY_FUSION = f"{XLA}service/gpu/transforms/priority_fusion.cc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summand(Temporary):
    """The summands of a sum over columns, fused into it as the program stands.

    Attributes:
      equation, tensor: the sum and its operand.
      summed: dimensions that it sums over.
      casts: 16-bit values that are cast to float32 for each element.
      beside: the first operand of such a sum that is computed of one of the same values: one kernel writes both.
      narrow: those of them that the backward pass makes and that are no buffers either: written as well.
    """

    equation: int
    tensor: int
    summed: tuple[int, ...]
    casts: tuple[int, ...]
    narrow: tuple[int, ...]
    beside: int

    def is_written(self, shape: Sequence[int], target: Target) -> bool:
        """Whether the compiler writes a summand of this shape on one device."""
        blocks = num_blocks(shape, self.summed)
        if blocks is None or blocks >= target.multiprocessors:
            return False
        return len(self.casts) > MOST_CASTS * blocks / target.multiprocessors


def num_blocks(shape: Sequence[int], summed: Sequence[int]) -> int | None:
    """Blocks of threads that sum over columns; None for a sum over rows, and for one that is taken in two steps.

    So it is where columns are fewer than a block takes: the compiler lays such a tensor out in another order.

    Dimensions are kept, summed, and kept again; where there are more turns the compiler sums in several steps, of
    which this is the first.
    """
    turns: list[list[int]] = [[1], [1], [1]]
    turn = 0
    for d, size in enumerate(shape):
        if size == 1:
            continue
        if turn == 0 and d in summed:
            turn = 1
        elif turn == 1 and d not in summed:
            turn = 2
        turns[turn].append(size)
    outer, rows, columns = map(math.prod, turns)
    if columns < COLUMNS_OF_A_BLOCK or rows == 1 or rows > MOST_ROWS_AT_ONCE:
        return None
    return outer * -(-columns // COLUMNS_OF_A_BLOCK)


def find_summands(facts: Facts) -> tuple[Summand, ...]:
    """Operands of sums that are not buffers, and are computed of 16-bit values and others.

    Squares are not, of which compiled programs add up both the values and the squares in one pass.
    """
    graph, materialised, found = facts.graph, facts.written, list[Summand]()
    for eqn in graph.program.equations:
        if eqn.name == "reduce_sum" and not materialised[eqn.operands[0]]:
            casts, is_computed = _casts(facts, eqn.operands[0])
            if casts and is_computed:
                beside = next((s.tensor for s in found if set(s.casts) & set(casts)), eqn.operands[0])
                found.append(
                    Summand(
                        equation=eqn.index,
                        tensor=eqn.operands[0],
                        summed=tuple(eqn.params["axes"]),
                        casts=casts,
                        beside=beside,
                        narrow=tuple(t for t in casts if not materialised[t] and _is_backward(graph, t)),
                    )
                )
    return tuple(found)


def _casts(facts: Facts, t: int) -> tuple[tuple[int, ...], bool]:
    """The 16-bit values of full size that a float32 value is computed of, and whether it is of several values."""
    graph, materialised = facts.graph, facts.written
    program, values = graph.program, graph.values
    size = program.tensors[t].num_elements
    casts: dict[int, None] = {}
    stack, seen, is_computed = [t], set(), False
    while stack:
        u = stack.pop()
        index = values.producer[u]
        if u in seen or materialised[u] or values.free[u] or index < 0:
            continue
        seen.add(u)
        if program.tensors[u].num_elements < size or facts.kernels[index]:
            continue
        eqn = program.equations[index]
        source = program.tensors[eqn.operands[0]] if eqn.operands else None
        if source is not None and _widens(eqn, source, program.tensors[u]):
            casts[_viewed(graph, materialised, source.index)] = None
            continue
        several = {o for o in eqn.operands if program.tensors[o].num_elements > 1}
        is_computed |= graph.rules[index].family == "elementwise" and len(several) > 1
        stack.extend(eqn.operands)
    return tuple(casts), is_computed


def _widens(eqn: Equation, source: Tensor, result: Tensor) -> bool:
    """Whether an equation casts floating-point numbers of 16 bits to 32; those of JAX's own have no kind."""
    is_cast = eqn.name == "convert_element_type" and source.dtype.kind in "fV"
    return is_cast and (source.itemsize, result.itemsize) == (_NARROW_BYTES, _WIDE_BYTES)


def _is_backward(graph: StepGraph, t: int) -> bool:
    index = graph.values.producer[t]
    return index >= 0 and graph.program.equations[index].phase == "backward"


def _viewed(graph: StepGraph, materialised: Sequence[bool], t: int) -> int:
    """The value that a tensor is a reshape, a transpose, a slice of, back to a buffer or a computed value."""
    while not materialised[t]:
        index = graph.values.producer[t]
        if index < 0 or graph.rules[index].family != "shape" or len(graph.program.equations[index].operands) != 1:
            break
        t = graph.program.equations[index].operands[0]
    return t


SUMMANDS_OF_FEW_BLOCKS = CompilerRule(
    name="summands-of-few-blocks-are-written",
    backends=("gpu",),
    stage="layouts",
    does="The summand of a sum over columns is written in float32 where its kernel has too few blocks for the chip.",
    source=Fitted(
        value=2.0,
        unit="casts for each summand, times the share of the multiprocessors that run them",
        evidence=f"group norms of 17 shapes with 16 to 512 blocks compiled for H100; the pass is {_PRIORITY_FUSION}",
        command="python -m pytest tests/xla/test_summands.py",
    ),
    made_after=("gpt", "moe", "resnet50", "unet"),
    test="tests/xla/test_summands.py::test_as_many_summands_are_written_as_were_compiled",
    find=find_summands,
)
