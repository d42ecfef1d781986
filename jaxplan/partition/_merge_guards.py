"""Dot-merger guards: dots of one operand that the compiler is kept from merging.

XLA merges dots that share an operand into one, whose result lives until the last of its parts is no longer needed
(https://github.com/openxla/xla/blob/main/xla/hlo/transforms/simplifiers/dot_merger.h). Queries, keys and values were
seen to be merged so: queries and values are written again, scaled or in another order of dimensions, and all three stay
until the backward pass because the keys are read there as they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterator, Sequence

from jaxplan.cost._plan_shardings import PlanShardings
from jaxplan.ir import Equation, StepGraph
from jaxplan.partition._lowering import MergeGuard
from jaxplan.partition._resident import Resident
from jaxplan.xla import MERGED_BYTES, PadMatrices, is_padded, matrix_dims

LEAST_RISE = 0.01
"""Of the peak without arguments: one large dot is a little faster than three small ones."""


def find_merge_guards(resident: Resident, guarded: Container[int]) -> tuple[MergeGuard, ...]:
    """Dots of the forward pass that are not to be merged.

    Args:
      guarded: equations that read their operands through a barrier anyway.

    Returns:
      Guards where merged results could raise the peak by more than `LEAST_RISE`; none for other compilers than XLA's
      for GPUs.
    """
    shardings = resident.shardings
    if not shardings.target.merges_dots:
        return ()
    shared = [
        (side, dots)
        for side, dots in _sharing(shardings, guarded)
        if _is_merged(shardings, side, dots) and any(_is_saved(shardings.graph, eqn.results[0]) for eqn in dots)
    ]
    extra = 0
    for _, dots in shared:
        parts = [shardings.local_bytes(eqn.results[0]) for eqn in dots]
        extra += sum(parts) - min(parts)
    if not extra or extra <= LEAST_RISE * resident.curve.max():
        return ()
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for side, dots in shared:
        for eqn in dots:
            found[eqn.index] = (*found.get(eqn.index, ()), (dots[0].index, side))
    return tuple(MergeGuard(equation=e, shared=operands) for e, operands in found.items())


def _sharing(shardings: PlanShardings, guarded: Container[int]) -> list[tuple[int, Sequence[Equation]]]:
    """Dots outside of loops and of the backward pass that sum the same dimensions of one array; its position.

    A copy that is gathered again is another array.
    """
    found: dict[tuple[int, Hashable], list[Equation]] = defaultdict(list)
    for eqn in shardings.graph.program.equations:
        is_forward = eqn.phase != "backward" and eqn.region < 0 and eqn.index not in guarded
        if eqn.name != "dot_general" or not is_forward:
            continue
        contracted, batch = eqn.params["dimension_numbers"]
        for side in (0, 1):
            copy = shardings.copy_of(eqn, eqn.operands[side])
            array = (eqn.operands[side], copy.target) if copy else eqn.operands[side]
            execution = copy.execution_at(eqn.index) if copy else 0
            found[side, (array, execution, tuple(contracted[side]), tuple(batch[side]))].append(eqn)
    return [(side, dots) for (side, _), dots in found.items() if len(dots) > 1]


def _is_merged(shardings: PlanShardings, side: int, dots: Sequence[Equation]) -> bool:
    """Whether one of the dots that share an operand, on one side, reads and writes little enough beside it."""

    def bytes_moved(eqn: Equation) -> int:
        own = eqn.operands[1 - side]
        copy = shardings.copy_of(eqn, own)
        return shardings.local_bytes(own, copy.target if copy else None) + shardings.local_bytes(eqn.results[0])

    dtypes = {shardings.graph.program.tensors[eqn.results[0]].dtype for eqn in dots}
    return len(dtypes) == 1 and min(map(bytes_moved, dots)) <= MERGED_BYTES


def _is_saved(graph: StepGraph, t: int) -> bool:
    """Whether the backward pass reads the result of a dot, or a value computed from it element by element."""
    program, stack, seen = graph.program, [t], set()
    while stack:
        for reader in graph.values.consumers[stack.pop()]:
            if program.equations[reader].phase == "backward":
                return True
            if reader not in seen and graph.rules[reader].family in ("elementwise", "shape"):
                seen.add(reader)
                stack.extend(program.equations[reader].results)
    return False


def find_written_slices(resident: Resident) -> frozenset[int]:
    """Equations that cut matrices which dots read in both orders, and padded, out of a larger array.

    XLA pads a matrix in each order by itself. Of queries, keys and values it was seen to save the padded queries and
    values for the backward pass, and to cut the keys there out of the array of all three again, which it kept for that
    beside them. At some sizes it writes the keys by themselves instead, which is less.
    """
    graph = resident.shardings.graph
    forms: dict[int, set[tuple[tuple[int, ...], tuple[int, ...]]]] = defaultdict(set)
    for eqn, side in _padded_operands(resident):
        t = eqn.operands[side]
        if _is_slice(graph, t):
            free, summed = matrix_dims(eqn, side, len(graph.program.tensors[t].shape))
            forms[t].add((summed, free) if side else (free, summed))  # rows and columns
    return frozenset(graph.values.producer[t] for t, matrices in forms.items() if len(matrices) > 1)


def find_padded(resident: Resident) -> frozenset[int]:
    """Tensors that several dots read with padding.

    XLA writes one padded copy for all of them, but one more for those behind a barrier that the tensor passes. The
    gradient of bfloat16 logits over a vocabulary of 50257 was held three times.
    """
    count = Counter(eqn.operands[side] for eqn, side in _padded_operands(resident))
    return frozenset(t for t, dots in count.items() if dots > 1)


def _padded_operands(resident: Resident) -> Iterator[tuple[Equation, int]]:
    """Dots and the positions of their operands that are padded."""
    shardings, found = resident.shardings, resident.buffers.found
    for effect in found.of(PadMatrices):
        eqn = shardings.graph.program.equations[effect.equation]
        for side, t in enumerate(eqn.operands):
            if is_padded(eqn, side, shardings.local_shape(eqn, t)):
                yield eqn, side


def _is_slice(graph: StepGraph, t: int) -> bool:
    """Whether a tensor is a slice, or a view of one."""
    while (made_by := graph.values.producer[t]) >= 0 and graph.rules[made_by].family == "shape":
        eqn = graph.program.equations[made_by]
        if eqn.name in ("slice", "split", "unstack"):
            return True
        t = eqn.operands[0]
    return False
